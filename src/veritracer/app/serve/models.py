"""Request and response bodies: rows from the schema of a model, options from ``veritracer.options``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Generic, Literal, Optional, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, create_model, model_validator
from pydantic_core import PydanticCustomError, PydanticKnownError

from veritracer.errors import ServiceError, message
from veritracer.options import ExplainOptions, IssueOptions
from veritracer.schema import Feature, Schema

Row = dict[str, Any]
RowT = TypeVar("RowT", bound=BaseModel)

LARGEST = 1e300
"""Numbers of this size and beyond are refused: encoding them could overflow."""


def refused(
    status: int, kind: str, expected: str, received: str, remedy: str, **members: Any
) -> ServiceError:
    """Return the exception that answers a request with a problem; ``members`` are further members of it."""
    problem = {"type": f"urn:veritracer:problem:{kind}", **members}
    return ServiceError(message(expected, received, remedy), status, problem)


# ---------------------------------------------------------------- rows


def row_model(schema: Schema, example: Row | None = None) -> type[BaseModel]:
    """Return the model of one application in raw values, with an example for the documentation.

    It checks types, categories and declared bounds; the encoding checks the rest. A feature that may be
    missing may be left out.
    """
    fields: dict[str, Any] = {}
    for i, feature in enumerate(schema.features):
        cell: Any = _cell_type(feature)
        if feature.missing == "refuse":
            fields[f"f{i}"] = cell, Field(alias=feature.name)
        else:
            fields[f"f{i}"] = Optional[cell], Field(None, alias=feature.name)  # noqa: UP045  # a value, not a type
    config = ConfigDict(
        extra="forbid", json_schema_extra=None if example is None else {"examples": [example]}
    )
    return create_model("Row", __config__=config, __doc__="One application in raw values.", **fields)


def _cell_type(feature: Feature) -> Any:
    """Return the type of a feature's values."""
    if not feature.is_numeric:
        return _one_of([*feature.categories, *feature.missing_codes])
    kind = int if feature.kind == "integer" else float
    number: Any = Annotated[kind, Field(ge=feature.lower, le=feature.upper), BeforeValidator(_number)]
    return number | _one_of(feature.missing_codes) if feature.missing_codes else number


def _one_of(values: Sequence[Any]) -> Any:
    return Annotated[Literal[tuple(values)], BeforeValidator(partial(_known, tuple(values)))]


def _number(value: Any) -> Any:
    """Refuse anything but a finite number; text and truth values are not numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < LARGEST:
        raise PydanticCustomError("number", "Input should be a finite number")
    return value


def _known(values: tuple[Any, ...], value: Any) -> Any:
    """Return the legal value that equals ``value``, and refuse others: 1.0 is 1, and True is neither."""
    for known in values:
        if known == value and isinstance(known, bool) == isinstance(value, bool):
            return known
    raise PydanticKnownError("literal_error", {"expected": " or ".join(map(repr, values))})


def row_of(row: BaseModel) -> Row:
    """Return the values of a row by the names of the features."""
    return row.model_dump(by_alias=True)


# ---------------------------------------------------------------- requests

CHECKSUM = "[0-9a-fA-F]{64}"
Text = Annotated[str, Field(max_length=500)]
Identity = Annotated[str, Field(min_length=1, max_length=200, pattern=r"\S")]


def _options(given: Any) -> Any:
    """Return the options in an object of JSON; an unknown name is refused as in Python."""
    try:
        return ExplainOptions(**given) if isinstance(given, dict) else given
    except TypeError as error:
        raise ValueError(*error.args) from None


class Body(BaseModel):
    """A body without unknown members."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)

    @classmethod
    def model_parametrized_name(cls, params: object) -> str:
        """Return the name of this body in the OpenAPI document, whatever the type of its rows."""
        return cls.__name__


class NoticeOptions(Body):
    """A notice beside each answer; the institution's own words are settings of the service."""

    format: Literal["text", "html"] = "text"
    recipient: Text | None = None
    reference: Text | None = None


class Rows(Body, Generic[RowT]):
    """Rows to decide."""

    rows: Annotated[list[RowT], Field(min_length=1)]


class RecourseRequest(Rows[RowT], Generic[RowT]):
    """Rows to explain, and the options of ``explain``."""

    options: Annotated[ExplainOptions, BeforeValidator(_options)] = ExplainOptions()
    notice: NoticeOptions | None = None


class PromiseRequest(RecourseRequest[RowT], Generic[RowT]):
    """Rows to promise recourse to, and whose they are."""

    ids: Annotated[list[Identity], Field(min_length=1)]
    choose: list[Annotated[int, Field(ge=0, strict=True)]] | None = Field(
        None, description="The alternative of each row that is promised, from 0; by default all of them."
    )
    expires: Annotated[str, Field(max_length=40)] | None = Field(
        None, description="Last day: 365d, 52w, 1y, a date, term, or never; by default that of the service."
    )
    allow_duplicate: StrictBool = Field(
        IssueOptions.allow_duplicate,
        description=IssueOptions.__pydantic_fields__["allow_duplicate"].description,  # type: ignore[attr-defined]
    )

    @model_validator(mode="after")
    def _check_lengths(self) -> PromiseRequest[RowT]:
        lengths = {len(self.ids), len(self.rows if self.choose is None else self.choose)}
        if lengths != {len(self.rows)}:
            raise PydanticCustomError("ids", "Every row should have one id (and one choice)")
        if self.choose is not None and max(self.choose) >= self.options.n:
            raise PydanticCustomError("choose", "Every choice should be below options.n")
        return self


