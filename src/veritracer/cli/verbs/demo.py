"""``veritracer demo``: a year in the life of promises, in a minute; or the examples of the paper, drawn."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veritracer import tablefiles
from veritracer.cli.options import AsJson, DataDir, Quiet, Seed
from veritracer.cli.printing import patience, percent, print_json, print_table, say
from veritracer.datasets.catalogue import check_source
from veritracer.defaults import DEMO_EPOCHS
from veritracer.errors import DataError, DataWarning, message
from veritracer.threads import only_compute

if TYPE_CHECKING:
    from veritracer.certificate import Certificate
    from veritracer.demo import Demo, Outcome
    from veritracer_bench.paper_figures import Example


def demo(
    out: Annotated[Path, typer.Option(help="The folder for the report.")] = Path("out"),
    dataset: Annotated[str, typer.Option(help="loans, or a dataset of the paper.")] = "loans",
    drift: Annotated[float, typer.Option(help="How strongly the years of loans differ.")] = 1.0,
    epochs: Annotated[
        int | None,
        typer.Option(
            min=1, help=f"Passes over the rows; {DEMO_EPOCHS} for loans, else chosen.", show_default=False
        ),
    ] = None,
    seed: Seed = 0,
    paper_figures: Annotated[
        bool, typer.Option("--paper", help="The paper's two-dimensional examples instead.")
    ] = False,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train, give recourse, let a year pass, retrain, and count which promises were kept."""
    with tablefiles.writable(out / "report.html") if out.is_dir() else _new_folder(out):
        if paper_figures:
            only_compute()
            _show_paper(out, as_json=as_json)
            return
        start = time.perf_counter()
        check_source(dataset, data_dir)
        from veritracer import demo as library

        only_compute()
        talks = not (quiet or as_json)
        with _steps(quiet=quiet or as_json) as tell:
            found = library.run(dataset, drift=drift, seed=seed, epochs=epochs, data_dir=data_dir, tell=tell)
            tell("writing the report")
            page = _write(found, out)
    if as_json:
        print_json(_fields(found, page, time.perf_counter() - start))
    if talks:
        _print_summary(found)
        say(f"The report: {page}", f"All of it took {time.perf_counter() - start:.0f} seconds.")


@contextmanager
def _new_folder(out: Path) -> Iterator[None]:
    """A folder that is made for the block, and gone again if the block fails."""
    if out.exists():
        raise DataError(message("a folder for the report", f"the file {out}", "choose another name"))
    made = [place for place in (out, *out.parents) if not place.exists()]
    with tablefiles.writable(made[-1]):
        out.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for place in made:
            with suppress(OSError):  # something is in it
                place.rmdir()
        raise


@contextmanager
def _steps(*, quiet: bool) -> Iterator[Any]:
    """Hears what is being done: a line for each step, and a spinner on a terminal."""
    with patience("starting", quiet=quiet) as spinner:

        def tell(step: str) -> None:
            if spinner is not None and sys.stderr.isatty():
                spinner.update(step)  # type: ignore[attr-defined]  # it is rich's Status
            elif not quiet:
                print(f"… {step}", file=sys.stderr, flush=True)

        yield tell


def _write(found: Demo, out: Path) -> Path:
    from veritracer.report.html import write_report

    today = found.scenario.today
    title = f"Recourse: {found.scenario.data.title[0].lower()}{found.scenario.data.title[1:]}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # numbers beyond a learned range
        return write_report(
            out / "report.html",
            found.model,
            today.X_test,
            today.y_test,
            recourse=found.recourse,
            title=title,
            comparison=found.comparison,
        )


def _print_summary(found: Demo) -> None:
    data, first = found.scenario.data, found.outcomes[0]
    rows = len(found.scenario.today.X_test)
    say(
        f"{data.title}: a model trained on {len(found.scenario.today.X_train):,} rows is right about "
        f"{percent(first.accuracy)} of {rows:,} others; it turns {first.survival.rows:,} of them down.",
        "",
    )
    if found.example is not None:
        _tell_example(found, found.example)
    _tell_beliefs(found)
    say(f"Then {found.scenario.passing}. Each method's own model is retrained in two ordinary ways.", "")
    header = (
        "promises kept",
        "declined",
        "promised",
        "after fine-tuning",
        "after training anew",
        "mean cost",
    )
    print_table("What became of the promises", header, [_line(outcome) for outcome in found.outcomes])
    say(
        "Fine-tuning goes on from today's weights on the new rows; training anew starts from nothing, with "
        "another seed. Cost is the L1 distance in scaled units. Gradient search is taken as it is published:"
        " it may ask for fractions of a category, or for another age.",
        f"An update that was told to keep our promises keeps {percent(found.kept)} of them.",
        "",
    )


