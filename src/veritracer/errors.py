"""The exceptions and warnings of this library, and the sentence that each of them carries.

::

    VeriTracerError
    ├── SchemaError        the description of a table is wrong or contradicts itself
    ├── DataError          a table does not fit its schema
    │   └── TargetError    its labels do not
    ├── NotSupportedError  a network, a norm or an option that we can not reason about soundly
    ├── ParamSetError      a set of models that does not belong to the model at hand
    │   └── EmptyIntersectionError   several sets that have no model in common
    ├── TrainingError      training can not start or can not go on
    │   └── PromiseError   no acceptable model keeps what was promised
    ├── ModelFileError     a saved model that is damaged, altered or of an unknown version
    ├── LetterError        a letter without a reason code, or with a template that can not be filled in
    ├── DatasetError       a dataset that is unknown, absent or damaged
    ├── LedgerError        a ledger that can not be opened, read or written, or a promise that is not in it
    │   ├── LedgerUnavailableError   its database does not answer, or is busy for too long: try again
    │   │   └── CommitUnknownError   a commit failed, and may have been kept all the same
    │   ├── NoRecordError            a promise, or a person, that it has no record of (any more)
    │   ├── RequestReusedError       the key of an earlier request, for another one
    │   └── DeploymentError          a model that the ledger does not let a service run or promise with
    └── ServiceError       a service that can not be reached or started, or what it answered instead

    VeriTracerWarning
    ├── DataWarning        a table was accepted after something in it was changed (and how much)
    ├── TrainingWarning    training ended before it was done
    └── AdviceWarning      most counterfactuals share one change

Every message has three parts: what was expected, what was received, and what to do about it.
``message`` puts them together, so that all of them read alike.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable


class VeriTracerError(Exception):
    """Anything that this library raises on purpose."""


class SchemaError(VeriTracerError, ValueError):
    """The description of a table is wrong or contradicts itself."""


class DataError(VeriTracerError, ValueError):
    """A table does not fit its schema."""


class EmptyTableError(DataError):
    """A table has no rows."""


class TargetError(DataError):
    """The labels do not fit the schema, or can not be learned from."""


class NotSupportedError(VeriTracerError, TypeError):
    """A network, a norm or an option that we can not reason about soundly."""


class ParamSetError(VeriTracerError, ValueError):
    """A set of models that does not belong to the model at hand."""


class EmptyIntersectionError(ParamSetError):
    """No common model of the sets was found; ``pairs`` are those that provably have none."""

    def __init__(self, sentence: str, pairs: list[tuple[int, int]]) -> None:
        super().__init__(sentence)
        self.pairs = pairs


class TrainingError(VeriTracerError, RuntimeError):
    """Training can not start, or can not go on."""


class PromiseError(TrainingError):
    """No acceptable model keeps what was promised; ``report`` has the numbers where an update was tried."""

    def __init__(self, sentence: str, report: object = None) -> None:
        super().__init__(sentence)
        self.report = report


class ModelFileError(VeriTracerError, ValueError):
    """A saved model that is damaged, altered or of an unknown version."""


class LetterError(VeriTracerError, ValueError):
    """A letter without a reason code, or with a template that can not be filled in."""


class DatasetError(VeriTracerError, LookupError):
    """A dataset that is unknown, absent or damaged."""


class LedgerError(VeriTracerError, RuntimeError):
    """A ledger that can not be opened, read or written, or a promise that it does not hold."""


class LedgerUnavailableError(LedgerError):
    """The database of a ledger does not answer, or is busy for too long."""


class CommitUnknownError(LedgerUnavailableError):
    """A commit to the ledger failed, and nobody knows whether it was kept: repeat the command."""


class NoRecordError(LedgerError):
    """A promise or a person that the ledger has no record of, or not any more."""


class RequestReusedError(LedgerError):
    """The key of an earlier request came with another request."""


class PromisedMeanwhileError(LedgerError):
    """Somebody else promised the same to the same application while this was prepared."""


class DeploymentError(LedgerError):
    """A model breaks promises of the ledger, or is not the one that was deployed last."""


class ServiceError(VeriTracerError, RuntimeError):
    """A service that can not be reached or started, or that refuses: ``status`` and ``problem`` say how."""

    def __init__(self, sentence: str, status: int | None = None, problem: object = None) -> None:
        super().__init__(sentence)
        self.status, self.problem = status, problem


class VeriTracerWarning(UserWarning):
    """Anything that this library warns of."""


class DataWarning(VeriTracerWarning):
    """A table was accepted after something in it was changed; the message counts what."""


class TrainingWarning(VeriTracerWarning):
    """Training ended before it was done; the message says what was kept."""


class AdviceWarning(VeriTracerWarning):
    """More than half of the counterfactuals share one change, or set a feature to an end of its range."""


class Message(str):
    """A sentence that remembers its three parts: one kind of mistake has one expectation."""

    expected: str
    received: str
    remedy: str


def message(expected: str, received: str, remedy: str) -> Message:
    """The three parts of an error as one sentence.

    >>> message("22 columns", "21; 'age' is missing", "was it dropped before explain()?")
    "expected 22 columns, got 21; 'age' is missing — was it dropped before explain()?"
    """
    whole = Message(f"expected {expected}, got {received} — {remedy}")
    whole.expected, whole.received, whole.remedy = expected, received, remedy
    return whole


def listing(names: Iterable[object], limit: int = 5) -> str:
    """The names in quotes, cut after ``limit`` of them, for use in a message.

    >>> listing(["a", "b", "c"], limit=2)
    "'a', 'b' and 1 more"
    """
    quoted = [repr(str(name)) for name in names]
    if len(quoted) <= limit:
        return ", ".join(quoted)
    return ", ".join(quoted[:limit]) + f" and {len(quoted) - limit:,} more"


def as_option(names: Iterable[str]) -> str:
    """The names as an option takes them: separated by commas, in quotes where they have some.

    >>> as_option(["id", "income, net"])
    'id,"income, net"'
    """
    return ",".join(
        '"' + name.replace('"', '""') + '"' if set(name) & set(',"\n') else name for name in names
    )


def as_typed(names: Iterable[str]) -> str:
    """The names as an option takes them, quoted so that a shell leaves them alone.

    >>> as_typed(["id", "loan amount"])
    "'id,loan amount'"
    """
    return shlex.quote(as_option(names))


def closest(name: object, known: Iterable[str]) -> str | None:
    """The known name that this one was probably meant as; None where none is close.

    >>> closest("incme", ["age", "income"]), closest("savings", ["age"])
    ('income', None)
    """
    return next(iter(difflib.get_close_matches(str(name), list(known), n=1)), None)


def unknown_name(expected: str, name: object, known: Iterable[str], *, limit: int = 5) -> str:
    """The message for a name that is not among the known ones, with the closest of them.

    Where none is close the first ``limit`` of them are listed.
    """
    known = list(known)
    close = closest(name, known)
    return message(
        expected, repr(name), f"did you mean {close!r}?" if close else f"there are {listing(known, limit)}"
    )
