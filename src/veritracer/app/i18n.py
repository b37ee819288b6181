"""Translate messages, and write numbers, dates and lists as people do in a locale.

Messages are English sentences with named fields, ``%(name)s``. A catalogue is a gettext file,
``LOCALE/LC_MESSAGES/veritracer.po``; ours lie in ``app/locale``, and are compiled in memory when they are
used.
Numbers, dates and lists are written with Babel, from the data of Unicode's CLDR.
"""

from __future__ import annotations

import datetime
import gettext
import io
import os
import re
from collections.abc import Iterable, Sequence
from decimal import localcontext
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from veritracer.errors import NoticeError, listing, message
from veritracer.formatting import English, decimal_of, format_value

if TYPE_CHECKING:
    from babel import Locale
    from babel.messages import Catalog

DOMAIN = "veritracer"
PLACE = Path(__file__).parent / "locale"
SOURCE = "en"

_FIELD = re.compile(r"%\((\w+)\)s")


class Translator(English):
    """Write sentences in the language of a locale, such as ``de`` or ``en_GB``.

    Parameters
    ----------
    locale
        The name of the locale. ``en`` is the language of the source, with the dates of the United States.
    folder
        A folder with a catalogue of one's own, which comes before ours. It has to be whole: a sentence that
        it lacks, or whose fields differ, is refused.

    >>> Translator("de").format_value(1200.5), Translator("de").format_date(datetime.date(2027, 3, 1))
    ('1.200,5', '1. März 2027')
    """

    def __init__(self, locale: str = SOURCE, folder: str | os.PathLike[str] | None = None) -> None:
        self._locale, self._messages = _load(locale, None if folder is None else Path(folder))
        self.locale = str(self._locale)

    def gettext(self, message: str, **fields: object) -> str:
        """Return the translation with its named fields filled in."""
        return super().gettext(self._messages.gettext(message), **fields)

    def ngettext(self, singular: str, plural: str, n: int, **fields: object) -> str:
        """Return the translation for this number of things."""
        return English.gettext(self, self._messages.ngettext(singular, plural, n), **fields)

    def format_number(self, number: Any) -> str:
        """Format a number with all of its digits."""
        from babel.numbers import format_decimal, get_decimal_symbol

        english = format_value(number)
        if "e" in english:
            return english.replace(".", get_decimal_symbol(self._locale))
        with localcontext(prec=100):
            return format_decimal(decimal_of(number), locale=self._locale, decimal_quantization=False)

    def format_date(self, day: datetime.date) -> str:
        """Format a day in words."""
        from babel.dates import format_date

        return format_date(day, "long", locale=self._locale)

    def format_moment(self, moment: datetime.datetime) -> str:
        """Format an instant in words, to the second and with its zone."""
        from babel.dates import format_datetime

        return format_datetime(moment, "long", locale=self._locale)

    def join_list(self, parts: Sequence[str]) -> str:
        """Join parts as a list in a sentence."""
        from babel.lists import format_list

        return format_list(parts, locale=self._locale) if parts else ""

    def install(self, environment: Any) -> None:
        """Give the templates of a Jinja environment ``gettext``, ``ngettext`` and ``{% trans %}``."""
        environment.add_extension("jinja2.ext.i18n")
        environment.install_gettext_callables(self.gettext, self.ngettext, newstyle=True)


def locales() -> list[str]:
    """Return the locales with a catalogue of ours, English first.

    >>> locales()
    ['en', 'de']
    """
    return [SOURCE, *sorted(path.parts[-3] for path in PLACE.glob(f"*/LC_MESSAGES/{DOMAIN}.po"))]


@cache
def _load(name: str, folder: Path | None) -> tuple[Locale, gettext.NullTranslations]:
    """Return the locale of that name, and its messages."""
    try:
        from babel import Locale, UnknownLocaleError
    except ModuleNotFoundError as error:
        said = message("the package babel", "an install without it", "pip install 'veritracer[report]'")
        raise ModuleNotFoundError(said, name=error.name) from None
    expected, remedy = f"a locale among {', '.join(locales())}", "add its catalogue with --locale-dir"
    try:
        locale = Locale.parse(name.replace("-", "_"))
    except (ValueError, UnknownLocaleError):
        raise NoticeError(message(expected, repr(name), remedy)) from None
    names = list(dict.fromkeys([str(locale), locale.language]))
    for place in (folder, PLACE):
        for one in names if place is not None else ():
            path = Path(place or "") / one / "LC_MESSAGES" / f"{DOMAIN}.po"
            if path.is_file():
                return locale, _compiled(path, checked=place == folder)
    if folder is None and locale.language == SOURCE:
        return locale, gettext.NullTranslations()
    if folder is not None:
        expected = f"a catalogue {names[-1]}/LC_MESSAGES/{DOMAIN}.po in {folder}"
        raise NoticeError(message(expected, "none", f"copy {PLACE}/de, and translate it"))
    raise NoticeError(message(expected, repr(name), remedy))


def _compiled(path: Path, *, checked: bool) -> gettext.GNUTranslations:
    """Return the messages of a catalogue, compiled in memory."""
    from babel.messages.mofile import write_mo

    catalogue = read_catalogue(path)
    if checked:
        _check(catalogue, path)
    file = io.BytesIO()
    write_mo(file, catalogue)
    file.seek(0)
    return gettext.GNUTranslations(file)


def read_catalogue(path: Path) -> Catalog:
    """Read the text of a catalogue."""
    from babel.messages.pofile import PoFileError, read_po

    try:
        with path.open("rb") as file:
            return read_po(file, locale=path.parts[-3], domain=DOMAIN, abort_invalid=True)
    except (OSError, ValueError, PoFileError) as error:
        received = f"{path}, which cannot be read ({error})"
        raise NoticeError(message("a gettext catalogue", received, f"copy {PLACE}/de")) from None


def _check(catalogue: Catalog, path: Path) -> None:
    """Refuse a catalogue that lacks a sentence, or a field of one: a notice is written in one language."""
    for wanted in read_catalogue(PLACE / "de" / "LC_MESSAGES" / f"{DOMAIN}.po"):
        if not wanted.id:
            continue
        sentence = wanted.id if isinstance(wanted.id, str) else wanted.id[0]
        found = catalogue.get(wanted.id)
        texts = [] if found is None or found.fuzzy else _texts(found.string or "")
        if not texts or not all(texts):
            raise NoticeError(message(f"a translation of {sentence!r}", "none", f"add it to {path}"))
        fields = _fields(_texts(wanted.id))
        if any(_fields([text]) != fields for text in texts):
            expected = f"{listing(sorted(fields)) or 'no field'} in the translation of {sentence!r}"
            raise NoticeError(message(expected, repr(texts[0]), f"correct it in {path}"))


def _texts(text: str | Iterable[str]) -> list[str]:
    return [text] if isinstance(text, str) else list(text)


def _fields(texts: Iterable[str]) -> set[str]:
    """Return the names of the fields, and a text that is no name where a sign stands for nothing."""
    found = set()
    for text in texts:
        found |= set(_FIELD.findall(text))
        if "%" in _FIELD.sub("", text).replace("%%", ""):
            found.add("each % doubled")
    return found