def _tell_beliefs(found: Demo) -> None:
    """What others make of true advice, and of the hollow kind beside it."""
    truth = ["really creditworthy then"] if found.beliefs[0].true is not None else []
    header = ("advice", "certified", "mean cost", "a judge accepts", *truth)
    rows = [
        [each.method, percent(each.certified), f"{each.cost:.2f}", percent(each.judged)]
        + ([] if each.true is None else [percent(each.true)])
        for each in found.beliefs
    ]
    print_table("Whether anybody else believes it", header, rows)
    say(
        "Both are certified, and a certificate does not say which improves anybody: the judge is a "
        "gradient-boosted model of the same rows that took no part in either.",
        "",
    )


def _tell_example(found: Demo, i: int) -> None:
    from veritracer.formatting import format_value

    person = found.recourse.original.iloc[i]
    told = ", ".join(f"{name} {format_value(value)}" for name, value in person.items())
    say(f"One of them: {told}.", f"What this person is told: {found.recourse.sentence(i)}", "")


def _line(outcome: Outcome) -> list[str]:
    survival = outcome.survival
    return [
        survival.method,
        f"{survival.rows:,}",
        f"{survival.given:,}",
        percent(outcome.kept_fine_tuned),
        percent(outcome.kept_from_scratch),
        "–" if survival.cost is None else f"{survival.cost:.2f}",
    ]


def _fields(found: Demo, page: Path, seconds: float) -> dict[str, Any]:
    methods = [
        {
            **asdict(outcome.survival),
            "kept_fine_tuned": outcome.kept_fine_tuned,
            "kept_from_scratch": outcome.kept_from_scratch,
            "accuracy": outcome.accuracy,
            "accuracy_fine_tuned": outcome.accuracy_fine_tuned,
            "accuracy_from_scratch": outcome.accuracy_from_scratch,
        }
        for outcome in found.outcomes
    ]
    sentence = None if found.example is None else found.recourse.sentence(found.example)
    return {
        "dataset": found.scenario.data.name,
        "passing": found.scenario.passing,
        "example": sentence,
        "methods": methods,
        "beliefs": [asdict(each) for each in found.beliefs],
        "kept_by_update": found.kept,
        "report": str(page),
        "seconds": round(seconds, 1),
    }


def _show_paper(out: Path, *, as_json: bool) -> None:
    """Certify and draw the examples into the folder ``out``, and print what to conclude."""
    from veritracer_bench.paper_figures import CONCLUSIONS, DELTA, certificates, draw

    with patience("drawing"):
        found = certificates()
        picture = draw(out / "paper_examples.png")
    if as_json:
        examples = [_example_fields(*pair) for pair in found]
        print_json({"delta": DELTA, "picture": str(picture), "examples": examples})
        return
    header = ("model", "x′", "certified", "method", "worst logit", "radius / δ")
    print_table(f"x = (4, 1), δ = {DELTA:g}", header, [_example_cells(*pair) for pair in found])
    say(*CONCLUSIONS, f"The picture: {picture}")


def _example_fields(example: Example, certificate: Certificate | None) -> dict[str, Any]:
    kept = ("certified", "method", "conditional", "worst_logit", "radius")
    known = {name: getattr(certificate, name) for name in kept} if certificate else None
    return {"model": example.name, "counterfactual": example.counterfactual, "certificate": known}


def _example_cells(example: Example, certificate: Certificate | None) -> list[str]:
    if example.counterfactual is None or certificate is None:
        return [example.name, "none exists", "", "", "", ""]
    at = "({:g}, {:g})".format(*example.counterfactual)
    numbers = [f"{certificate.worst_logit:.3f}", f"{certificate.radius or 0:.3f}"]
    return [example.name, at, "yes" if certificate.certified else "unknown", certificate.method, *numbers]
