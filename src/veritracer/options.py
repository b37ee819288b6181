"""Options of ``explain`` and ``issue``: every name, type, bound and default, stated once.

``ExplainOptions`` and ``IssueOptions`` check single values; ``checked`` compares them with a table's columns.
A value that fails raises ``DataError`` in Python; inside another pydantic model it is a validation error.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime, timedelta
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    Self,
    TypeVar,
    get_origin,
    get_type_hints,
)

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic.dataclasses import dataclass
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from veritracer.errors import DataError, listing, message, unknown_name
from veritracer.times import format_duration, parse_duration

if TYPE_CHECKING:
    from veritracer.encoding import Encoding
    from veritracer.schema import Feature, Schema

FINE_TUNING_EPOCHS = 20
"""Passes over the new rows when a model is updated."""

AUDIT_RECOURSE = 20
"""Broken promises for which an audit searches new recourse."""

BATCH_ROWS = 4_096
"""Rows of one block of a run over many cores: some seconds of work, so that all cores finish together."""

TERM = "365d"
"""Time for which counterfactuals are certified and promised by default."""

PYTHON_ONLY: dict[str, JsonValue] = {"python_only": True}
"""Mark of an option without a flag."""

Original = Literal["plain", "encrypted", "commitment"]
"""How a ledger keeps a person's own row."""

Effort = Literal["fast", "exact"]
"""Whether rows that no bound proves are left open, or decided by branch and bound."""

Uncertified = Literal["promise", "skip"]
"""What a ledger records for a counterfactual that is certified for no model but today's."""

Expires = timedelta | datetime | Literal["term"] | None
"""When promises end: after a duration, on a day, with the term, or never (None)."""

_P = ParamSpec("_P")
_Owner = TypeVar("_Owner")
_Options = TypeVar("_Options")
_Result = TypeVar("_Result")
_Class = TypeVar("_Class", bound=type)


# ---------------------------------------------------------------- single values


