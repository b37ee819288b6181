"""A page as a browser's parser would see it: which tags, which attributes, whether all of them close."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

VOID = {"meta", "br", "hr", "img", "input", "link", "source", "wbr", "col"}


class Page(HTMLParser):
    """Tags with their attributes in order, the text of each element by id, and what was left open."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[tuple[str, str | None]] = []
        self.unbalanced: list[str] = []
        self.by_id: dict[str, str] = {}
        self.text = ""
        self.feed(source)
        self.close()

    @classmethod
    def read(cls, path: Path) -> Page:
        return cls(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        if tag not in VOID:
            self.open.append((tag, found.get("id")))
        if found.get("id"):
            assert found["id"] not in self.by_id, f"the id {found['id']} twice"
            self.by_id[str(found["id"])] = ""

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open[-1][0] != tag:
            self.unbalanced.append(tag)
        else:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        if any(tag == "style" for tag, _ in self.open):
            return
        self.text += data
        for _, identity in self.open:
            if identity:
                self.by_id[identity] += data

    def names(self) -> set[str]:
        return {tag for tag, _ in self.tags}

    def caption(self, figure: str) -> str:
        return self.by_id[f"{figure}-caption"].replace("\u00a0", " ")
