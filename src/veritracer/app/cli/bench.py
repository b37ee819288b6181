"""``veritracer bench``: the paper's evaluation beside our numbers; ``bench figures``: its two examples."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from veritracer.app.cli.options import AsJson, DataDir, EngineName, Quiet, names
from veritracer.app.cli.output import note, print_json, print_table, say, spinner
from veritracer.engines import make_engine
from veritracer.errors import DataError, message
from veritracer.files import output_folder, writable
from veritracer.threads import cores, only_compute

if TYPE_CHECKING:
    from veritracer.certificate import Certificate
    from veritracer_bench import Plan, Standing
    from veritracer_bench.paper_figures import Example

NOT_ACHIEVED = 1
PICTURES = "pip install 'veritracer[bench]'; the tables are whole without it"
EVERY = 10.0
"""Seconds between two lines about progress, where there is no terminal."""

Names = list[str] | None
RecipeName = Literal["paper", "paper-text"]


app = typer.Typer(invoke_without_command=True)


@app.callback()
def bench(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="The folder of the run; a second run goes on there.")] = Path(
        "out/bench"
    ),
    quick: Annotated[bool, typer.Option("--quick", help="A cut of under five minutes on two cores.")] = False,
    smoke: Annotated[bool, typer.Option("--smoke", help="The smallest cut, on data without files.")] = False,
    datasets: Annotated[
        Names, typer.Option(metavar="NAME,...", help="Which ones.", show_default=False)
    ] = None,
    methods: Annotated[
        Names,
        typer.Option(metavar="NAME,...", help="Which ones; module:Class is yours.", show_default=False),
    ] = None,
    tables: Annotated[Names, typer.Option(metavar="NAME,...", help="Which ones.", show_default=False)] = None,
    seeds: Annotated[
        int | None, typer.Option(min=2, help="Models of each kind (10).", show_default=False)
    ] = None,
    rows: Annotated[
        int | None, typer.Option(min=1, help="Test rows at most (2000).", show_default=False)
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs of training.", show_default=False)] = None,
    recipe: Annotated[
        RecipeName | None,
        typer.Option(
            help="Train and measure as the paper's code does (paper), or with the settings of its text "
            "(paper-text): the generator alone, on all test rows.",
            show_default=False,
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; every core if left out.", show_default=False)
    ] = None,
    engine: EngineName = "local",
    stop_after: Annotated[
        float | None,
        typer.Option(
            min=0.0, help="Begin nothing after so many seconds; run again to go on.", show_default=False
        ),
    ] = None,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run the paper's evaluation, or go on with it: every finished result is a file that is not made again.

    Prints the tables, and writes results/DATASET.*.csv, tables.json, results.md and plots into the folder.
    Exits with 1 while results are missing.

    With --recipe the models of one dataset and method are trained together, and go on from their last
    checkpoint; methods are veritracer, crown-ibp, ibp, counternet and standard, tables are ri and loo.
    """
    if context.invoked_subcommand is not None:
        return
    _check(out)
    if recipe is not None:
        _reproduce(
            recipe,
            out,
            {"datasets": names(datasets), "methods": names(methods), "experiments": names(tables)},
            seeds=seeds or 10,
            options={"epochs": epochs, "test_rows": rows, "data_dir": data_dir},
            workers=workers or cores(),
            stop_after=stop_after,
            quiet=quiet,
            as_json=as_json,
        )
        return
    import veritracer_bench as library

    only_compute()
    plan = _plan(data_dir, quick=quick, smoke=smoke)
    given = {"datasets": names(datasets), "methods": names(methods), "tables": names(tables)}
    chosen: dict[str, Any] = {name: tuple(value) for name, value in given.items() if value}
    chosen |= {k: v for k, v in (("seeds", seeds), ("rows", rows), ("epochs", epochs)) if v is not None}
    plan = replace(plan, **chosen).checked()
    _make(out)
    with _told(quiet=quiet) as tell:
        run = library.Run(plan, out, tell)
        complete = run.go(make_engine(engine, workers), stop_after=stop_after)
    cells = run.cells()
    made = library.write_all(out, cells, plan.tables)
    note((f"{what} failed: {why}" for what, why in run.failed.items()), quiet=quiet)
    if not library.can_draw():
        note([message("matplotlib for the pictures", "an install without it", PICTURES)], quiet=quiet)
    if as_json:
        summary = {"results": len(cells), "wanted": len(run.keys), "failed": run.failed}
        print_json({"out": str(out), **summary, "measured": run.measured, "trained": run.trained})
    elif not quiet:
        say(*(library.markdown(table) for table in made))
        say(f"{len(cells):,} of {len(run.keys):,} results, {run.measured:,} of them new: {out}")
    if not complete:
        raise typer.Exit(NOT_ACHIEVED)


