"""What goes over the wire, as types: requests are read strictly, answers are documented."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr

from veritracer.options import IssueOptions

Cell = StrictBool | StrictInt | StrictFloat | StrictStr | None
RowIn = dict[str, Cell]
Amount = Annotated[float, Field(ge=0, le=1e12)]
Text = Annotated[str, Field(max_length=500)]


class Strict(BaseModel):
    """Read as it is meant: no unknown member, no number that is none, no text for a number."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class Options(Strict):
    """What can be asked of ``explain``; what is left out is the library's default."""

    kappa: Annotated[float, Field(ge=0, le=100)] | None = None
    max_changes: Annotated[int, Field(ge=1, le=10_000)] | None = None
    cost: dict[str, Annotated[float, Field(gt=0, le=1e12)]] | None = Field(
        None, description="What one full range of a feature costs; 1 where nothing is said."
    )
    lock: list[str] | None = Field(None, description="Features that must not change.")
    only_unfavourable: bool | None = None
    plausibility: Amount | None = None
    agreement: Annotated[float, Field(ge=0, le=1)] | None = None
    plausible: bool | None = None
    limits: dict[str, Amount] | None = None
    extremes: bool | None = None
    n: Annotated[int, Field(ge=1, le=10)] | None = None
    time_budget: Annotated[float, Field(ge=0, le=600)] | None = None
    overshoot: Annotated[float, Field(ge=0, le=1)] | None = None
    drift: dict[str, Amount | tuple[float, float]] | None = None
    refine: bool | None = None
    search_radius: bool | None = None


class LetterAsked(Strict):
    """A letter beside each answer; the institution's own words are the service's settings."""

    format: Literal["text", "html"] = "text"
    recipient: Text | None = None
    reference: Text | None = None


class DecisionsIn(Strict):
    """Rows to decide."""

    rows: Annotated[list[RowIn], Field(min_length=1)]


class RecourseIn(Strict):
    """Rows to explain."""

    rows: Annotated[list[RowIn], Field(min_length=1)]
    options: Options = Options()
    letter: LetterAsked | None = None


class Pair(Strict):
    """A row, and the one that it might become."""

    row: RowIn
    counterfactual: RowIn


class CertificatesIn(Strict):
    """Pairs to certify."""

    pairs: Annotated[list[Pair], Field(min_length=1)]
    kappa: Annotated[float, Field(ge=0, le=100)] | None = None


class PromisesIn(Strict):
    """Rows to promise recourse to, and whose they are."""

    rows: Annotated[list[RowIn], Field(min_length=1)]
    ids: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=200, pattern=r"\S")]], Field(min_length=1)
    ]
    options: Options = Options()
    choose: list[Annotated[int, Field(ge=0, le=9)]] | None = Field(
        None, description="Which alternative of each row is promised, from 0; all of them if left out."
    )
    expires: Annotated[str, Field(max_length=40)] | None = Field(
        None, description="Until when: 365d, 52w, 1y, a date, or never; as the service says if left out."
    )
    letter: LetterAsked | None = None
    allow_duplicate: bool = Field(
        IssueOptions.allow_duplicate,
        description="Promise again what the same application (id and row) was promised already.",
    )


class ErasureIn(Strict):
    """Whose records are to go."""

    id: Annotated[str, Field(min_length=1, max_length=200)]


class VerifyIn(Strict):
    """A head that was noted earlier, if there is one."""

    head: Annotated[str, Field(pattern="^[0-9a-fA-F]{64}$")] | None = None


# ---------------------------------------------------------------- answers


class Decision(BaseModel):
    """What the model decides today."""

    decision: Any
    favourable: bool
    probability: float


class DecisionsOut(BaseModel):
    """A decision for each row."""

    decisions: list[Decision]


class ChangeOut(BaseModel):
    """One feature that changes."""

    model_config = ConfigDict(populate_by_name=True)

    feature: str
    before: Any = Field(alias="from")
    after: Any = Field(alias="to")
    at_most: Any = None


class Alternative(BaseModel):
    """One answer: what is proved of it, or why there is none."""

    status: Literal["certified", "valid", "none"]
    outcome: str
    reason: str
    valid: bool
    certified: bool
    radius: float
    worst_logit: float | None
    method: str
    conditional: bool
    cost: float
    n_changes: int
    agreement: float | None
    counterfactual: dict[str, Any]
    changes: list[ChangeOut]
    region: dict[str, list[Any]] | None = None
    sentence: str
    letter: str | None


class Answered(Decision):
    """Today's decision about a row, and what would change it."""

    alternatives: list[Alternative]


class RecourseOut(BaseModel):
    """An answer for each row, and the set of models that its certificates speak of."""

    kappa: float
    norm: str
    radius_rule: Any
    rule: str
    radii: dict[str, float]
    center_digest: str
    threshold: float | None
    overshoot: float
    drift: dict[str, Any]
    model_digest: str
    encoding_digest: str
    answers: list[Answered]
    notes: list[str]


class CertificateOut(BaseModel):
    """What was proved of one pair, both decisions, and what the change costs."""

    certified: bool
    valid: bool
    radius: float | None
    worst_logit: float | None
    method: str
    conditional: bool
    cost: float
    changes: list[str]
    today: Decision
    then: Decision


class CertificatesOut(BaseModel):
    """A certificate for each pair."""

    kappa: float
    norm: str
    model_digest: str
    certificates: list[CertificateOut]


class PromiseOut(BaseModel):
    """A promise as the ledger has it; only its number where its record was erased."""

    number: int
    erased: bool
    row: int | None = None
    alternative: int | None = None
    id: str | None = None
    issued: str | None = None
    expires: str | None = None
    kappa: float | None = None
    norm: str | None = None
    radii: dict[str, float] | None = None
    center_digest: str | None = None
    radius: float | None = None
    method: str | None = None
    worst_logit: float | None = None
    values: dict[str, Any] | None = None
    original: dict[str, Any] | None = None
    sentence: str | None = None
    model: str | None = None
    encoding: str | None = None
    letter: str | None = None


class Skipped(BaseModel):
    """A row without a promise, and why."""

    row: int
    outcome: str
    reason: str


class PromisesOut(BaseModel):
    """What was issued; ``again`` where that was for an earlier request under the same key.

    ``skipped`` has a line for each row without a promise; ``repeated`` of them have a live promise already.
    """

    promises: list[PromiseOut]
    skipped: list[Skipped]
    repeated: int
    head: str
    again: bool


class ErasedOut(BaseModel):
    """The numbers whose records are gone."""

    erased: list[int]


class LedgerOut(BaseModel):
    """How many promises there are, by what has become of them, and the head of the chain."""

    live: int
    expired: int
    released: int
    erased: int
    head: str


class FindingOut(BaseModel):
    """Something that is not as it was written."""

    sequence: int
    what: str


class VerifyOut(BaseModel):
    """What checking the chain found."""

    ok: bool
    count: int
    findings: list[FindingOut]
    entries: int
    promises: int
    erased: int
    head: str
    newer: int | None


class AuditsOut(BaseModel):
    """The audits and deployments that the ledger records, the newest first."""

    audits: list[dict[str, Any]]


class ModelOut(BaseModel):
    """The model's card."""

    model_config = ConfigDict(extra="allow")

    model_digest: str
    encoding_digest: str
    features: list[dict[str, Any]]


class ProblemOut(BaseModel):
    """problem+json (RFC 9457) with the library's three parts."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    expected: str
    received: str
    remedy: str
    request_id: str
