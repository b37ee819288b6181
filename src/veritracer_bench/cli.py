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

from veritracer.app.cli.options import AsJson, DataDir, EngineName, Force, Quiet, names
from veritracer.app.cli.output import note, print_json, print_table, say, spinner
from veritracer.app.cli.places import check_new
from veritracer.engines import make_engine
from veritracer.errors import message
from veritracer.files import output_folder
from veritracer.threads import cores, only_compute

if TYPE_CHECKING:
    from veritracer.certificate import Certificate
    from veritracer_bench.paper_figures import Example
    from veritracer_bench.running import RunProgress

INCOMPLETE = 1
PICTURES = "pip install 'veritracer[bench]'; the tables are complete without it"
SECONDS_BETWEEN_LINES = 10.0
"""Seconds between two lines about progress, where there is no terminal."""

Names = list[str] | None
RecipeName = Literal["paper", "paper-text"]


def _some(metavar: str, description: str) -> Any:
    return typer.Option(metavar=metavar, help=description, show_default=False)


app = typer.Typer(invoke_without_command=True)


@app.callback()
def bench(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Folder of the run; a second run continues there.")] = Path(
        "out/bench"
    ),
    quick: Annotated[bool, typer.Option("--quick", help="Under five minutes on two cores.")] = False,
    smoke: Annotated[bool, typer.Option("--smoke", help="The smallest run, on data without files.")] = False,
    datasets: Annotated[Names, _some("NAME,...", "Datasets.")] = None,
    methods: Annotated[Names, _some("NAME,...", "Methods; module:Class is one of yours.")] = None,
    tables: Annotated[Names, _some("NAME,...", "Tables.")] = None,
    seeds: Annotated[
        int | None, typer.Option(min=2, help="Models of each kind (10).", show_default=False)
    ] = None,
    rows: Annotated[
        int | None, typer.Option(min=1, help="Test rows at most (2000).", show_default=False)
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Training epochs.", show_default=False)] = None,
    recipe: Annotated[
        RecipeName | None,
        typer.Option(
            help="Train and measure as the paper's code does (paper), or with the settings of its text "
            "(paper-text): the generator alone, on all test rows.",
            show_default=False,
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; by default one for each core.", show_default=False)
    ] = None,
    engine: EngineName = "local",
    stop_after: Annotated[
        float | None,
        typer.Option(
            min=0.0, help="Start nothing after this many seconds; run again to continue.", show_default=False
        ),
    ] = None,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run the paper's evaluation, or continue it: every finished result is a file and is not made again.

    Prints the tables, and writes results/DATASET.*.csv, tables.json, results.md, appendix.md and plots into
    the folder. Exits with 1 while results are missing.

    With --recipe the models of one dataset and method are trained together, and continue from their last
    checkpoint; methods are veritracer, crown-ibp, ibp, counternet and standard, tables are ri and loo.
    """
    if context.invoked_subcommand is not None:
        return
    given = {"datasets": names(datasets), "methods": names(methods), "tables": names(tables)}
    chosen: dict[str, Any] = {name: tuple(value) for name, value in given.items() if value}
    with output_folder(out):
        if recipe is None:
            folder = None if data_dir is None else str(data_dir)
            sizes = {"seeds": seeds, "rows": rows, "epochs": epochs}
            chosen |= {name: value for name, value in sizes.items() if value is not None}
            size = "quick" if quick and not smoke else "smoke" if smoke else "full"
            complete = _evaluate(
                out, size, folder, chosen, (engine, workers), stop_after, quiet=quiet, as_json=as_json
            )
        else:
            options = {"recipe": recipe, "epochs": epochs, "test_rows": rows, "data_dir": data_dir}
            chosen |= {"seeds": seeds or 10}
            complete = _reproduce(
                out, options, chosen, workers or cores(), stop_after, quiet=quiet, as_json=as_json
            )
    if not complete:
        raise typer.Exit(INCOMPLETE)


def _evaluate(
    out: Path,
    size: str,
    data_dir: str | None,
    chosen: dict[str, Any],
    engine: tuple[Any, int | None],
    stop_after: float | None,
    *,
    quiet: bool,
    as_json: bool,
) -> bool:
    """Measure what is missing of a plan, write and print its tables; return whether nothing is missing."""
    from veritracer_bench.page import can_draw, write_all
    from veritracer_bench.plan import Plan, quick_plan, smoke_plan
    from veritracer_bench.running import Run
    from veritracer_bench.tables import markdown

    only_compute()
    if size == "full":
        plan = Plan(data_dir=data_dir)
    else:
        plan = quick_plan(data_dir) if size == "quick" else smoke_plan(data_dir)
    plan = replace(plan, **chosen).checked()
    with _progress(quiet=quiet) as on_progress:
        run = Run(plan, out, on_progress)
        complete = run.go(make_engine(*engine), stop_after=stop_after)
    cells = run.cells()
    tables = write_all(out, cells, plan.tables)
    note((f"{task} failed: {why}" for task, why in run.failed.items()), quiet=quiet)
    if not can_draw():
        note([message("matplotlib for the pictures", "an install without it", PICTURES)], quiet=quiet)
    if as_json:
        counts = {"results": len(cells), "wanted": len(run.keys), "failed": run.failed}
        print_json({"out": str(out), **counts, "measured": run.measured, "trained": run.trained})
    elif not quiet:
        say(*(markdown(table) for table in tables))
        say(f"{len(cells):,} of {len(run.keys):,} results, {run.measured:,} of them new: {out}")
    return complete


def _reproduce(
    out: Path,
    options: dict[str, Any],
    chosen: dict[str, Any],
    workers: int,
    stop_after: float | None,
    *,
    quiet: bool,
    as_json: bool,
) -> bool:
    """Run what is missing of the paper's experiments with its recipe; return whether nothing is missing."""
    from veritracer_bench import reproduction

    jobs = reproduction.jobs_of(
        experiments=list(chosen.get("tables", ["ri"])),
        datasets=list(chosen.get("datasets", ["heloc"])),
        methods=list(chosen.get("methods", reproduction.COMPARED)),
        seeds=chosen["seeds"],
    )
    folder = options.pop("data_dir")
    settings = reproduction.Options(out=str(out), data_dir=None if folder is None else str(folder), **options)
    with spinner("training", quiet=quiet):
        left = reproduction.run(jobs, settings, workers, float("inf") if stop_after is None else stop_after)
    found = reproduction.summaries(out)
    if as_json:
        summary = reproduction.plain(found)
        print_json({"out": str(out), "models": len(jobs), "missing": left, "summary": summary})
    elif not quiet:
        header, rows = reproduction.lines_of(found)
        for row in rows:
            numbers = [*zip(header[4:], row[4:], strict=True)]
            print_table(" ".join(row[:3]), ("what", f"{row[3]} models"), numbers)
        say(f"{len(jobs) - left:,} of {len(jobs):,} models: {out}. Numbers in brackets are the paper's.")
    return not left


@app.command(epilog="Example: veritracer bench figures --out out")
def figures(
    out: Annotated[Path, typer.Option(help="Folder for paper_examples.png.")] = Path("out"),
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Certify and draw the two-dimensional examples of the paper, figures 1 and 2."""
    from veritracer_bench.paper_figures import CONCLUSIONS, DELTA, certificates, draw

    picture = out / "paper_examples.png"
    check_new(picture, force=force)
    only_compute()
    with output_folder(out), spinner("Drawing"):
        found = certificates()
        draw(picture)
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


# ---------------------------------------------------------------- progress


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[[RunProgress], None]]:
    """Yield a function that shows progress: a bar on a terminal, a line now and then elsewhere."""
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

        def show(now: RunProgress) -> None:
            bar.update(task, description=now.last, total=now.wanted, completed=now.done, left=_time_left(now))

        yield show


class _Lines:
    """Print progress, one line at most every ten seconds."""

    def __init__(self) -> None:
        self.last = 0.0

    def __call__(self, now: RunProgress) -> None:
        if time.monotonic() - self.last < SECONDS_BETWEEN_LINES and now.done < now.wanted:
            return
        self.last = time.monotonic()
        line = f"… {now.done} of {now.wanted} results{_time_left(now)} ({now.last})"
        print(line, file=sys.stderr, flush=True)


def _time_left(now: RunProgress) -> str:
    if now.seconds_left is None or now.done == now.wanted:
        return ""
    minutes, seconds = divmod(round(now.seconds_left), 60)
    return f", about {minutes}:{seconds:02d} left"
