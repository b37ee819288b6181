"""``veritracer demo``: a year in the life of a promise, on synthetic loan applications, in under a minute.

A model is trained on this year's applications and gives two kinds of advice to everybody it declines: the
certified counterfactual, and the smallest change that today's model accepts. A year later the model is
updated twice, once freely and once with the promises kept, and each update is audited.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veritracer.app.cli.options import AsJson, Force, Quiet, Seed
from veritracer.app.cli.output import percent, print_json, print_table, say, spinner
from veritracer.app.cli.places import check_new
from veritracer.errors import AdviceWarning, DataError, DataWarning, message
from veritracer.files import output_folder
from veritracer.threads import only_compute

if TYPE_CHECKING:
    from veritracer.counterfactuals import Counterfactuals
    from veritracer.datasets import Split
    from veritracer.estimator import VeriTraCER
    from veritracer.ledger import Audit

ROWS, EPOCHS = 4000, 20
CLOSEST: dict[str, Any] = {"kappa": 0.0, "plausibility": 0.0, "extremes": True, "uncertified": "promise"}
"""Options of ``issue`` that promise the smallest change that today's model accepts, certified or not."""
KINDS: dict[str, dict[str, Any]] = {"certified": {}, "closest": CLOSEST}
PAGES = ("report.html", "audit.html")
UPDATES = {"free": "ordinary update", "keeping": "promise-keeping update"}


@dataclass(frozen=True)
class Advice:
    """One kind of advice: means over the applicants who got some, and shares of all declined applicants.

    ``kept`` and ``proved`` are shares of the promises, one for each update in ``UPDATES``.
    """

    issued: int
    changes: float
    cost: float
    accepted_by_another_model: float
    approved_in_truth: float
    kept: dict[str, float]
    proved: dict[str, float]


@dataclass(frozen=True)
class Demo:
    """Everything that the demo prints: the model, its recourse, and its two updates."""

    model: VeriTraCER
    today: Split
    recourse: dict[str, Counterfactuals]
    updates: dict[str, VeriTraCER]
    accuracy: dict[str, float]
    audits: dict[str, dict[str, Audit]]
    advice: dict[str, Advice]

    @property
    def declined(self) -> int:
        """Return the number of declined test rows."""
        return int((~self.recourse["certified"].favourable).sum())