class Pair(Body, Generic[RowT]):
    """A row, and a counterfactual for it."""

    row: RowT
    counterfactual: RowT


class CertificateRequest(Body, Generic[RowT]):
    """Pairs to certify."""

    pairs: Annotated[list[Pair[RowT]], Field(min_length=1)]
    kappa: Annotated[float, Field(ge=0, le=100, strict=True)] | None = None


class ErasureRequest(Body):
    """The person whose records are erased."""

    id: Identity


class VerifyRequest(Body):
    """A checksum that was noted earlier, if there is one."""

    checksum: Annotated[str, Field(pattern=f"^{CHECKSUM}$")] | None = None


# ---------------------------------------------------------------- responses


class Decision(BaseModel):
    """The decision of the model."""

    decision: Any
    favourable: bool
    probability: float


class DecisionsResponse(BaseModel):
    """A decision for each row."""

    decisions: list[Decision]


class ChangeResponse(BaseModel):
    """One feature that changes."""

    feature: str
    before: Any = Field(alias="from")
    after: Any = Field(alias="to")
    at_most: Any = None


class Proof(BaseModel):
    """The result of trying to certify one counterfactual."""

    certified: bool
    valid: bool
    radius: float | None
    worst_logit: float | None
    method: str
    conditional: bool
    cost: float


class Alternative(Proof):
    """One counterfactual with what was proved of it, or the reason why there is none."""

    status: Literal["certified", "valid", "none"]
    outcome: str
    reason: str
    n_changes: int
    agreement: float | None
    counterfactual: Row
    changes: list[ChangeResponse]
    region: dict[str, list[Any]] | None = None
    sentence: str
    notice: str | None


class Answer(Decision):
    """Today's decision about a row, and what would change it."""

    alternatives: list[Alternative]


class RecourseResponse(BaseModel):
    """An answer for each row, and the set of models that its certificates are about."""

    kappa: float
    norm: str
    rule: str
    radii: dict[str, float]
    center_digest: str
    threshold: float | None
    overshoot: float
    drift: dict[str, Any]
    term: str | None
    model_digest: str
    encoding_digest: str
    answers: list[Answer]
    notes: list[str]


class CertificateResponse(Proof):
    """The certificate of one pair, its changed features, and both decisions."""

    changes: list[str]
    today: Decision
    then: Decision


class CertificatesResponse(BaseModel):
    """A certificate for each pair."""

    kappa: float
    norm: str
    model_digest: str
    certificates: list[CertificateResponse]


class PromiseResponse(BaseModel):
    """A promise as the ledger has it; only its number where its record was erased."""

    number: int
    erased: bool
    row: int | None = None
    alternative: int | None = None
    id: str | None = None
    status: str | None = None
    issued: str | None = None
    expires: str | None = None
    kappa: float | None = None
    norm: str | None = None
    radii: dict[str, float] | None = None
    center_digest: str | None = None
    radius: float | None = None
    method: str | None = None
    worst_logit: float | None = None
    values: Row | None = None
    original: Row | None = None
    sentence: str | None = None
    model: str | None = None
    encoding: str | None = None
    notice: str | None = None


class Skipped(BaseModel):
    """A row without a promise, and the reason."""

    row: int
    outcome: str
    reason: str


class PromisesResponse(BaseModel):
    """The promises of a request; ``again`` if an earlier request under the same key issued them.

    ``skipped`` has an entry for each row without a promise; ``repeated`` counts those among them that have a
    live promise already.
    """

    promises: list[PromiseResponse]
    skipped: list[Skipped]
    repeated: int
    checksum: str
    again: bool


class ErasureResponse(BaseModel):
    """The numbers of the promises whose records were erased."""

    erased: list[int]


class LedgerResponse(BaseModel):
    """Numbers of promises by status, and the checksum of the chain."""

    live: int
    expired: int
    released: int
    erased: int
    checksum: str


class Finding(BaseModel):
    """An entry that is not as it was written."""

    model_config = ConfigDict(from_attributes=True)

    sequence: int
    what: str


class VerifyResponse(BaseModel):
    """The result of checking the chain."""

    model_config = ConfigDict(from_attributes=True)

    ok: bool
    count: int
    findings: list[Finding]
    entries: int
    promises: int
    erased: int
    checksum: str = Field(validation_alias="head")
    newer: int | None


class AuditsResponse(BaseModel):
    """The audits and deployments in the ledger, the newest first."""

    audits: list[dict[str, Any]]


class ModelResponse(BaseModel):
    """The model card."""

    model_config = ConfigDict(extra="allow")

    model_digest: str
    encoding_digest: str
    schema_: dict[str, Any] = Field(alias="schema")
    ranges: dict[str, list[float]]


class Problem(BaseModel):
    """A refusal as problem+json (RFC 9457), with the three parts of the library's messages."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    expected: str
    received: str
    remedy: str
    request_id: str
