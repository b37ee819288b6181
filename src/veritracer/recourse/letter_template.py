"""A letter's template: found, checked and filled in, in a sandbox that sees nothing but its fields."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from veritracer.errors import LetterError, listing, message

Format = Literal["text", "html"]
FILES: dict[Format, str] = {"text": "letter.txt", "html": "letter.html"}


@dataclass(frozen=True)
class Template:
    """The source of a template, what it writes, and what it is called in a message."""

    source: str
    format: Format
    name: str

    @classmethod
    def of(cls, template: str | os.PathLike[str] | None, kind: Format | None) -> Template:
        """The template that is meant: a file, the text itself (which has a brace or two lines), or our own.

        Without ``kind`` a file that ends in .html is HTML, everything else text.
        """
        if kind is not None and kind not in get_args(Format):
            raise LetterError(message("format 'text' or 'html'", repr(kind), "choose one of them"))
        if template is None:
            own = FILES[kind or "text"]
            place = Path(__file__).parent / "templates" / own
            return cls(place.read_text(encoding="utf-8"), kind or "text", own)
        if isinstance(template, str) and ("{" in template or "\n" in template):
            return cls(template, kind or "text", "the template")
        place = Path(template)
        is_page = place.suffix.casefold() in (".html", ".htm")
        return cls(_read(place), kind or ("html" if is_page else "text"), place.name)

    def render(self, fields: Mapping[str, Any]) -> str:
        """The letter, with one end of line at its end; an unknown field is refused by name."""
        jinja2 = _jinja2()
        environment = _environment(autoescape=self.format == "html")
        try:
            unknown = sorted(
                jinja2.meta.find_undeclared_variables(environment.parse(self.source)) - {*fields}
            )
            if unknown:
                remedy = f"pass it to letter(), or use one of {', '.join(sorted(fields))}"
                raise LetterError(message(f"known fields in {self.name}", listing(unknown), remedy))
            return str(environment.from_string(self.source).render(fields)).strip() + "\n"
        except jinja2.TemplateSyntaxError as error:
            received = f"line {error.lineno}: {error.message}"
            raise LetterError(message(f"a Jinja2 template in {self.name}", received, "correct it")) from None
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            if isinstance(error, LetterError):
                raise
            remedy = "see the fields of a letter in docs/letters.md"
            expected = f"a template that can be filled in, {self.name}"
            raise LetterError(message(expected, str(error) or type(error).__name__, remedy)) from None


def _environment(*, autoescape: bool) -> Any:
    """An environment whose templates can reach our own ones (to extend them), and no other file."""
    jinja2 = _jinja2()
    return jinja2.sandbox.ImmutableSandboxedEnvironment(
        loader=jinja2.PackageLoader("veritracer.recourse"),
        autoescape=autoescape,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _jinja2() -> Any:
    """The package, which the base install does not have."""
    try:
        import jinja2.meta
        import jinja2.sandbox
    except ModuleNotFoundError as error:
        said = message("the package jinja2", "an install without it", "pip install 'veritracer[report]'")
        raise ModuleNotFoundError(said, name=error.name) from None
    return jinja2


def _read(place: Path) -> str:
    try:
        return place.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8"
        received = f"{place}, which can not be read ({why})"
        raise LetterError(message("a template file, or the template itself", received, "name one")) from None
