"""What became of promises after a retraining: the numbers of one experiment, several methods side by side."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from veritracer.errors import DataError, message


@dataclass(frozen=True)
class Survival:
    """How many of a method's counterfactuals hold for later models.

    Attributes
    ----------
    method
        Its name, as a reader should see it.
    rows
        People who were turned down: what every share is a share of.
    given
        How many of them got a counterfactual that was valid on the day.
    fine_tuned, from_scratch
        How many were still valid after the model was fine-tuned on new data, and after a new one was trained
        from scratch; None where that was not tried.
    cost
        The mean L1 distance of what was asked of people, in scaled units; None where nobody measured it.
    certified
        How many had a certificate on the day; None for a method that gives none.
    """

    method: str
    rows: int
    given: int
    fine_tuned: int | None = None
    from_scratch: int | None = None
    cost: float | None = None
    certified: int | None = None

    def __post_init__(self) -> None:
        counts = [self.given, self.fine_tuned, self.from_scratch, self.certified]
        if self.rows < 1 or any(c is not None and not 0 <= c <= self.rows for c in counts):
            received = f"{counts} of {self.rows} rows for {self.method!r}"
            raise DataError(message("counts between 0 and the number of rows", received, "count rows, once"))

    def share(self, count: int | None) -> float | None:
        """The count as a share of all rows; None stays None.

        >>> Survival("certified", rows=200, given=199, fine_tuned=198).share(198)
        0.99
        """
        return None if count is None else count / self.rows


@dataclass(frozen=True)
class Story:
    """The methods, ours first, and what was done: how each was trained and retrained, in a few words."""

    survivals: tuple[Survival, ...]
    caption: str = ""
    title: str = "What became of the promises"

    def __init__(
        self,
        survivals: Iterable[Survival],
        caption: str = "",
        title: str = "What became of the promises",
    ) -> None:
        object.__setattr__(self, "survivals", tuple(survivals))
        object.__setattr__(self, "caption", caption)
        object.__setattr__(self, "title", title)
        if not self.survivals:
            raise DataError(message("at least one method", "none", "leave story out where there is nothing"))
