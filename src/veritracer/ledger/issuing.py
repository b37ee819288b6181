"""Issue promises: prove claims again, find duplicates, and append all promises of a batch at once.

Nothing is issued on trust: ``Counterfactuals`` are values that anybody can copy and edit. Before they become
promises, the texts to be stored are encoded again and must be the certified rows bit for bit, the model must
decide as they say, and every claim about later models is proved again for the very set that the ledger
names. Without the search for the largest radius that is cheap.

``prepare`` does all of that and needs no ledger, so that many processes can. ``without_duplicates`` leaves
out who has the promise already, and ``append`` writes the others within one transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from veritracer.bounds.ibp import Box
from veritracer.bounds.methods import EXACT
from veritracer.certificate import Certificates, certify
from veritracer.counterfactuals import Counterfactuals
from veritracer.encoding import Encoding
from veritracer.encoding.exact import widened
from veritracer.errors import DataError, LedgerError, PromisedMeanwhileError, message
from veritracer.ledger.chain import content_of
from veritracer.ledger.promises import IssuingModel, certified_region_of, check_threshold
from veritracer.ledger.records import (
    LeftOut,
    Record,
    Row,
    Terms,
    canonical,
    dated,
    left_out,
    private,
    raw_rows,
    records,
    table_of,
)
from veritracer.ledger.requests import Issued, Request
from veritracer.ledger.snapshot import PromiseStatus, Revocations
from veritracer.models.network import from_module, to_module
from veritracer.models.param_sets import ABSOLUTE, ParamSet
from veritracer.options import Effort
from veritracer.proving import decide
from veritracer.threads import one_thread
from veritracer.times import to_timestamp

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

    from veritracer.ledger.database import Reader, Writer

ROUNDING = 1e-9
"""Share of its size by which a bound may differ when it is computed again beside other rows."""

_REMEDY = "explain again, and issue what explain answers as it is"


@dataclass(frozen=True)
class Prepared:
    """Promises that were proved again and need only their numbers and dates; can be pickled.

    Attributes
    ----------
    model, terms
        The issuing model, and the terms of the promises.
    rows
        The positions of the promised counterfactuals in the result of ``explain``.
    records, openings
        A record for each, and with ``original="commitment"`` what opens it.
    applications, people
        What recognises each application, and its row in the table: alternatives of one row are one
        application.
    left_out
        The numbers of ``Issued``: what became no promise, by reason.
    newest
        The newest entry of the ledger when duplicates were left out; 0 before.
    """

    model: IssuingModel
    terms: Terms
    rows: NDArray[np.intp]
    records: list[Record]
    openings: list[bytes]
    applications: list[bytes]
    people: NDArray[np.intp]
    left_out: dict[str, int]
    newest: int = 0

    def issued(
        self, first: int, head: str, dates: tuple[float, float], request: Request | None = None
    ) -> Issued:
        """Return these promises as issued, numbered from ``first`` on."""
        return Issued(
            np.arange(first, first + len(self.records), dtype=np.int64),
            [record.id.decode() for record in self.records],
            head,
            self.left_out["skipped"],
            self.openings,
            issued=dates[0],
            expires=dates[1],
            uncertified=self.left_out["uncertified"],
            outgrown=self.left_out["outgrown"],
            out_of_range=self.left_out["out_of_range"],
            repeated=self.left_out["repeated"],
            answer=None if request is None else request.answer,
        )


def prepare(
    found: Counterfactuals, module: nn.Module, threshold: float, terms: Terms, ids: Sequence[Any]
) -> Prepared:
    """Prove the claims of counterfactuals again and turn those to be promised into records.

    The set of models is computed from the module: what the counterfactuals say of it is only compared.
    """
    check_threshold(threshold)
    found = _around(module, found)
    model = IssuingModel.of(module, found.encoding, threshold, found.param_set)
    if model.model_digest != found.model_digest:
        received = f"{model.model_digest[:12]}… where they speak of {found.model_digest[:12]}…"
        remedy = "pass the model that explain was called on, as it was then"
        raise LedgerError(message("the model that the certificates speak of", received, remedy))
    names = identities(ids, found)
    why = left_out(found, terms)
    rows = np.flatnonzero(why == LeftOut.NO)
    promised = found.select(rows)
    # Narrow numbers become exact decimals.
    tables = (widened(found.encoding, table) for table in (promised.frame, promised.original))
    shown, original = map(raw_rows, tables)
    check_claims(promised, shown, original, module, model)
    made, openings = records(promised, shown, original, [names[i] for i in rows.tolist()], terms)
    counts = {str(one): int((why == one).sum()) for one in LeftOut if one is not LeftOut.NO}
    return Prepared(
        model=model,
        terms=terms,
        rows=rows,
        records=made,
        openings=openings,
        applications=[_application(record.id, row) for record, row in zip(made, original, strict=True)],
        people=promised.row,
        left_out={**counts, "repeated": 0},
    )


def _around(module: nn.Module, found: Counterfactuals) -> Counterfactuals:
    """Return counterfactuals about the set that its own rule gives around the module.

    Absolute radii have no rule, and are stated as what they are.
    """
    claimed, (network, theta) = found.param_set, from_module(module)
    center = tuple(t.detach().to(torch.float64, copy=True) for t in theta)
    models = ParamSet(network, center, claimed.units, claimed.norm, claimed.kappa)
    if claimed.rule != ABSOLUTE:
        models = ParamSet.of(network, center, claimed.kappa, claimed.norm, claimed.rule)
    return replace(found, certificates=replace(found.certificates, param_set=models))


def without_duplicates(prepared: Prepared, reader: Reader) -> Prepared:
    """Leave out applications that have a live promise, in the ledger or from an earlier row."""
    if prepared.terms.allow_duplicate:
        return prepared
    repeated = have_promise(prepared, reader)
    first: dict[bytes, int] = {}
    each = zip(prepared.applications, prepared.people.tolist(), strict=True)
    repeated |= np.array([first.setdefault(key, person) != person for key, person in each], dtype=bool)
    rest = np.flatnonzero(~repeated).tolist()
    return replace(
        prepared,
        rows=prepared.rows[rest],
        records=[prepared.records[k] for k in rest],
        openings=[prepared.openings[k] for k in rest] if prepared.openings else [],
        applications=[prepared.applications[k] for k in rest],
        people=prepared.people[rest],
        left_out={**prepared.left_out, "repeated": int(repeated.sum())},
        newest=reader.last(),
    )


def append(prepared: Prepared, request: Request | None, writer: Writer, reader: Reader) -> Issued:
    """Append all promises, and the request; refuse what another writer has promised meanwhile."""
    if prepared.newest == 0:
        prepared = without_duplicates(prepared, reader)
    if not prepared.terms.allow_duplicate and have_promise(prepared, reader, prepared.newest).any():
        remedy = "run it again: what was promised meanwhile is left out then"
        expected = "nobody to promise the same meanwhile"
        raise PromisedMeanwhileError(message(expected, "another writer", remedy))
    issued, expires = prepared.terms.dates(writer.newest)
    model = _model_number(prepared.model, writer, reader, issued) if prepared.records else 0
    first = writer.seq + 1
    for record in prepared.records:
        writer.promise(record._replace(header=dated(record.header, issued, expires)), model)
    if request is not None:
        writer.request(request, first, issued, expires)
    return prepared.issued(first, writer.link.hex(), (issued, expires), request)


def _model_number(model: IssuingModel, writer: Writer, reader: Reader, time: float) -> int:
    """Return the number of the issuing model's entry, which is made if there is none."""
    for seq, kind, header in reader.stored_models():
        if content_of(kind, header)["digest"] == model.digest:
            return int(seq)
    header = canonical({"digest": model.digest, "time": time})
    return writer.model(header, *model.to_bytes())


