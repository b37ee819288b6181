"""Columns whose names look like a protected characteristic: nobody is told to be another person.

A guess from the name alone, in some European languages. It is a proposal: ``Schema.infer(free=...)`` or an
edit of the schema takes it back.
"""

from __future__ import annotations

import re
import unicodedata

_WORDS: dict[str, str] = {
    "age": "age ages alter edad eta idade leeftijd alder",
    "sex or gender": "sex gender geschlecht sexe genre sexo genero sesso genere geslacht kon male female",
    "ethnicity": "race ethnicity ethnic ethnie ethnique etnia rasse hispanic",
    "nationality": "nationality citizenship citizen foreign foreigner immigrant nationalite nationalitat "
    "staatsangehorigkeit nacionalidad nacionalidade nazionalita nationaliteit",
    "religion": "religion religious faith konfession religione religiao",
    "marital status": "marital married familienstand personal_status marital_status civil_status etat_civil "
    "estado_civil stato_civile burgerlijke_staat",
    "disability": "disability disabled handicap handicapped behinderung discapacidad invalidite disabilita",
    "date of birth": "birth birthdate birthday birthyear dob geburtsdatum geburtstag geburtsjahr naissance "
    "nacimiento nascimento nascita geboortedatum yob",
    "pregnancy": "pregnant pregnancy schwanger schwangerschaft enceinte embarazo",
    "sexual orientation": "sexual_orientation",
}
_KNOWN = {word: kind for kind, words in _WORDS.items() for word in words.split()}

# The age of a thing is nobody's age.
_THINGS = frozenset(
    {"account", "accounts", "asset", "building", "business", "car", "card", "company", "contract", "credit"}
    | {"debt", "device", "equipment", "file", "history", "home", "house", "line", "lines", "loan", "policy"}
    | {"property", "trade", "trades", "vehicle"}
)


def characteristic(name: str) -> str | None:
    """The protected characteristic that a column of this name looks like; None where it looks like none.

    >>> characteristic("applicantAge"), characteristic("Familienstand"), characteristic("mortgage")
    ('age', 'marital status', None)
    """
    words = words_of(name)
    for first, word in enumerate(words):
        pair = "_".join(words[first : first + 2])
        kind = _KNOWN.get(pair) or _KNOWN.get(word)
        if kind is not None and not (kind == "age" and _THINGS.intersection(words)):
            return kind
    return None


def words_of(name: str) -> list[str]:
    """The words of a name in small letters without accents: of ``creditAge`` and ``Credit age`` alike."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", plain)
    return re.findall(r"[a-z]+", spaced.lower())
