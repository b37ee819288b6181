"""The page in people's languages: gettext catalogues, read from their .po files.

English is the language of the source. A catalogue is ``locale/LANGUAGE.po``; a text that it lacks is told in
English. What the library itself says (sentences, reasons, letters) is English, and is marked as such.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cache
from pathlib import Path

PLACE = Path(__file__).parent / "locale"
SOURCE = "en"


def languages() -> tuple[str, ...]:
    """The languages that there are, English first."""
    return (SOURCE, *sorted(path.stem for path in PLACE.glob("*.po")))


@cache
def catalogue(language: str) -> dict[str, str]:
    """The texts of a language by the English ones."""
    if language not in languages() or language == SOURCE:
        return {}
    return read_po((PLACE / f"{language}.po").read_text(encoding="utf-8"))


def translator(language: str) -> Callable[..., str]:
    """What gives a text in this language, with its fields filled in."""
    known = catalogue(language)

    def say(text: str, **fields: object) -> str:
        said = known.get(text) or text
        return said.format(**fields) if fields else said

    return say


def preferred(header: str) -> str:
    """The first language of an Accept-Language header that there is.

    >>> preferred("fr, de-AT;q=0.8, en;q=0.5"), preferred("")
    ('de', 'en')
    """
    wanted = []
    for i, part in enumerate(header.split(",")[:20]):
        name, _, weight = part.strip().partition(";q=")
        try:
            wanted.append((-float(weight or 1), i, name.partition("-")[0].casefold()))
        except ValueError:
            continue
    return next((name for _, _, name in sorted(wanted) if name in languages()), SOURCE)


def read_po(text: str) -> dict[str, str]:
    r"""The translations in the text of a .po file: no plurals, no contexts.

    >>> read_po('msgid "yes"\nmsgstr ""\n"j"\n"a"\n')
    {'yes': 'ja'}
    """
    found: dict[str, str] = {}
    entry: dict[str, str] = {}
    field = ""
    for raw in [*text.splitlines(), 'msgid ""']:
        line = raw.strip()
        for name in ("msgid", "msgstr"):
            if line.startswith(f"{name} "):
                if name == "msgid" and entry.get("msgid") and entry.get("msgstr"):
                    found[entry["msgid"]] = entry["msgstr"]
                entry = {} if name == "msgid" else entry
                field, line = name, line.removeprefix(f"{name} ")
        if line.startswith('"'):
            entry[field] = entry.get(field, "") + str(ast.literal_eval(line))
    return found