# ---------------------------------------------------------------------------------- duplicates

NAME, ANY = 16, bytes(16)


def have_promise(prepared: Prepared, reader: Reader, after: int = 0) -> NDArray[np.bool_]:
    """Return a mask of the applications with a live promise that was made after an entry, (n,).

    An application is an id and a row, or the id alone where no row can be read.
    """
    now, cipher = to_timestamp(prepared.terms.now), prepared.terms.cipher
    revoked = Revocations.of(reader.events("release", "erasure"), None)
    known: set[bytes] = set()
    for rows in reader.applications(sorted({record.id for record in prepared.records}), after):
        status = PromiseStatus.of(rows, revoked, None, now)
        encrypted = status.header["encrypted"]
        for k in np.flatnonzero(status.live).tolist():
            known.add(_application(rows[k][2], _own_row(rows[k][3], cipher, encrypted=bool(encrypted[k]))))
    mask = [key in known or key[:NAME] + ANY in known for key in prepared.applications]
    return np.array(mask, dtype=bool)


def _own_row(text: bytes | None, cipher: Fernet | None, *, encrypted: bool) -> Row | None:
    """Return the applicant's own row; None where it cannot be read."""
    try:
        content = private(text, cipher, encrypted=encrypted)
    except LedgerError:
        return None  # under another key
    row = None if content is None else content.get("row")
    return row if isinstance(row, dict) else None