def _reproduce(
    recipe: str,
    out: Path,
    asked: dict[str, Names],
    *,
    seeds: int,
    options: dict[str, Any],
    workers: int,
    stop_after: float | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Run what is missing of the paper's experiments with its recipe, and print the summary."""
    from veritracer_bench import reproduction

    defaults = {"experiments": ["ri"], "datasets": ["heloc"], "methods": list(reproduction.COMPARED)}
    jobs = reproduction.jobs_of(**{k: asked[k] or default for k, default in defaults.items()}, seeds=seeds)
    folder = options.pop("data_dir")
    chosen = reproduction.Options(
        out=str(out), recipe=recipe, data_dir=None if folder is None else str(folder), **options
    )
    _make(out)
    with spinner("training", quiet=quiet):
        left = reproduction.run(jobs, chosen, workers, float("inf") if stop_after is None else stop_after)
    found = reproduction.summaries(out)
    if as_json:
        print_json(
            {"out": str(out), "models": len(jobs), "missing": left, "summary": reproduction.plain(found)}
        )
    elif not quiet:
        header, rows = reproduction.lines_of(found)
        for row in rows:
            print_table(
                " ".join(row[:3]), ("what", f"{row[3]} models"), [*zip(header[4:], row[4:], strict=True)]
            )
        say(f"{len(jobs) - left:,} of {len(jobs):,} models: {out}. Numbers in brackets are the paper's.")
    if left:
        raise typer.Exit(NOT_ACHIEVED)


@app.command(epilog="Example: veritracer bench figures --out out")
def figures(
    out: Annotated[Path, typer.Option(help="The folder for the picture.")] = Path("out"),
    as_json: AsJson = False,
) -> None:
    """Certify and draw the two-dimensional examples of the paper, figures 1 and 2."""
    from veritracer_bench.paper_figures import CONCLUSIONS, DELTA, certificates, draw

    only_compute()
    with output_folder(out), spinner("Drawing"):
        found = certificates()
        picture = draw(out / "paper_examples.png")
    if as_json:
        examples = [_example_fields(*pair) for pair in found]
        print_json({"delta": DELTA, "picture": str(picture), "examples": examples})
        return
    header = ("model", "x′", "certified", "method", "worst logit", "radius / δ")
    print_table(f"x = (4, 1), δ = {DELTA:g}", header, [_example_cells(*pair) for pair in found])
    say(*CONCLUSIONS, f"Picture: {picture}")


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


def _plan(data_dir: Path | None, *, quick: bool, smoke: bool) -> Plan:
    import veritracer_bench as library

    folder = None if data_dir is None else str(data_dir)
    if smoke:
        return replace(library.smoke(), data_dir=folder)
    if quick:
        from veritracer import datasets

        there = all(datasets.info(name, data_dir=folder).path for name in ("heloc", "ctg"))
        return library.quick(folder, has_files=there)
    return library.Plan(data_dir=folder)


def _check(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise DataError(message("a folder for --out", f"the file {out}", "name another one"))


def _make(out: Path) -> None:
    existing = next(place for place in (out, *out.absolute().parents) if place.exists())
    with writable(existing / "results.md"):
        out.mkdir(parents=True, exist_ok=True)


@contextmanager
def _told(*, quiet: bool) -> Iterator[Callable[[Standing], None]]:
    """Hears how far the run is: a bar with the time left on a terminal, a line now and then elsewhere."""
    if quiet:
        yield lambda _: None
        return
    if not sys.stderr.isatty():
        yield _Lines()
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("training", total=None, left="")

        def tell(now: Standing) -> None:
            bar.update(task, description=now.last, total=now.wanted, completed=now.done, left=_left(now))

        yield tell


class _Lines:
    """Prints where the run stands, not too often."""

    def __init__(self) -> None:
        self.last = 0.0

    def __call__(self, now: Standing) -> None:
        if time.monotonic() - self.last < EVERY and now.done < now.wanted:
            return
        self.last = time.monotonic()
        print(f"… {now.done} of {now.wanted} results{_left(now)} ({now.last})", file=sys.stderr, flush=True)


def _left(now: Standing) -> str:
    if now.seconds_left is None or now.done == now.wanted:
        return ""
    minutes, seconds = divmod(round(now.seconds_left), 60)
    return f", about {minutes}:{seconds:02d} left"
