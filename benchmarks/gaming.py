"""What single actions claim and what they are worth in ``loans``: symptoms beside causes, for both outcomes.

``python -m benchmarks.gaming``

A boosted and a logistic model learn from 30,000 rows; every test row that the boosted one declines acts, one
thing at a time. Claimed: the mean change of a model's probability on the row after the action and its
effects. True: that of the simulator's own, hidden traits as they were.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression

from benchmarks.record import save, show
from veritracer import datasets
from veritracer.datasets.loans_model import Outcome
from veritracer.encoding import Encoding

ROWS = 40_000


def actions(X: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """One thing at a time: what the file shows, what a person owes and has, and the request."""
    return {
        "no missed payments": X.assign(missed_payments=0),
        "cards at 20 % or less": X.assign(card_use=np.minimum(X["card_use"], 20)),
        "both": X.assign(missed_payments=0, card_use=np.minimum(X["card_use"], 20)),
        "5 more years of history": X.assign(history_years=np.minimum(X["history_years"] + 5, 30)),
        "2 more credit lines": X.assign(credit_lines=np.minimum(X["credit_lines"] + 2, 10)),
        "3,000 more savings": X.assign(savings=np.minimum(X["savings"].fillna(0.0) + 3000.0, 20_000.0)),
        "half of the debts": X.assign(monthly_debt=X["monthly_debt"] // 20 * 10),
        "a loan smaller by 30 %": X.assign(loan_amount=np.maximum(X["loan_amount"] * 7 // 1000 * 100, 1000)),
        "the longest term": X.assign(term_months=84),
        "a permanent job": X.assign(employment="permanent"),
    }


def gains(outcome: Outcome) -> tuple[dict[str, list[float]], int]:
    """For each action what each model claims and what is true, and how many people acted."""
    data = datasets.loans(ROWS, outcome=outcome)
    parts = data.split(test_size=0.25)
    encoding = Encoding.fit(data.schema, parts.X_train)
    boosted = HistGradientBoostingClassifier(
        max_iter=150, learning_rate=0.06, max_leaf_nodes=15, random_state=0
    )
    models: list[Any] = [boosted, LogisticRegression(max_iter=3000)]
    for model in models:
        model.fit(encoding.encode(parts.X_train).numpy(), parts.y_train == "yes")

    def judged(X: pd.DataFrame, origin: pd.DataFrame) -> list[NDArray[np.float64]]:
        x = encoding.encode(datasets.loans_after(X, origin), out_of_range="ignore").numpy()
        truth = datasets.loans_truth(X, origin, outcome)
        return [*(model.predict_proba(x)[:, 1] for model in models), truth]

    people = parts.X_test[judged(parts.X_test, parts.X_test)[0] < 0.5]
    before = judged(people, people)
    table = {"before acting": [float(p.mean()) for p in before]}
    for name, acted in actions(people).items():
        pairs = zip(judged(acted, people), before, strict=True)
        table[name] = [float((now - then).mean()) for now, then in pairs]
    return table, len(people)


def _cells(name: str, values: list[float]) -> list[str]:
    style = ".3f" if name == "before acting" else "+.3f"
    return [format(round(value, 3) + 0.0, style) for value in values]


def main() -> None:
    results, tables = {}, []
    for outcome in ("approved", "repaid"):
        results[outcome], count = gains(outcome)
        lines = [[name, *_cells(name, values)] for name, values in results[outcome].items()]
        header = ["action", "boosting claims", "logistic claims", "true"]
        tables.append(show(f"{outcome}: {count:,} people whom boosting declines", header, lines))
    save("gaming", results, tables)


if __name__ == "__main__":
    main()
