"""A service from Python: ``vt.Client(url, key)`` has the verbs of the library.

A client returns what the library returns, as far as it can travel: a frame with the columns, index and dtypes
of the given table, a table with a line for each counterfactual, and sentences. The proof itself stays with
the model; ``certify`` repeats it.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from veritracer.errors import DataError, ServiceError, listing, message
from veritracer.formatting import is_missing, to_python
from veritracer.identities import identity_text, identity_texts
from veritracer.options import IssueOptions

if TYPE_CHECKING:
    import httpx

    from veritracer.encoding.exact import Texts
    from veritracer.schema import Schema

PIECE = 250
"""Rows of one request."""

RETRIES = 5
AGAIN = (429, 503)
"""Statuses of requests that are repeated, after the time that the service names."""

TABLE = (
    *("status", "reason", "valid", "certified", "radius", "worst_logit", "method", "conditional", "cost"),
    *("n_changes", "agreement", "decision", "probability"),
)
"""Columns of the table of an answer."""


@dataclass(frozen=True, repr=False)
class RemoteRecourse:
    """The answer of a service: a counterfactual for each row, in the order of the rows.

    Attributes
    ----------
    frame, original
        The counterfactuals and the given rows as tables.
    table
        Status, reason and numbers of each counterfactual, under the names of ``Counterfactuals``, and today's
        ``decision`` and ``probability``.
    documents
        Everything that the service said about each counterfactual.
    about
        The set of models that the certificates are about.
    notes
        Remarks on rows that are beyond what the model has learned from.
    """

    frame: pd.DataFrame
    original: pd.DataFrame
    table: pd.DataFrame
    documents: list[dict[str, Any]]
    about: Mapping[str, Any]
    notes: list[str]

    def __len__(self) -> int:
        return len(self.frame)

    def __str__(self) -> str:
        counts = ", ".join(f"{int((self.status == s).sum()):,} {s}" for s in ("certified", "valid", "none"))
        return f"{len(self):,} counterfactuals at kappa = {self.about.get('kappa')}: {counts}"

    __repr__ = __str__

    @property
    def status(self) -> NDArray[np.object_]:
        """Return ``certified``, ``valid`` or ``none``."""
        return self.table["status"].to_numpy(object)

    def changes(self) -> pd.DataFrame:
        """Return a long table with a line for each changed feature: row, feature, from, to."""
        lines = [
            (self.original.index[i], c["feature"], c["from"], c["to"])
            for i, one in enumerate(self.documents)
            for c in one["changes"]
        ]
        return pd.DataFrame(lines, columns=["row", "feature", "from", "to"])

    def sentence(self, i: int) -> str:
        """Return counterfactual ``i`` as a person should read it."""
        return str(self.documents[i]["sentence"])

    def notice(self, i: int) -> str | None:
        """Return the notice of counterfactual ``i``, where notices were requested."""
        found: str | None = self.documents[i]["notice"]
        return found


class Client:
    """A client of the service at ``url``, with an API ``key``; it can be used in a ``with`` block.

    A refusal is a ``ServiceError`` with its ``status`` and its ``problem``; its three parts are the message.
    Requests that are answered with 429 or 503 are repeated after the time that the service names.
    """

    def __init__(self, url: str, key: str | None = None, *, timeout: float = 60.0) -> None:
        package = _httpx()
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        try:
            self._http: httpx.Client = package.Client(base_url=url, headers=headers, timeout=timeout)
        except (package.InvalidURL, TypeError, UnicodeError) as error:
            raise ServiceError(message("the URL of a service", repr(url), str(error))) from None
        self._schema: Schema | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def model(self) -> dict[str, Any]:
        """Return the model card: what the model is, its features, its digests."""
        return self._ask("GET", "/v1/model")

    def predict(self, X: pd.DataFrame) -> NDArray[Any]:
        """Return the decision about each row."""
        return np.array([one["decision"] for one in self.decide(X)])

    def decide(self, X: pd.DataFrame) -> list[dict[str, Any]]:
        """Return decision, whether it is favourable, and its probability, for each row."""
        found: list[dict[str, Any]] = []
        for rows, _ in self._pieces(X):
            found += self._ask("POST", "/v1/decisions", {"rows": rows})["decisions"]
        return found

    def explain(
        self, X: pd.DataFrame, *, notice: Mapping[str, Any] | None = None, **options: Any
    ) -> RemoteRecourse:
        """Return a certified counterfactual near each row; ``options`` are those of ``Recourse.explain``.

        With ``notice={}`` each answer has a draft of a notice.
        """
        answers: list[dict[str, Any]] = []
        about: dict[str, Any] = {}
        notes: list[str] = []
        for rows, first in self._pieces(X):
            body = {"rows": rows, "options": options} | ({} if notice is None else {"notice": dict(notice)})
            about = self._ask("POST", "/v1/recourse", body)
            answers += about.pop("answers")
            notes += [f"(from row {first}) {note}" for note in about.pop("notes")]
        return _recourse(X, answers, about, notes, self._texts(), several=options.get("n", 1) > 1)

    def certify(self, X: pd.DataFrame, X_cf: pd.DataFrame, *, kappa: float | None = None) -> pd.DataFrame:
        """Return a certificate for each pair of a row and a counterfactual from any source."""
        if len(X) != len(X_cf):
            received = f"{len(X_cf):,} for {len(X):,}"
            raise DataError(message("one counterfactual for each row", received, "pass them in pairs"))
        found: list[dict[str, Any]] = []
        for (rows, _), (others, _) in zip(self._pieces(X), self._pieces(X_cf), strict=True):
            pairs = [{"row": a, "counterfactual": b} for a, b in zip(rows, others, strict=True)]
            found += self._ask("POST", "/v1/certificates", {"pairs": pairs, "kappa": kappa})["certificates"]
        return pd.DataFrame(found, index=X.index).drop(columns=["today", "then"])

    def issue(
        self,
        X: pd.DataFrame,
        *,
        ids: Sequence[Any],
        expires: str | None = None,
        choose: Sequence[int] | None = None,
        notice: Mapping[str, Any] | None = None,
        allow_duplicate: bool = IssueOptions.allow_duplicate,
        request_id: str | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """Issue promises; return them with the ``skipped`` rows, their counts, and the ``checksum``.

        An application (an id and its row) with a live promise gets no second one unless ``allow_duplicate``.
        All rows are one request under ``request_id`` or a new id: whatever goes wrong on the way, the same
        call with the same id issues nothing twice, and is repeated here where the service asks for it.
        """
        rows = [row for piece, _ in self._pieces(X, len(X)) for row in piece]
        body: dict[str, Any] = {"rows": rows, "ids": identity_texts(ids), "options": options}
        given = {
            "expires": expires,
            "choose": None if choose is None else list(choose),
            "notice": None if notice is None else dict(notice),
            "allow_duplicate": allow_duplicate,
        }
        headers = {"Idempotency-Key": request_id or str(uuid.uuid4())}
        return self._ask("POST", "/v1/promises", {**body, **given}, headers, may_repeat=True)

    def promise(self, number: int) -> dict[str, Any]:
        """Return everything about one promise."""
        return self._ask("GET", f"/v1/promises/{int(number)}")

    def erase(self, identity: Any) -> list[int]:
        """Erase the records of a person; return the numbers of their promises."""
        erased: list[int] = self._ask("POST", "/v1/erasures", {"id": identity_text(identity)})["erased"]
        return erased

    def ledger(self) -> dict[str, Any]:
        """Return the numbers of promises by status, and the checksum."""
        return self._ask("GET", "/v1/ledger")

    def audits(self) -> list[dict[str, Any]]:
        """Return the audits and deployments that the ledger records, the newest first."""
        recorded: list[dict[str, Any]] = self._ask("GET", "/v1/audits")["audits"]
        return recorded

    def verify(self, checksum: str | None = None) -> dict[str, Any]:
        """Return the result of checking the chain, from a checksum that was noted earlier."""
        return self._ask("POST", "/v1/ledger/verify", {"checksum": checksum})

    @property
    def schema(self) -> Schema:
        """Return the schema of the service's model, asked for once."""
        if self._schema is None:
            from veritracer.schema import Schema

            self._schema = Schema.from_json(json.dumps(self.model()["schema"]))
        return self._schema

    def _pieces(self, X: pd.DataFrame, size: int = PIECE) -> Iterator[tuple[list[dict[str, Any]], int]]:
        """Yield the rows as they travel, some at once, and the position of the first."""
        names, texts = self.schema.names, self._texts()
        if lacking := [name for name in names if name not in X.columns]:
            raise DataError(message(f"{len(names)} columns", f"none called {listing(lacking)}", "add them"))
        for start in range(0, len(X), max(size, 1)):
            part = X.iloc[start : start + size]
            # An array's cells, unlike a column's own, stay float32.
            columns = (
                texts[name].values(part[name].array) if name in texts else part[name].array for name in names
            )
            rows = [dict(zip(names, map(_cell, cells), strict=True)) for cells in zip(*columns, strict=True)]
            yield rows, start

    def _texts(self) -> dict[str, Texts]:
        """Return the columns that write numbers as text, and how."""
        from veritracer.encoding.exact import Texts

        return {one.name: Texts.of(one) for one in self.schema.features if one.number_format is not None}

    def _ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        *,
        may_repeat: bool = False,
    ) -> dict[str, Any]:
        """Return the answer; with ``may_repeat`` a request whose answer was lost is sent again."""
        package = _httpx()
        for attempt in range(RETRIES):
            last = attempt == RETRIES - 1
            try:
                answer = self._http.request(method, path, json=body, headers=headers)
            except (package.TransportError, package.InvalidURL) as error:
                if may_repeat and not last and not isinstance(error, package.ConnectError):
                    time.sleep(0.2 * 2**attempt)
                    continue
                received = f"{type(error).__name__} from {self._http.base_url}"
                raise ServiceError(message("a service that answers", received, "is it running?")) from None
            if answer.status_code in AGAIN and not last:
                time.sleep(min(_seconds(answer.headers.get("retry-after")), 10.0))
                continue
            return _content(answer)
        raise AssertionError("the last attempt returns or raises")