def _application(who: bytes, row: Row | None) -> bytes:
    """Return hashes of the id and of the values, which recognise an application; 1 and 1.0 are equal."""
    name = sha256(who).digest()[:NAME]
    if row is None:
        return name + ANY
    numbers = {k: float(v) if type(v) is int else v for k, v in row.items()}
    return name + sha256(repr(sorted(numbers.items())).encode("utf-8", "surrogatepass")).digest()[:NAME]


# ---------------------------------------------------------------------------------- ids


def identities(ids: Sequence[Any], found: Counterfactuals) -> list[bytes]:
    """Return the id of each counterfactual; refuse a list of another length, and empty ids."""
    people = int(found.row.max()) + 1 if len(found) else 0
    if isinstance(ids, str) or len(ids) != people:
        received = repr(ids) if isinstance(ids, str) else f"{len(ids):,} for {people:,} rows"
        raise DataError(message("an id for each row", received, "pass ids= with one for each row of X"))
    names = names_of(ids)
    return [names[person] for person in found.row.tolist()]


def names_of(ids: Sequence[Any]) -> list[bytes]:
    """Return ids as they are kept; refuse people without a name."""
    texts = ["" if _is_missing(one) else str(one) for one in ids]
    empty = sum(not text.strip() for text in texts)
    if empty:
        remedy = "a promise is made to somebody: give everybody an id"
        raise DataError(message("an id for each row", f"{empty:,} that are empty or missing", remedy))
    return [utf8(text) for text in texts]


def utf8(identity: Any, what: str = "an id") -> bytes:
    """Return the text as it is kept; refuse half of a character, which no file or notice can hold."""
    try:
        return str(identity).encode()
    except UnicodeEncodeError:
        remedy = "repair it, or read it anew with the encoding that it was written in"
        raise DataError(message(f"{what} of whole characters", ascii(str(identity)), remedy)) from None


def _is_missing(one: Any) -> bool:
    return one is None or one is pd.NA or one is pd.NaT or (isinstance(one, float) and one != one)


# ---------------------------------------------------------------------------------- claims


