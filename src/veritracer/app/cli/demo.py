"""``veritracer demo``: one year of recourse on a synthetic loan portfolio, in about a minute.

A model is trained on this year's loans and gives two kinds of advice to everybody it declines: certified
counterfactuals, and the closest change that today's model accepts. Both are issued to a ledger. A year later
the model is retrained in three ways, and each new model is audited against both ledgers.
"""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veritracer.app.cli.options import AsJson, Quiet, Seed
from veritracer.app.cli.output import percent, print_json, print_table, say, spinner
from veritracer.errors import AdviceWarning, DataError, DataWarning, message
from veritracer.files import output_folder
from veritracer.threads import cores, one_thread, only_compute

if TYPE_CHECKING:
    import pandas as pd

    from veritracer.counterfactuals import Counterfactuals
    from veritracer.datasets import Split
    from veritracer.estimator import VeriTraCER
    from veritracer.ledger import Audit, Ledger
    from veritracer.schema import Schema

ROWS, EPOCHS = 4000, 20
KINDS = {
    "certified": "certified (default)",
    "closest": "closest to today's boundary",
}
CLOSEST: dict[str, Any] = {"kappa": 0.0, "plausibility": 0.0, "extremes": True}
"""Options of ``explain`` that ask for the shortest change that today's model accepts, and nothing else."""
RETRAINED = {
    "fine_tuned": "fine-tuned on the new rows",
    "from_scratch": "retrained from scratch",
    "kept": "updated with --keep (promises kept)",
}


@dataclass(frozen=True)
class Advice:
    """One kind of advice, on the day it is given: means and shares over the declined applicants."""

    issued: int
    cost: float
    changes: float
    accepted_by_another_model: float
    approved_in_truth: float


@dataclass(frozen=True)
class Retraining:
    """A model one year later: its accuracy on the new rows, and the promises of each kind that it keeps."""

    accuracy: float
    kept: dict[str, float]
    by_proof: dict[str, float]


@dataclass(frozen=True)
class Demo:
    """Everything the demo prints; ``audit`` is that of the promise-keeping update.

    ``models`` are the retrained ones, under the names of ``RETRAINED``, and so is ``retraining``.
    """

    model: VeriTraCER
    today: Split
    recourse: Counterfactuals
    advice: dict[str, Advice]
    models: dict[str, VeriTraCER]
    retraining: dict[str, Retraining]
    audit: Audit

    @property
    def declined(self) -> int:
        """Return the number of declined test rows."""
        return int((~self.recourse.favourable).sum())


