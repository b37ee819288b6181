"""From a table to certified advice, and what changes if one asks for something else.

Run: python examples/explain_a_portfolio.py
"""

from __future__ import annotations

import veritracer as vt


def main() -> None:
    """Train, explain, and ask for other things."""
    data = vt.datasets.loans(rows=2500)
    split = data.split()
    model = vt.VeriTraCER(schema=data.schema, epochs=15, batch_size=256).fit(split.X_train, split.y_train)
    print(f"accuracy on rows it has not seen: {model.score(split.X_test, split.y_test):.3f}")
    declined = split.X_test[model.predict(split.X_test) == "no"].head(100)
    recourse = model.explain(declined)
    print(recourse)
    print(recourse.sentence(0))
    print(recourse.changes().head(6).to_string(index=False))
    for options in ({"max_changes": 2}, {"cost": {"savings": 5.0}}, {"kappa": 0.1}, {"overshoot": 0.05}):
        other = model.explain(declined, **options)
        print(f"{options}: {other}; mean cost {other.cost[other.valid].mean():.2f}")
    print("a choice for the first applicant:")
    choice = model.explain(declined.head(1), n=3)
    for i in range(len(choice)):
        print(f"  {i + 1}. {choice.sentence(i).split('.')[0]}.")


if __name__ == "__main__":
    main()
