"""The report is one whole page: it needs no network, runs nothing, and says why it cannot be made."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from report_cases import IMAGE, SCRIPT, Case

import veritracer as vt
from edited_results import edited
from html_pages import Page
from veritracer.app.report import write_report
from veritracer.errors import DataError, ParamSetError

FIGURES = {
    "reliability",
    "robustness",
    "cost",
    "changes",
    "features",
    "sizes",
    "approvals",
    "groups",
    "rates",
    "losses",
}
SECTIONS = {
    "model",
    "certificates",
    "acceptance",
    "effort",
    "approval-rates",
    "costs",
    "examples",
    "training",
    "data",
    "origins",
}


@pytest.fixture(scope="module")
def path(lending: Case, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("report") / "deep" / "report.html"
    model, X, y, recourse = lending
    return write_report(target, model, X, y, recourse=recourse, title="A title")


@pytest.fixture(scope="module")
def page(path: Path) -> Page:
    return Page.read(path)


def attributes(page: Page) -> list[tuple[str, str]]:
    return [(name, value or "") for _, found in page.tags for name, value in found.items()]


def test_every_tag_closes(page: Page) -> None:
    assert page.unbalanced == []
    assert page.open == []


def test_all_sections_and_figures_are_there(page: Page) -> None:
    assert page.by_id.keys() >= SECTIONS | FIGURES
    assert sum(tag == "article" for tag, _ in page.tags) == 5
    assert "A title" in page.text


def test_every_picture_is_named_and_concluded(page: Page) -> None:
    pictures = [found for tag, found in page.tags if tag == "svg"]
    assert len(pictures) == len(FIGURES)
    for found in pictures:
        assert found["role"] == "img"
        for reference in ("aria-labelledby", "aria-describedby"):
            assert page.by_id[str(found[reference])].strip(), reference
    for figure in FIGURES:
        assert re.search(r"\d", page.caption(figure)), f"{figure} concludes without a number"


def test_every_picture_has_its_numbers_as_a_table(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for figure in FIGURES:
        part = text.partition(f'<figure id="{figure}">')[2].partition("</figure>")[0]
        assert part.count("<table>") == 1
        assert part.count("<tr>") > 1, f"{figure} has no rows"


def test_nothing_is_fetched_and_nothing_runs(page: Page, path: Path) -> None:
    assert page.names().isdisjoint({"script", "link", "img", "iframe", "object", "embed", "form", "base"})
    for name, value in attributes(page):
        assert not name.startswith("on"), name
        assert name not in {"src", "srcset", "xlink:href", "action"}, name
        assert "://" not in value, value
        assert name != "href" or value.startswith("#"), value
    style = path.read_text(encoding="utf-8").split("<style>")[1].split("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style
    assert any(n == "content" and v.startswith("default-src 'none'") for n, v in attributes(page))


def test_links_lead_somewhere(page: Page) -> None:
    sections = [found["href"] for tag, found in page.tags if tag == "a"]
    assert set(sections) == {f"#{section}" for section in SECTIONS}
    shapes = {found["href"] for tag, found in page.tags if tag == "use"}
    assert shapes <= {f"#{identity}" for identity in page.by_id}


def test_it_is_small(path: Path) -> None:
    assert path.stat().st_size < 250_000
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]


def test_names_and_values_can_not_break_out(hostile: Case, tmp_path: Path) -> None:
    model, X, y, recourse = hostile
    assert recourse.certified.any(), "the case must fill every section"
    target = write_report(tmp_path / "r.html", model, X, y, recourse=recourse, title=SCRIPT)
    page = Page.read(target)
    assert page.unbalanced == []
    assert page.names().isdisjoint({"script", "img", "b", "i"})
    assert not [name for name, _ in attributes(page) if name.startswith("on") or name == "src"]
    for place in ("features", "features-caption", "data", "examples", "model", "model"):
        assert SCRIPT in page.by_id[place], place
    assert IMAGE in page.by_id["costs"]


def test_the_same_inputs_give_the_same_page(lending: Case, path: Path, tmp_path: Path) -> None:
    model, X, y, recourse = lending
    again = write_report(tmp_path / "r.html", model, X, y, recourse=recourse, title="A title")
    dated = re.compile(r"<time>.*?</time>")
    first, second = (dated.sub("", p.read_text(encoding="utf-8")) for p in (path, again))
    assert first == second


def test_recourse_is_computed_where_it_is_absent(hostile: Case, tmp_path: Path) -> None:
    model, X, y, _ = hostile
    ours = write_report(tmp_path / "a.html", model, X.head(40), y.head(40))
    given = write_report(
        tmp_path / "b.html", model, X.head(40), y.head(40), recourse=model.explain(X.head(40))
    )
    assert Page.read(ours).by_id["effort"] == Page.read(given).by_id["effort"]


def test_without_labels_quality_is_not_claimed(lending: Case, tmp_path: Path) -> None:
    model, X, _, recourse = lending
    page = Page.read(write_report(tmp_path / "r.html", model, X, recourse=recourse))
    assert page.by_id.keys().isdisjoint({"reliability"})
    assert "No labels were given" in page.by_id["model"]
    assert "accuracy" not in page.by_id["model"]


def test_one_kind_of_label_has_no_ranking(lending: Case, tmp_path: Path) -> None:
    model, X, y, _ = lending
    same = (y == "yes").to_numpy()
    page = Page.read(write_report(tmp_path / "r.html", model, X[same], y[same]))
    assert "reliability" not in page.by_id
    assert "All labels of the table are equal" in page.by_id["model"]


def test_nobody_turned_down_is_said(lending: Case, tmp_path: Path) -> None:
    model, X, y, recourse = lending
    happy = recourse.favourable
    page = Page.read(write_report(tmp_path / "r.html", model, X[happy], y[happy]))
    assert "The model declines no row of this table" in page.by_id["certificates"]
    assert page.unbalanced == []


def test_alternatives_count_a_person_once(lending: Case, tmp_path: Path) -> None:
    model, X, y, _ = lending
    rows = slice(0, 60)
    several = model.explain(X.iloc[rows], n=2)
    assert len(several) > 60
    page = Page.read(write_report(tmp_path / "r.html", model, X.iloc[rows], y.iloc[rows], recourse=several))
    assert "of 60 applications declined" in page.text
    first = (several.alternative == 0) & (several.status != "none")
    assert f"the mean {several.n_changes[first].mean():.2f}" in page.caption("changes")


def test_recourse_of_other_rows_is_refused(lending: Case, tmp_path: Path) -> None:
    model, X, y, recourse = lending
    with pytest.raises(DataError, match="recourse for these"):
        write_report(tmp_path / "r.html", model, X.iloc[::-1], y.iloc[::-1], recourse=recourse)
    with pytest.raises(DataError, match="recourse for these"):
        write_report(tmp_path / "r.html", model, X.head(5), y.head(5), recourse=recourse)
    other = edited(recourse, model_digest="0" * 64)
    with pytest.raises(ParamSetError, match="recourse of this model"):
        write_report(tmp_path / "r.html", model, X, y, recourse=other)
    with pytest.raises(DataError, match="one for each row"):
        write_report(tmp_path / "r.html", model, X, y.head(3), recourse=recourse)
    with pytest.raises(DataError, match="at least one row"):
        write_report(tmp_path / "r.html", model, X.head(0))
    assert not list(tmp_path.iterdir())


def test_a_report_is_whole_or_absent(lending: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Path, target: Path) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    model, X, y, _ = lending
    with pytest.raises(OSError, match="disk full"):
        write_report(tmp_path / "r.html", model, X.head(30), y.head(30))
    assert not list(tmp_path.iterdir())


def test_a_saved_model_gives_the_same_report(hostile: Case, tmp_path: Path) -> None:
    model, X, y, _ = hostile
    model.save(tmp_path / "model")
    before = write_report(tmp_path / "a.html", model, X.head(40), y.head(40))
    after = write_report(tmp_path / "b.html", vt.load(tmp_path / "model"), X.head(40), y.head(40))
    assert Page.read(before).by_id["effort"] == Page.read(after).by_id["effort"]


def test_the_first_screen_says_what_is_proved_and_no_more(lending: Case, tmp_path: Path) -> None:
    model, X, _, recourse = lending
    rows = X.head(40)
    today = Page.read(write_report(tmp_path / "a.html", model, rows, recourse=model.explain(rows, kappa=0.0)))
    assert "for today's model only" in today.text
    assert "the advice will keep working" not in today.text
    conditional = edited(recourse, conditional=recourse.certified)
    page = Page.read(write_report(tmp_path / "b.html", model, X, recourse=conditional))
    some = int((recourse.certified & ~recourse.favourable).sum())
    assert f"{some} of the certificates hold only for versions that still decide" in page.text