def _plain(value: Any) -> Any:
    """Convert a numpy scalar, or those in a mapping, to Python values."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    item = getattr(value, "item", None)
    return item() if callable(item) and getattr(value, "ndim", None) == 0 else value


def _refusal(expected: str, remedy: str) -> PydanticCustomError:
    parts = {"expected": expected, "remedy": remedy}
    return PydanticCustomError("option", "expected {expected}; {remedy}", parts)


def _drift(value: Any) -> Any:
    """Check an amount of at least 0, or a range of finite moves around 0."""
    pair = isinstance(value, Sequence) and not isinstance(value, str)
    ends = [_plain(end) for end in value] if pair else [_plain(value)]
    numbers = [float(end) for end in ends if isinstance(end, int | float) and not isinstance(end, bool)]
    if len(numbers) < len(ends) or len(ends) != (2 if pair else 1) or any(map(math.isnan, numbers)):
        remedy = "2 is up to 2 both ways, (0, 2) up to 2 more and never less"
        raise _refusal("a number or a pair of numbers", remedy)
    if any(map(math.isinf, numbers)):
        raise _refusal("a finite amount", "give the largest move that can happen")
    if pair and not numbers[0] <= 0 <= numbers[1]:
        remedy = "the shown value itself is covered too: (0, 2) is from there to 2 more"
        raise _refusal("a range of moves from at most 0 to at least 0", remedy)
    if not pair and numbers[0] < 0:
        raise _refusal("a number of at least 0", "give how far, not which way")
    return tuple(numbers) if pair else numbers[0]


def _term(value: Any) -> Any:
    """Convert a duration to text in days; no time at all is None."""
    try:
        length = parse_duration(value) if isinstance(value, str) else value
    except DataError:
        raise _refusal("a duration", "write 365d, 52w or 1y, or pass a timedelta") from None
    if not isinstance(length, timedelta | None):
        raise _refusal("a duration", "write 365d, 52w or 1y, or pass a timedelta")
    if length is not None and length < timedelta(0):
        raise _refusal("a duration of at least 0", "0d covers the shown values only")
    return format_duration(length) if length else None


def _names(value: Any) -> Any:
    """Convert a list of names to a tuple; leave anything else to the type."""
    return tuple(value) if isinstance(value, list) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_names)]
Price = Annotated[float, Field(gt=0, allow_inf_nan=True)]
Share = Annotated[float, Field(ge=0)]
Duration = Annotated[
    str | timedelta | None, BeforeValidator(_term), WithJsonSchema({"type": ["string", "null"]})
]
Moves = Annotated[float | tuple[float, float], BeforeValidator(_drift)]


# ---------------------------------------------------------------- errors


def _raises_data_errors(cls: _Class) -> _Class:
    """Make the constructor raise ``TypeError`` for an unknown name, and ``DataError`` for a bad value."""
    made: Any = cls
    validated: Callable[..., None] = made.__init__
    known: dict[str, FieldInfo] = made.__pydantic_fields__

    @functools.wraps(validated)
    def initialise(self: Any, **given: Any) -> None:
        for name in given:
            if name not in known:
                verb = cls.__name__.removesuffix("Options").lower()
                raise TypeError(unknown_name(f"an option of {verb}", name, known))
        try:
            validated(self, **_in_python(given, known))
        except ValidationError as error:
            raise _as_data_error(error, known) from None

    made.__init__ = initialise
    return cls


def _in_python(given: Mapping[str, Any], fields: Mapping[str, FieldInfo]) -> dict[str, Any]:
    """Convert numpy scalars, and leave out mappings that are None."""
    return {
        name: _plain(value)
        for name, value in given.items()
        if value is not None or fields[name].default_factory is not dict
    }


def _as_data_error(error: ValidationError, fields: Mapping[str, FieldInfo]) -> DataError:
    """Return the first problem as an error with three parts."""
    first = error.errors(include_url=False)[0]
    context, received = first.get("ctx", {}), repr(first["input"])
    if not first["loc"]:  # options that contradict each other
        return DataError(message(context["expected"], context["received"], context["remedy"]))
    name, *inside = map(str, first["loc"])
    if first["type"] == "missing":
        return DataError(message(f"{name}=", "nothing", fields[name].description or ""))
    value = f"{inside[0]!r} in {name}" if inside and get_origin(fields[name].annotation) is Mapping else name
    if first["type"] == "option":
        return DataError(message(f"{context['expected']} for {value}", received, context["remedy"]))
    example = next(iter(fields[name].examples or ()), None)
    default = fields[name].default
    remedy = f"the default is {default!r}" if example is None else f"for example, {name}={example!r}"
    demand = first["msg"].removeprefix("Input should be ").partition(", error:")[0]
    return DataError(message(f"{value} to be {demand}", received, remedy))


# ---------------------------------------------------------------- the options

_CONFIG = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


@_raises_data_errors
@dataclass(frozen=True, kw_only=True, config=_CONFIG)
class ExplainOptions:
    """Options of one call of ``explain``."""

    kappa: Annotated[
        float | None,
        Field(ge=0, examples=[0.2], description="Certify at this radius instead of the model's own."),
    ] = None
    max_changes: Annotated[
        int | None, Field(ge=1, examples=[3], description="Change at most this many features.")
    ] = None
    cost: Annotated[
        Mapping[str, Price],
        Field(
            examples=[{"savings": 2.0}],
            description="Price of one full range of each feature: 1 by default, infinite for never.",
        ),
    ] = Field(default_factory=dict)
    immutable: Annotated[
        Names, Field(examples=[["savings"]], description="Leave these features unchanged.")
    ] = ()
    only_unfavourable: Annotated[bool, Field(description="Leave rows alone that are favourable already.")] = (
        True
    )
    plausibility: Annotated[
        float | None,
        Field(
            ge=0,
            examples=[0.5],
            description=(
                "Weight of the distance to the training data, in shares of the cost. "
                "By default a model with a panel searches toward prototypes instead."
            ),
        ),
    ] = None
    agreement: Annotated[
        float | None,
        Field(
            ge=0,
            le=1,
            examples=[0.5],
            description="Require this share of the panel's held-out members to accept the counterfactual.",
        ),
    ] = None
    plausible: Annotated[
        bool,
        Field(description="Require a local outlier factor of at most 1.5 among rows of the wanted label."),
    ] = False
    limits: Annotated[
        Mapping[str, Share],
        Field(
            examples=[{"amount": 0.3}],
            description="Change a number by at most this share of the person's own value.",
        ),
    ] = Field(default_factory=dict)
    extremes: Annotated[
        bool,
        Field(description="Allow values outside the 5 % and 95 % quantiles of rows of the wanted label."),
    ] = False
    n: Annotated[
        int,
        Field(
            ge=1,
            examples=[3],
            description="Return up to this many alternatives for each row, with different features changed.",
        ),
    ] = 1
    time_budget: Annotated[
        float | None,
        Field(
            ge=0, examples=[60], description="Stop the search after this many seconds, with the best so far."
        ),
    ] = None
    effort: Annotated[
        Effort,
        Field(description="With exact, decide by branch and bound what the bounds leave open."),
    ] = "fast"
    overshoot: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            examples=[0.05],
            description="Also certify changes that go further by this share of the feature's range.",
        ),
    ] = 0.0
    drift: Annotated[
        Mapping[str, Moves],
        Field(
            examples=[{"age": (0, 2)}],
            description="Also certify that these features move by themselves, up to so far, in raw units.",
        ),
    ] = Field(default_factory=dict)
    term: Annotated[
        Duration,
        Field(
            examples=["52w"],
            description="Also cover how the schema's features move by themselves within this time.",
        ),
    ] = TERM
    refine: Annotated[
        bool, Field(description="Search for the closest counterfactual instead of taking the generator's.")
    ] = True
    search_radius: Annotated[
        bool, Field(description="Search for the largest kappa with a proof instead of testing one.")
    ] = True

    @model_validator(mode="after")
    def _check_refined(self) -> Self:
        """Refuse, without refinement, options that act on the refinement only."""
        used = {
            "max_changes": self.max_changes is not None,
            "n": self.n > 1,
            "cost": bool(self.cost),
            "immutable": bool(self.immutable),
            "plausibility": bool(self.plausibility),
            "limits": bool(self.limits),
        }
        names = [name for name, given in used.items() if given]
        if names and not self.refine:
            parts = {
                "expected": "refine=True",
                "received": f"refine=False with {listing(names)}",
                "remedy": "leave refine=False out, or the others",
            }
            raise PydanticCustomError("options", "expected {expected}, got {received}; {remedy}", parts)
        return self

    def checked(self, encoding: Encoding) -> Self:
        """Return the options for one table, with the drift that its schema states for the term.

        Raises
        ------
        DataError
            If an option names a feature that is unknown or of the wrong kind.
        """
        schema = encoding.schema
        for option in ("cost", "immutable", "limits", "drift"):
            for name in getattr(self, option):
                if name not in schema.names:
                    raise DataError(unknown_name(f"a feature in {option}", name, schema.names))
                _check_kind(option, schema[name])
        cost = {**self.cost, **dict.fromkeys(self.immutable, math.inf)}
        return replace(self, cost=cost, drift={**drift_within(schema, self.duration), **self.drift})

    def until(self, expires: Expires) -> Self:
        """Return the options for promises with this end: a shorter duration shortens the term."""
        if not isinstance(expires, timedelta) or expires >= self.duration:
            return self
        return replace(self, term=expires)

    @property
    def duration(self) -> timedelta:
        """Return the length of the term."""
        return parse_duration(self.term) if isinstance(self.term, str) else self.term or timedelta(0)


@_raises_data_errors
@dataclass(frozen=True, kw_only=True, config=_CONFIG)
class IssueOptions(ExplainOptions):
    """Options of one call of ``issue``: those of ``explain``, and the terms of the promises.

    ``key`` and ``now`` are for Python only: the command line reads keys from files, and promises of today.
    """

    ids: Annotated[Any, Field(description="Identifiers of the applicants.")]
    ledger: Annotated[Any, Field(description="The ledger: its file, or the URL of its database.")]
    expires: Annotated[
        Expires,
        Field(description="Duration or last day of the promises, if not the end of the term."),
    ] = "term"
    original: Annotated[
        Original, Field(description="Keep people's own rows as text, encrypted, or as a commitment.")
    ] = "plain"
    uncertified: Annotated[
        Uncertified,
        Field(description="Skip counterfactuals without a certificate, or promise what was proved of them."),
    ] = "skip"
    allow_duplicate: Annotated[
        bool, Field(description="Promise again what the same application has been promised already.")
    ] = False
    key: Annotated[
        bytes | str | None,
        Field(json_schema_extra=PYTHON_ONLY, description="Key of encrypted original rows."),
    ] = Field(default=None, repr=False)
    now: Annotated[
        datetime | None,
        Field(json_schema_extra=PYTHON_ONLY, description="Date of the promises; None for the present time."),
    ] = None

    @model_validator(mode="after")
    def _check_term(self) -> Self:
        """Refuse promises that outlast their term."""
        if isinstance(self.expires, timedelta) and self.term is not None and self.expires > self.duration:
            length = format_duration(self.expires)
            parts = {
                "expected": f"expires within the term of {self.term}",
                "received": length,
                "remedy": f"state term={length!r} too",
            }
            raise PydanticCustomError("options", "expected {expected}, got {received}; {remedy}", parts)
        return self

    def of_explain(self) -> ExplainOptions:
        """Return the options of ``explain`` alone; the term ends where a duration of the promises does."""
        given = {field.name: getattr(self, field.name) for field in fields(ExplainOptions)}
        return ExplainOptions(**given).until(self.expires)

    @property
    def end(self) -> timedelta | datetime | None:
        """Return when the promises end: as stated, or with the term; None is never."""
        return promise_end(self.expires, self.term)


def _check_kind(option: str, feature: Feature) -> None:
    """Refuse a feature that has no amount to limit, or no order to move in."""
    received = f"the {feature.kind} feature {feature.name!r}"
    if option == "limits" and not feature.is_numeric:
        remedy = "limit numbers only; actions in the schema say what may change"
        raise DataError(message("a numeric feature in limits", received, remedy))
    if option == "drift" and feature.kind == "categorical":
        expected = "a feature that can drift"
        raise DataError(message(expected, received, "name numbers and ordered features only"))


def drift_within(schema: Schema, term: timedelta) -> dict[str, tuple[float, float]]:
    """Return how far the features of a schema move by themselves within a term."""
    moves = {feature.name: feature.drift_within(term) for feature in schema.features}
    return {name: ends for name, ends in moves.items() if any(ends)}


def promise_end(expires: Expires, term: str | timedelta | None) -> timedelta | datetime | None:
    """Return when promises end: as stated, or with the term; None is never."""
    if expires != "term":
        return expires
    length = ExplainOptions(term=term).duration
    if not length:
        remedy = "state how long the promises hold, such as expires=timedelta(days=30)"
        raise DataError(message("a term, or expires=", "neither", remedy))
    return length


# ---------------------------------------------------------------- signatures


def takes(
    options: Callable[_P, _Options],
) -> Callable[[Callable[[_Owner, Any, _Options], _Result]], Callable[Concatenate[_Owner, Any, _P], _Result]]:
    """Turn a method ``(self, X, options)`` into ``(self, X, *, name=value, ...)``.

    The names, types and defaults of the keywords are those of the type ``options``.
    """

    def decorate(
        method: Callable[[_Owner, Any, _Options], _Result],
    ) -> Callable[Concatenate[_Owner, Any, _P], _Result]:
        @functools.wraps(method)
        def call(self: _Owner, X: Any, *args: _P.args, **given: _P.kwargs) -> _Result:
            return method(self, X, options(*args, **given))

        written = inspect.signature(method)
        own = [p for p in written.parameters.values() if p.name != "options"]
        call.__signature__ = written.replace(parameters=[*own, *_parameters(options)])  # type: ignore[attr-defined]
        # X may also be passed by name, which Concatenate cannot express.
        return call  # type: ignore[return-value]

    return decorate


def _parameters(options: Any) -> list[inspect.Parameter]:
    """Return a keyword of a signature for each field of an options type."""
    hints = get_type_hints(options)  # without bounds and descriptions
    fields: Mapping[str, FieldInfo] = options.__pydantic_fields__
    parameters = []
    for name, field in fields.items():
        default = inspect.Parameter.empty if field.is_required() else field.default
        annotation = hints[name]
        if field.default_factory is dict:  # None stands for an empty mapping
            default, annotation = None, annotation | None
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(name, kind, default=default, annotation=annotation))
    return parameters
