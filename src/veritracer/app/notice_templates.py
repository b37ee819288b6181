"""Fill in templates of notices, in a sandbox that sees nothing but their fields, and print them as PDF."""

from __future__ import annotations

import io
import os
import re
import warnings
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from veritracer.app.i18n import Translator
from veritracer.errors import NoticeError, listing, message

Format = Literal["text", "html"]
FILES: dict[Format, str] = {"text": "notice.txt", "html": "notice.html"}
DRAFTS: dict[Format, str] = {"text": "draft.txt", "html": "draft.html"}
"""What stands at the beginning of a draft."""

BODY = re.compile(r"<body\b[^>]*>", re.IGNORECASE)
PLACE = Path(__file__).parent / "templates"

TRANSLATING = ("_", "gettext", "ngettext")
"""The translator of a template."""


@dataclass(frozen=True)
class Template:
    """The source of a template, what it writes, and what it is called in a message."""

    source: str
    format: Format
    name: str

    @classmethod
    def of(cls, template: str | os.PathLike[str] | None, kind: Format | None) -> Template:
        """Return the template that is meant: a file, the text itself (a brace or two lines), or our own.

        Without ``kind`` a file that ends in .html is HTML, everything else text.
        """
        if kind is not None and kind not in get_args(Format):
            raise NoticeError(message("format 'text' or 'html'", repr(kind), "choose one of them"))
        if template is None:
            own = FILES[kind or "text"]
            return cls((PLACE / own).read_text(encoding="utf-8"), kind or "text", own)
        if isinstance(template, str) and ("{" in template or "\n" in template):
            return cls(template, kind or "text", "the template")
        place = Path(template)
        is_page = place.suffix.casefold() in (".html", ".htm")
        return cls(_read(place), kind or ("html" if is_page else "text"), place.name)

    def render(self, fields: Mapping[str, Any], translate: Translator) -> str:
        """Fill in the template; refuse an unknown field by name."""
        jinja2 = _jinja2()
        environment = _environment(translate, autoescape=self.format == "html")
        try:
            unknown = sorted(
                jinja2.meta.find_undeclared_variables(environment.parse(self.source))
                - {*fields, *TRANSLATING}
            )
            if unknown:
                remedy = f"pass it as a field, or use one of {', '.join(sorted(fields))}"
                raise NoticeError(message(f"known fields in {self.name}", listing(unknown), remedy))
            text = str(environment.from_string(self.source).render(fields)).strip() + "\n"
            return self._as_draft(text, environment, translate) if fields["draft"] else text
        except jinja2.TemplateSyntaxError as error:
            received = f"line {error.lineno}: {error.message}"
            raise NoticeError(message(f"a Jinja2 template in {self.name}", received, "correct it")) from None
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            if isinstance(error, NoticeError):
                raise
            remedy = "see the fields of a notice in docs/reference/notices.md"
            expected = f"a template that can be filled in, {self.name}"
            raise NoticeError(message(expected, str(error) or type(error).__name__, remedy)) from None

    def _as_draft(self, text: str, environment: Any, translate: Translator) -> str:
        """Title each page of a draft as one, whatever the template says."""
        title = environment.get_template(DRAFTS[self.format]).render(language=translate.locale)
        if self.format == "text":
            end = translate.gettext("DRAFT")
            return "\f".join(f"{title}\n\n{page.strip()}\n\n{end}\n" for page in text.split("\f"))
        return BODY.sub(lambda found: found[0] + title, text, count=1) if BODY.search(text) else title + text


def page_pdf(page: str) -> bytes:
    """Return a notice in HTML as PDF, as it would be printed; nothing is fetched from anywhere for it."""
    try:
        # Warnings are of what it imports. Without Pango it prints a few lines as well, before the error.
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            import weasyprint
            from weasyprint.urls import URLFetcher
    except ModuleNotFoundError as error:
        said = message("the package weasyprint", "an install without it", "pip install 'veritracer[pdf]'")
        raise NoticeError(said) from error
    except OSError as error:  # what it needs from the system: Pango
        remedy = "install Pango (Debian: apt install libpango-1.0-0 libpangoft2-1.0-0 libharfbuzz-subset0)"
        received = str(error).splitlines()[0]
        raise NoticeError(message("the libraries that weasyprint needs", received, remedy)) from None
    fetcher = URLFetcher(allowed_protocols=("data",))
    made: bytes = weasyprint.HTML(string=page, url_fetcher=fetcher).write_pdf(pdf_tags=True)
    return made


def _environment(translate: Translator, *, autoescape: bool) -> Any:
    """Return an environment whose templates can reach our own ones (to extend them), and no other file."""
    jinja2 = _jinja2()
    found = jinja2.sandbox.ImmutableSandboxedEnvironment(
        loader=jinja2.FileSystemLoader(PLACE),
        autoescape=autoescape,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    translate.install(found)
    return found


def _jinja2() -> Any:
    """Return the package, which the base install does not have."""
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
        received = f"{place}, which cannot be read ({why})"
        raise NoticeError(message("a template file, or the template itself", received, "name one")) from None