def check_claims(
    found: Counterfactuals,
    shown: Sequence[Row],
    original: Sequence[Row],
    module: nn.Module,
    issuing: IssuingModel,
) -> None:
    """Refuse counterfactuals that claim more than is shown, decided and proved."""
    if found.encoding_digest != issuing.encoding.digest:
        received = f"{issuing.encoding.digest[:12]}… where they speak of {found.encoding_digest[:12]}…"
        raise LedgerError(message("the encoding that the certificates speak of", received, _REMEDY))
    if len(found) == 0:
        return
    x, x_cf = found.x.cpu(), found.x_cf.cpu()
    _check_encoded("values that encode to the certified rows", issuing.encoding, shown, x_cf)
    _check_encoded("original rows that encode to the explained ones", issuing.encoding, original, x)
    _check_regions(found, x, x_cf)
    with one_thread():
        today, there = (decide(module, points).sign for points in (x, x_cf))
        _refuse("today's decisions on the original rows", found.favourable != (today > 0).numpy())
        _refuse("counterfactuals that are decided otherwise today", (there == today).numpy())
        _check_proofs(found, issuing, x, x_cf)


def _check_encoded(expected: str, encoding: Encoding, rows: Sequence[Row], certified: Tensor) -> None:
    try:
        encoded = encoding.encode(table_of(rows, encoding.schema.names), out_of_range="ignore")
    except (DataError, LedgerError) as error:
        raise LedgerError(message(expected, f"others ({error})", _REMEDY)) from error
    _refuse(expected, (encoded != certified).any(-1).numpy())


def _check_regions(found: Counterfactuals, x: Tensor, x_cf: Tensor) -> None:
    """Refuse regions other than overshoot and drift give, where something is proved of them."""
    region = certified_region_of(found).around(x_cf, x)
    box = region if isinstance(region, Box) else Box(region, region)
    pairs = (box.lower, found.region.lower.cpu()), (box.upper, found.region.upper.cpu())
    other = torch.stack([(ours != theirs).any(-1) for ours, theirs in pairs]).any(0).numpy()
    _refuse("the regions that overshoot and drift ask for", other & found.proved)


def _check_proofs(found: Counterfactuals, issuing: IssuingModel, x: Tensor, x_cf: Tensor) -> None:
    """Refuse claims about later models without a proof, or with a condition that is not stated."""
    certified, radius, worst = found.certified, found.radius, found.worst_logit
    kappa = np.where(certified, found.kappa, radius)
    _refuse("certificates whose bound is below 0", certified != (worst < 0))
    _refuse("a radius of at least kappa, and finite numbers", ~(radius >= kappa) | np.isinf(radius))
    region = Box(found.region.lower.cpu(), found.region.upper.cpu())
    network = to_module(issuing.network, issuing.theta)

    def certificates(kappa: float, some: NDArray[np.intp], effort: Effort = "fast") -> Certificates:
        part = torch.from_numpy(some)
        target = x_cf[part] if certified_region_of(found).is_point else region.select(part)
        models = issuing.param_set(kappa)
        return certify(network, x[part], target, models, radius=False, effort=effort)

    proved = found.proved
    exact = certified & (found.method == EXACT)  # what the exact stage proved, the bounds cannot
    for value, stage in sorted(set(zip(kappa[proved].tolist(), exact[proved].tolist(), strict=True))):
        some = np.flatnonzero(proved & (kappa == value) & (exact == stage))
        proof = certificates(value, some, "exact" if stage else "fast")
        _refuse("a proof for every certificate", ~proof.certified)
        _refuse("the condition that a proof needs", proof.conditional & ~found.conditional[some])
        named = certified[some]
        _refuse("the method that proves it", named & (proof.method != found.method[some]))
        slack = ROUNDING * (1 + np.abs(proof.worst_logit))
        _refuse("the bound that is proved", named & (worst[some] < proof.worst_logit - slack))
    for value in np.unique(radius[radius > kappa]).tolist():
        some = np.flatnonzero((radius > kappa) & (radius == value))
        _refuse("a proof for every radius", ~certificates(value, some).certified)


def _refuse(expected: str, wrong: NDArray[np.bool_]) -> None:
    if wrong.any():
        received = f"{int(wrong.sum()):,} of {len(wrong):,} rows without"
        raise LedgerError(message(expected, received, _REMEDY))