def _content(answer: httpx.Response) -> dict[str, Any]:
    try:
        content: dict[str, Any] = answer.json()
    except ValueError:
        received = f"status {answer.status_code} and no JSON"
        raise ServiceError(
            message("a veritracer service", received, "check the URL"), answer.status_code
        ) from None
    if answer.status_code >= 400:
        parts = [str(content.get(name, "")) for name in ("expected", "received", "remedy")]
        raise ServiceError(message(*parts), answer.status_code, content)
    return content


def _seconds(text: str | None) -> float:
    try:
        return max(0.1, float(text or 1))
    except ValueError:
        return 1.0


def _cell(value: Any) -> Any:
    """Return a cell as JSON has it: Python's own value, and None where it is missing."""
    return None if is_missing(value) else to_python(value)


def _recourse(
    X: pd.DataFrame,
    answers: list[dict[str, Any]],
    about: dict[str, Any],
    notes: list[str],
    texts: Mapping[str, Texts],
    *,
    several: bool,
) -> RemoteRecourse:
    today = [{name: one[name] for name in ("decision", "probability")} for one in answers]
    documents = [{**today[i], **one} for i, each in enumerate(answers) for one in each["alternatives"]]
    rows = [(i, k) for i, each in enumerate(answers) for k in range(len(each["alternatives"]))]
    original, changes = X.iloc[[i for i, _ in rows]], [one["changes"] for one in documents]
    frame = pd.DataFrame(
        {name: _column(original[name], changes, texts.get(str(name))) for name in original.columns}
    )
    if several:
        number = pd.Index([k for _, k in rows], name="alternative")
        original, frame = (part.set_index(number, append=True) for part in (original, frame))
    table = pd.DataFrame({name: [one[name] for one in documents] for name in TABLE}, index=frame.index)
    return RemoteRecourse(frame, original, table, documents, about, notes)


def _column(
    column: pd.Series[Any], changes: list[list[dict[str, Any]]], texts: Texts | None
) -> pd.Series[Any]:
    """Return the column with its changes, in its own type where that is possible, as it writes numbers."""
    new = {i: c["to"] for i, some in enumerate(changes) for c in some if c["feature"] == column.name}
    if not new:
        return column
    if texts is not None and not pd.api.types.is_numeric_dtype(column.dtype):
        new = {i: texts.text(value) for i, value in new.items()}
    values = [new.get(i, value) for i, value in enumerate(column.array)]
    kind: Any = column.dtype
    if pd.api.types.is_integer_dtype(kind) and any(float(value) % 1 for value in new.values()):
        kind = float
    made: pd.Series[Any] = pd.Series(values, index=column.index, dtype=kind)
    return made


def _httpx() -> Any:
    try:
        import httpx
    except ModuleNotFoundError as error:
        said = message("the package httpx", "an install without it", "pip install 'veritracer[serve]'")
        raise ModuleNotFoundError(said, name=error.name) from None
    return httpx
