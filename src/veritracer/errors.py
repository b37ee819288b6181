"""Exceptions and warnings of this library, and their messages.

::

    VeriTracerError
    ├── SchemaError        the description of a table is wrong or contradicts itself
    ├── DataError          a table does not fit its schema
    │   ├── EmptyTableError   it has no rows
    │   └── TargetError       its labels do not fit
    ├── NotSupportedError  a network, a norm or an option for which nothing sound is known
    ├── ParamSetError      a set of models that does not belong to the given model
    │   └── EmptyIntersectionError   several sets without a common model
    ├── TrainingError      training cannot start or cannot continue
    │   └── PromiseError   no acceptable model keeps the promises
    ├── ModelFileError     a saved model that is damaged, altered or of an unknown version
    ├── NoticeError        a notice without a reason code, or with a template that cannot be filled in
    ├── DatasetError       a dataset that is unknown, missing or damaged
    ├── LedgerError        a ledger that cannot be opened, read or written, or a promise that it does not hold
    │   ├── LedgerUnavailableError   its database does not answer, or is busy for too long: try again
    │   │   └── CommitUnknownError   a commit failed, and it is unknown whether it was kept
    │   ├── NoRecordError            a promise or a person without a record (any more)
    │   ├── RequestReusedError       the key of an earlier request came with another request
    │   ├── PromisedMeanwhileError   another writer promised the same to the same application
    │   └── DeploymentError          a model that a service may not run or promise with
    └── ServiceError       a service that cannot be reached or started, or its error reply

    VeriTracerWarning
    ├── DataWarning        a table was changed before it was accepted; the message counts the changes
    ├── TrainingWarning    training ended early
    └── AdviceWarning      most counterfactuals share one change

Every message has three parts: what was expected, what was received, and a remedy. ``message`` joins them.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable


class VeriTracerError(Exception):
    """Base class of all exceptions that this library raises on purpose."""


class SchemaError(VeriTracerError, ValueError):
    """The description of a table is wrong or contradicts itself."""


class DataError(VeriTracerError, ValueError):
    """A table does not fit its schema."""


class EmptyTableError(DataError):
    """A table has no rows."""


class TargetError(DataError):
    """The labels do not fit the schema, or cannot be learned from."""


class NotSupportedError(VeriTracerError, TypeError):
    """A network, a norm or an option for which nothing sound is known."""


class ParamSetError(VeriTracerError, ValueError):
    """A set of models does not belong to the given model."""


class EmptyIntersectionError(ParamSetError):
    """No common model of the sets was found; ``pairs`` are those that provably have none."""

    def __init__(self, sentence: str, pairs: list[tuple[int, int]]) -> None:
        super().__init__(sentence)
        self.pairs = pairs


class TrainingError(VeriTracerError, RuntimeError):
    """Training cannot start, or cannot continue."""


class PromiseError(TrainingError):
    """No acceptable model keeps the promises; ``report`` has the numbers if an update was tried."""

    def __init__(self, sentence: str, report: object = None) -> None:
        super().__init__(sentence)
        self.report = report


class ModelFileError(VeriTracerError, ValueError):
    """A saved model is damaged, altered or of an unknown version."""


class NoticeError(VeriTracerError, ValueError):
    """A notice has no reason code, or a template that cannot be filled in."""


class DatasetError(VeriTracerError, LookupError):
    """A dataset is unknown, missing or damaged."""


class LedgerError(VeriTracerError, RuntimeError):
    """A ledger cannot be opened, read or written, or does not hold a promise."""


class LedgerUnavailableError(LedgerError):
    """The database of a ledger does not answer, or is busy for too long."""


class CommitUnknownError(LedgerUnavailableError):
    """A commit to the ledger failed, and it is unknown whether it was kept: repeat the command."""


class NoRecordError(LedgerError):
    """The ledger has no record of a promise or a person, or not any more."""


class RequestReusedError(LedgerError):
    """The key of an earlier request came with another request."""


class PromisedMeanwhileError(LedgerError):
    """Another writer promised the same to the same application in the meantime."""


class DeploymentError(LedgerError):
    """A model breaks promises of the ledger, or is not the one that was deployed last."""


class ServiceError(VeriTracerError, RuntimeError):
    """A service cannot be reached or started, or refuses; see ``status`` and ``problem``."""

    def __init__(self, sentence: str, status: int | None = None, problem: object = None) -> None:
        super().__init__(sentence)
        self.status, self.problem = status, problem


class VeriTracerWarning(UserWarning):
    """Base class of all warnings of this library."""


class DataWarning(VeriTracerWarning):
    """A table was changed before it was accepted; the message counts the changes."""


class TrainingWarning(VeriTracerWarning):
    """Training ended early; the message says what was kept."""


class AdviceWarning(VeriTracerWarning):
    """More than half of the counterfactuals share one change, or set a feature to an end of its range."""


class Message(str):
    """A message that keeps its three parts, so that the same mistake can be recognised by its expectation."""

    expected: str
    received: str
    remedy: str


def message(expected: str, received: str, remedy: str) -> Message:
    """Join the three parts of an error to one sentence.

    >>> message("22 columns", "21; 'age' is missing", "was it dropped before explain()?")
    "expected 22 columns, got 21; 'age' is missing — was it dropped before explain()?"
    """
    whole = Message(f"expected {expected}, got {received} — {remedy}")
    whole.expected, whole.received, whole.remedy = expected, received, remedy
    return whole


def listing(names: Iterable[object], limit: int = 5) -> str:
    """Return the names in quotes, cut after ``limit`` of them, for use in a message.

    >>> listing(["a", "b", "c"], limit=2)
    "'a', 'b' and 1 more"
    """
    quoted = [repr(str(name)) for name in names]
    if len(quoted) <= limit:
        return ", ".join(quoted)
    return ", ".join(quoted[:limit]) + f" and {len(quoted) - limit:,} more"


def as_option(names: Iterable[str]) -> str:
    """Join names by commas as an option takes them, quoted if they contain commas or quotes.

    >>> as_option(["id", "income, net"])
    'id,"income, net"'
    """
    return ",".join(
        '"' + name.replace('"', '""') + '"' if set(name) & set(',"\n') else name for name in names
    )


def as_typed(names: Iterable[str]) -> str:
    """Join names as an option takes them, quoted for the shell.

    >>> as_typed(["id", "loan amount"])
    "'id,loan amount'"
    """
    return shlex.quote(as_option(names))


def closest(name: object, known: Iterable[str]) -> str | None:
    """Return the known name that was probably meant, or None.

    >>> closest("incme", ["age", "income"]), closest("savings", ["age"])
    ('income', None)
    """
    return next(iter(difflib.get_close_matches(str(name), list(known), n=1)), None)


def unknown_name(expected: str, name: object, known: Iterable[str], *, limit: int = 5) -> str:
    """Return the message for an unknown name, with the closest known one.

    Without a close one, the first ``limit`` known names are listed.
    """
    known = list(known)
    close = closest(name, known)
    return message(
        expected, repr(name), f"did you mean {close!r}?" if close else f"there are {listing(known, limit)}"
    )