def demo(
    out: Annotated[Path, typer.Option(help="The folder for the two reports.")] = Path("out"),
    drift: Annotated[float, typer.Option(min=0.0, help="How strongly the two years differ.")] = 1.0,
    epochs: Annotated[int, typer.Option(min=1, help="Training epochs.")] = EPOCHS,
    seed: Seed = 0,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train on synthetic loans, issue recourse, retrain a year later, and count the promises that held."""
    with output_folder(out):
        start = time.perf_counter()
        only_compute()
        with _steps(quiet=quiet or as_json) as tell:
            found = run(drift=drift, epochs=epochs, seed=seed, tell=tell)
            tell("Writing the reports")
            pages = _write(found, out)
    seconds = time.perf_counter() - start
    if as_json:
        print_json(_document(found, pages, seconds))
    elif not quiet:
        _print(found)
        say(f"Model report: {pages[0]}", f"Audit report: {pages[1]}", f"Finished in {seconds:.0f} seconds.")


def run(
    *,
    drift: float = 1.0,
    seed: int = 0,
    rows: int = ROWS,
    tell: Callable[[str], None],
    **parameters: Any,
) -> Demo:
    """Run the demo with models of these ``parameters``; ``tell`` receives a line before each step.

    Values beyond the range of the training rows are clipped, as in production, and the notes on unusual
    advice are left out: the closest changes are unusual on purpose.
    """
    from veritracer import datasets

    with warnings.catch_warnings():
        for category in (DataWarning, AdviceWarning):
            warnings.simplefilter("ignore", category)
        data = datasets.loans(rows, random_state=seed)
        today = data.split()
        later = datasets.loans(rows, year=2, drift=drift, random_state=seed).split()
        tell(f"Training on {len(today.X_train):,} loans of this year, and from scratch on those of the next")
        model, scratch = _train(data.schema, (today, later), seed, parameters)
        declined = _declined(model, today.X_test)
        tell(f"Finding recourse for the {len(declined)} applicants whom the model declines")
        recourse = model.explain(today.X_test)
        closest = model.explain(declined, **CLOSEST)
        judge = _judge(model, today)
        advice = {
            kind: _advice(found, judge) for kind, found in (("certified", recourse), ("closest", closest))
        }
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            ledgers = {}
            asked: dict[str, dict[str, Any]] = {"certified": {}, "closest": CLOSEST}
            for kind, options in asked.items():
                ledgers[kind] = stack.enter_context(_issue(model, declined, folder / f"{kind}.db", options))
            tell("One year later: retraining in three ways")
            models = {
                "fine_tuned": model.update(later.X_train, later.y_train, compare=False),
                "from_scratch": scratch,
                "kept": model.update(later.X_train, later.y_train, keep=ledgers["certified"], compare=False),
            }
            tell("Auditing every promise against every new model")
            audits = {
                name: {kind: _audit(ledger, retrained) for kind, ledger in ledgers.items()}
                for name, retrained in models.items()
            }
        retraining = {
            name: _retraining(retrained.score(later.X_test, later.y_test), audits[name])
            for name, retrained in models.items()
        }
    return Demo(model, today, recourse, advice, models, retraining, audits["kept"]["certified"])


def _train(
    schema: Schema, splits: tuple[Split, Split], seed: int, parameters: dict[str, Any]
) -> tuple[VeriTraCER, VeriTraCER]:
    """Train one model on each split, side by side where there are two cores."""
    from joblib import Parallel, delayed

    jobs = [delayed(_fit)(schema, split, seed + i, parameters) for i, split in enumerate(splits)]
    models: list[VeriTraCER] = Parallel(n_jobs=min(cores(), 2), batch_size=1)(jobs)
    return models[0], models[1]


def _fit(schema: Schema, split: Split, seed: int, parameters: dict[str, Any]) -> VeriTraCER:
    from veritracer.estimator import VeriTraCER

    with warnings.catch_warnings(), one_thread():
        warnings.simplefilter("ignore", DataWarning)  # another process does not know the caller's filters
        return VeriTraCER(schema, random_state=seed, **parameters).fit(split.X_train, split.y_train)


def _declined(model: VeriTraCER, X: pd.DataFrame) -> pd.DataFrame:
    declined = X[model.decision_function(X) <= 0]
    if declined.empty:
        remedy = "train for more epochs, or take another seed"
        raise DataError(message("at least one declined test row", "none", remedy))
    return declined


def _judge(model: VeriTraCER, today: Split) -> Callable[[Counterfactuals], Any]:
    """Fit gradient boosting to today's rows; it takes no part in training or search."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    labels = model.schema_.labels(today.y_train)
    judge = HistGradientBoostingClassifier(random_state=0).fit(model.encoding_.encode(today.X_train), labels)
    return lambda found: judge.predict(found.x_cf.numpy()) == 1


def _advice(found: Counterfactuals, judge: Callable[[Counterfactuals], Any]) -> Advice:
    """Summarise one kind of advice; a row without a counterfactual counts as refused."""
    from veritracer.datasets import loans_truth

    valid, declined = found.valid & ~found.favourable, int((~found.favourable).sum())
    truth = loans_truth(found.frame, found.original) > 0.5
    return Advice(
        issued=int(valid.sum()),
        cost=float(found.cost[valid].mean()),
        changes=float(found.n_changes[valid].mean()),
        accepted_by_another_model=float((judge(found) & valid).sum() / declined),
        approved_in_truth=float((truth & valid).sum() / declined),
    )


def _issue(model: VeriTraCER, declined: pd.DataFrame, place: Path, options: dict[str, Any]) -> Ledger:
    from veritracer.ledger import Ledger

    ledger = Ledger(place)
    ids = [str(row) for row in declined.index]
    # The closest changes are certified for today's model only: promising them takes an explicit choice.
    model.issue(declined, ids=ids, ledger=ledger, uncertified="promise" if options else "skip", **options)
    return ledger


def _audit(ledger: Ledger, model: VeriTraCER) -> Audit:
    from veritracer.ledger import audit

    return audit(ledger, model, recourse=0)


def _retraining(accuracy: float, audits: dict[str, Audit]) -> Retraining:
    from veritracer.ledger import Verdict

    def share(found: Audit, *verdicts: Verdict) -> float:
        return sum(found.counts[verdict] for verdict in verdicts) / max(found.live, 1)

    kept = (Verdict.PROVED, Verdict.CHECKED, Verdict.SUPERSEDED)
    return Retraining(
        accuracy,
        kept={kind: share(found, *kept) for kind, found in audits.items()},
        by_proof={kind: share(found, Verdict.PROVED) for kind, found in audits.items()},
    )


# ---------------------------------------------------------------- output


@contextmanager
def _steps(*, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows the current step: a spinner on a terminal, a line elsewhere."""
    with spinner("Starting", quiet=quiet) as shown:

        def tell(step: str) -> None:
            if shown is not None and sys.stderr.isatty():
                shown.update(step)  # type: ignore[attr-defined]  # it is rich's Status
            elif not quiet:
                print(f"{step} ...", file=sys.stderr, flush=True)

        yield tell


def _write(found: Demo, out: Path) -> tuple[Path, Path]:
    from veritracer.app.report import write_audit_page, write_report

    X, y = found.today.X_test, found.today.y_test
    title = "Synthetic loan portfolio: model report"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # values beyond the range of the training rows
        report = write_report(out / "report.html", found.model, X, y, recourse=found.recourse, title=title)
    title = "Synthetic loan portfolio: promises one year later"
    return report, write_audit_page(out / "audit.html", found.audit, title=title)


def _print(found: Demo) -> None:
    X, y = found.today.X_test, found.today.y_test
    say(
        f"Model: trained on {len(found.today.X_train):,} synthetic loan applications; test accuracy "
        f"{percent(found.model.score(X, y))} ({len(X):,} rows). It declines {found.declined} of them.",
        "",
    )
    _print_example(found.recourse)
    header: tuple[str, ...] = (
        "counterfactuals",
        "issued",
        "cost",
        "changes",
        "accepted by another model",
        "approved in truth",
    )
    print_table(
        f"Two kinds of advice for the {found.declined} declined applicants",
        header,
        [_advice_line(KINDS[kind], advice) for kind, advice in found.advice.items()],
    )
    say(
        "Cost is the L1 distance in units of each feature's range. The other model is gradient boosting, "
        "fitted to the same rows. The data are simulated, so the true chance of approval after the change is "
        "known: the last column is the share above one half.",
        "",
    )
    header = ("model, one year later", "accuracy", "certified kept", "by proof", "closest kept")
    print_table(
        "Promises kept after retraining on next year's rows",
        header,
        [_retraining_line(RETRAINED[name], each) for name, each in found.retraining.items()],
    )
    say(
        "Certified counterfactuals hold for every model within a stated distance of today's. Updating with "
        "--keep trains inside that distance, so every promise is kept by proof.",
        "",
    )


def _print_example(recourse: Counterfactuals) -> None:
    """Show one certified row with two or three changes, of moderate cost."""
    import numpy as np

    from veritracer.formatting import format_value

    certified = np.flatnonzero(recourse.certified)
    few = certified[np.isin(recourse.n_changes[certified], (2, 3))]
    rows = few if len(few) else certified
    if len(rows) == 0:
        return
    i = int(rows[np.argsort(recourse.cost[rows], kind="stable")[len(rows) // 4]])
    person = ", ".join(f"{name} {format_value(v)}" for name, v in recourse.original.iloc[i].items())
    say(f"One of them: {person}.", f"Certified advice: {recourse.sentence(i)}", "")


def _advice_line(name: str, advice: Advice) -> list[str]:
    return [
        name,
        f"{advice.issued:,}",
        f"{advice.cost:.2f}",
        f"{advice.changes:.1f}",
        percent(advice.accepted_by_another_model),
        percent(advice.approved_in_truth),
    ]


def _retraining_line(name: str, each: Retraining) -> list[str]:
    shares = (each.accuracy, each.kept["certified"], each.by_proof["certified"], each.kept["closest"])
    return [name, *map(percent, shares)]


def _document(found: Demo, pages: tuple[Path, Path], seconds: float) -> dict[str, Any]:
    return {
        "declined": found.declined,
        "accuracy": found.model.score(found.today.X_test, found.today.y_test),
        "advice": {kind: asdict(advice) for kind, advice in found.advice.items()},
        "retraining": {name: asdict(each) for name, each in found.retraining.items()},
        "report": str(pages[0]),
        "audit": str(pages[1]),
        "seconds": round(seconds, 1),
    }
