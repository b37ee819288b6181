"""Translations: whole catalogues, numbers and dates of a locale, and an English that needs nothing."""

from __future__ import annotations

import datetime
import re
import subprocess
import sys
from pathlib import Path

import pytest
from babel.messages.extract import extract_from_file
from babel.messages.pofile import write_po

import veritracer
from processes import CLEAN
from veritracer.app.i18n import PLACE, Translator, locales, read_catalogue
from veritracer.errors import NoticeError
from veritracer.formatting import ENGLISH
from veritracer.models.param_sets import RULES

SOURCE = Path(veritracer.__file__).parent
GERMAN = PLACE / "de" / "LC_MESSAGES" / "veritracer.po"
WRITERS = ["changes.py", "formatting.py", "app/notices.py", "app/reason_codes.py", "app/serve/page.py"]
KEYWORDS = {"say": None, "_": None, "gettext": None, "ngettext": (1, 2), "plural": (1, 2)}


def messages() -> set[str | tuple[str, ...]]:
    """Return every message that the sources of notices and of the page translate."""
    found = set()
    for path in [SOURCE / name for name in WRITERS] + sorted((SOURCE / "app/templates").iterdir()):
        method = "python" if path.suffix == ".py" else "jinja2.ext:babel_extract"
        options = {"newstyle_gettext": "true"} if path.suffix != ".py" else {}
        extracted = extract_from_file(method, str(path), keywords=KEYWORDS, options=options)
        found |= {message for _, message, _, _ in extracted}
    return found | {text for rule in RULES.values() for text in (rule.in_box, rule.in_ball)}


def own_catalogue(folder: Path, locale: str, change: dict[str, str | None]) -> Path:
    """Write the German catalogue with other translations of some messages; None leaves one out."""
    catalogue = read_catalogue(GERMAN)
    for message, text in change.items():
        if text is None:
            catalogue.delete(message)
        else:
            catalogue[message].string = text
    path = folder / locale / "LC_MESSAGES" / "veritracer.po"
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        write_po(file, catalogue)
    return folder


def test_every_message_has_a_german_translation_with_the_same_fields() -> None:
    catalogue = read_catalogue(GERMAN)
    known = {message.id: message for message in catalogue if message.id}
    wanted = messages()
    assert len(wanted) > 90
    assert not wanted - set(known)
    for message in known.values():
        assert not message.fuzzy
        one = message.id if isinstance(message.id, str) else message.id[0]
        texts = [message.string] if isinstance(message.string, str) else message.string
        fields = set(re.findall(r"%\((\w+)\)s", one))
        for text in texts:
            assert text
            assert set(re.findall(r"%\((\w+)\)s", text)) == fields, one
            assert re.findall(r"%[^(%]", text.replace("%%", "")) == []


def test_numbers_dates_and_lists_are_those_of_the_locale() -> None:
    german, english = Translator("de"), Translator("en")
    assert [german.format_value(v) for v in (1200.5, 0.1, True, "rent", None, 10**21)] == [
        "1.200,5",
        "0,1",
        "True",
        "rent",
        "nicht angegeben",
        "1e+21",
    ]
    assert english.format_value(1234567.25) == ENGLISH.format_value(1234567.25) == "1,234,567.25"
    day = datetime.date(2027, 3, 1)
    assert [Translator(name).format_date(day) for name in ("en", "en_GB", "de-AT")] == [
        "March 1, 2027",
        "1 March 2027",
        "1. März 2027",
    ]
    assert (german.join_list(["a", "b", "c"]), german.join_list([])) == ("a, b und c", "")
    assert german.ngettext("%(count)s level", "%(count)s levels", 2, count=2) == "2 Stufen"


def test_all_digits_are_kept() -> None:
    german = Translator("de")
    for number in (0.30000000000000004, 1 / 3, 123456789.123456, 5e-9, -0.25):
        assert german.format_value(number) == ENGLISH.format_value(number).translate(
            str.maketrans(",.", ".,")
        )


def test_locales_that_nobody_translated_are_refused(tmp_path: Path) -> None:
    assert locales() == ["en", "de"]
    for name in ("fr", "xx", "no such", ""):
        with pytest.raises(NoticeError, match="a locale among en, de, got"):
            Translator(name)
    with pytest.raises(NoticeError, match=r"a catalogue fr/LC_MESSAGES/veritracer\.po"):
        Translator("fr", tmp_path)


def test_a_catalogue_of_ones_own_comes_before_ours(tmp_path: Path) -> None:
    declined = "Your application was declined."
    folder = own_catalogue(tmp_path, "fr", {declined: "Votre demande a été refusée."})
    french = Translator("fr", folder)
    assert french.gettext(declined) == "Votre demande a été refusée."
    assert french.format_value(0.5) == "0,5"
    assert Translator("de").gettext(declined) == "Ihr Antrag wurde abgelehnt."


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"Your application was declined.": None}, "a translation of 'Your application was declined.'"),
        ({"Your application was declined.": ""}, "a translation of 'Your application was declined.'"),
        ({"Promise number: %(number)s": "Nummer"}, "'number' in the translation"),
        ({"Promise number: %(number)s": "Nummer %(numer)s"}, "'number' in the translation"),
        ({"Promise number: %(number)s": "%(number)s %d"}, "'number' in the translation"),
        ({"What to do": "%s"}, "no field in the translation"),
    ],
)
def test_a_catalogue_that_is_not_whole_is_refused(tmp_path: Path, change, said: str) -> None:
    folder = own_catalogue(tmp_path, "de", change)
    with pytest.raises(NoticeError, match=re.escape(said)):
        Translator("de", folder)


def test_a_file_that_is_no_catalogue_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "de" / "LC_MESSAGES" / "veritracer.po"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(NoticeError, match=r"a gettext catalogue, got .* cannot be read"):
        Translator("de", tmp_path)


def test_without_babel_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "babel", None)
    with pytest.raises(ModuleNotFoundError, match=re.escape("pip install 'veritracer[report]'")):
        Translator("de", tmp_path)


def test_english_sentences_need_neither_babel_nor_jinja2() -> None:
    program = (
        "import sys, torch, pandas as pd, veritracer as vt;"
        "from veritracer.schema import Feature;"
        "schema = vt.Schema([Feature('a', 'continuous', lower=0, upper=1)]);"
        "rows = pd.DataFrame({'a': [0.1, 0.9]});"
        "layer = torch.nn.Linear(1, 1);"
        "layer.weight.data.fill_(1.0); layer.bias.data.fill_(-0.5);"
        "encoding = vt.Encoding.fit(schema, rows);"
        "found = vt.Recourse(torch.nn.Sequential(layer), schema, encoding).explain(rows);"
        "assert found.sentence(0).startswith('Raise a from 0.1 to '), found.sentence(0);"
        "print([name for name in ('babel', 'jinja2') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=CLEAN, check=False
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")