def demo(
    out: Annotated[Path, typer.Option(help="Folder for report.html and audit.html.")] = Path("out"),
    drift: Annotated[float, typer.Option(min=0.0, help="How strongly the two years differ.")] = 1.0,
    epochs: Annotated[int, typer.Option(min=1, help="Training epochs.")] = EPOCHS,
    seed: Seed = 0,
    force: Force = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Show a year of promises on synthetic loans, in a minute.

    A model is trained and gives two kinds of advice to everybody it declines: certified counterfactuals, and
    the smallest changes that it accepts today. A year later it is updated with and without the promises, and
    both updates are audited.
    """
    start = time.perf_counter()
    for page in PAGES:
        check_new(out / page, force=force)
    with output_folder(out), spinner("Starting", quiet=quiet or as_json) as tell:
        only_compute()
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
    """Run the demo with models of these ``parameters``; ``tell`` receives a line before each step."""
    from veritracer import datasets
    from veritracer.estimator import VeriTraCER
    from veritracer.ledger import Ledger, audit

    with warnings.catch_warnings(), tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for category in (DataWarning, AdviceWarning):  # values out of range are clipped, as in production
            warnings.simplefilter("ignore", category)
        data = datasets.loans(rows, random_state=seed)
        today = data.split()
        later = datasets.loans(rows, year=2, drift=drift, random_state=seed).split()
        tell(f"Training on {len(today.X_train):,} loan applications")
        model = VeriTraCER(data.schema, random_state=seed, **parameters).fit(today.X_train, today.y_train)
        declined = _count_declined(model, today)
        tell(f"Promising two kinds of advice to {declined} declined applicants")
        recourse, ledgers = {}, {kind: Path(folder) / f"{kind}.db" for kind in KINDS}
        for kind, options in KINDS.items():
            ids = [str(row) for row in today.X_test.index]
            issued = model.issue(today.X_test, ids=ids, ledger=ledgers[kind], **options)
            assert issued.recourse is not None  # it is None only for a repeated request
            recourse[kind] = issued.recourse
        tell("One year later: updating the model with and without its promises")
        updates = {
            "free": model.update(later.X_train, later.y_train, compare=False),
            "keeping": model.update(later.X_train, later.y_train, keep=ledgers["certified"], compare=False),
        }
        tell("Auditing every promise against both updates")
        audits: dict[str, dict[str, Audit]] = {}
        for kind, place in ledgers.items():
            with Ledger(place, create=False) as ledger:
                audits[kind] = {name: audit(ledger, each, recourse=0) for name, each in updates.items()}
        judge = _independent_model(model, today)
        return Demo(
            model,
            today,
            recourse,
            updates,
            {name: each.score(later.X_test, later.y_test) for name, each in updates.items()},
            audits,
            {kind: _advice(recourse[kind], judge, audits[kind]) for kind in KINDS},
        )


def _count_declined(model: VeriTraCER, today: Split) -> int:
    count = int((model.decision_function(today.X_test) <= 0).sum())
    if count == 0:
        remedy = "train for more epochs, or take another seed"
        raise DataError(message("at least one declined test row", "none", remedy))
    return count


def _independent_model(model: VeriTraCER, today: Split) -> Callable[[Counterfactuals], Any]:
    """Fit gradient boosting to today's rows; it takes no part in training or search."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    labels = model.schema_.labels(today.y_train)
    judge = HistGradientBoostingClassifier(random_state=0).fit(model.encoding_.encode(today.X_train), labels)
    return lambda found: judge.predict(found.x_cf.numpy()) == 1


def _advice(
    found: Counterfactuals, judge: Callable[[Counterfactuals], Any], audits: dict[str, Audit]
) -> Advice:
    """Summarise one kind of advice; a row without a counterfactual counts as refused."""
    from veritracer.datasets import loans_truth
    from veritracer.ledger import Verdict

    valid, declined = found.valid & ~found.favourable, int((~found.favourable).sum())
    truth = loans_truth(found.frame, found.original) > 0.5
    kept = (Verdict.PROVED, Verdict.CHECKED, Verdict.SUPERSEDED)
    return Advice(
        issued=next(iter(audits.values())).live,
        changes=float(found.n_changes[valid].mean()),
        cost=float(found.cost[valid].mean()),
        accepted_by_another_model=float((judge(found) & valid).sum() / declined),
        approved_in_truth=float((truth & valid).sum() / declined),
        kept={name: _share(each, *kept) for name, each in audits.items()},
        proved={name: _share(each, Verdict.PROVED) for name, each in audits.items()},
    )


def _share(audit: Audit, *verdicts: str) -> float:
    return sum(audit.counts[verdict] for verdict in verdicts) / max(audit.live, 1)


# ---------------------------------------------------------------- output


def _write(found: Demo, out: Path) -> tuple[Path, Path]:
    from veritracer.app.report import write_audit_page, write_report

    X, y, recourse = found.today.X_test, found.today.y_test, found.recourse["certified"]
    title = "Synthetic loans: the model and its recourse"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # values beyond the range of the training rows
        report = write_report(out / PAGES[0], found.model, X, y, recourse=recourse, title=title)
    title = "Synthetic loans: the promises one year later"
    return report, write_audit_page(out / PAGES[1], found.audits["certified"]["keeping"], title=title)


def _print(found: Demo) -> None:
    test, accuracy = len(found.today.X_test), found.model.score(found.today.X_test, found.today.y_test)
    say(
        f"The model was trained on {len(found.today.X_train):,} synthetic loan applications. It decides "
        f"{percent(accuracy)} of {test:,} others correctly, and declines {found.declined} of them.",
        "",
    )
    _print_example(found.recourse["certified"])
    rows = [[name, *map(write, found.advice.values())] for name, write in _MEASURES]
    print_table(
        f"Two kinds of advice for the {found.declined} declined applicants",
        ("", "certified (default)", "smallest change"),
        rows,
    )
    accuracies = " and ".join(f"{percent(found.accuracy[k])} ({name})" for k, name in UPDATES.items())
    say(
        "Certified advice is proved to stay valid while the model stays within a stated distance of today's. "
        "The promise-keeping update stays within that distance; the ordinary update need not.",
        "Cost is the sum of all changes, each as a share of its feature's range. The independent model is "
        "gradient boosting, trained on the same rows. The data are simulated, so the true rule is known.",
        f"Accuracy on next year's applications: {accuracies}.",
        "",
    )


_MEASURES: tuple[tuple[str, Callable[[Advice], str]], ...] = (
    ("promises issued", lambda advice: f"{advice.issued:,}"),
    ("features to change, mean", lambda advice: f"{advice.changes:.1f}"),
    ("cost, mean", lambda advice: f"{advice.cost:.2f}"),
    ("accepted by an independent model", lambda advice: percent(advice.accepted_by_another_model)),
    ("approved by the true rule", lambda advice: percent(advice.approved_in_truth)),
    ("kept a year later, ordinary update", lambda advice: percent(advice.kept["free"])),
    ("  of these by proof", lambda advice: percent(advice.proved["free"])),
    ("kept a year later, promise-keeping update", lambda advice: percent(advice.kept["keeping"])),
    ("  of these by proof", lambda advice: percent(advice.proved["keeping"])),
)
"""The rows of the table."""


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
    say(f"A declined applicant: {person}.", f"Certified advice: {recourse.sentence(i)}", "")


def _document(found: Demo, pages: tuple[Path, Path], seconds: float) -> dict[str, Any]:
    return {
        "declined": found.declined,
        "accuracy": found.model.score(found.today.X_test, found.today.y_test),
        "advice": {kind: asdict(advice) for kind, advice in found.advice.items()},
        "accuracy_later": found.accuracy,
        "report": str(pages[0]),
        "audit": str(pages[1]),
        "seconds": round(seconds, 1),
    }
