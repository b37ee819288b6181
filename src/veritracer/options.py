"""Options of ``explain`` and ``issue``: every name, type, bound and default, stated once.

``ExplainOptions``, ``Terms`` and ``IssueOptions``, which is both, check single values; ``checked`` compares
them with a table's columns. A value that fails raises ``DataError`` in Python; inside another pydantic model
it is a validation error.
"""

from __future__ import annotations

import functools
import inspect
import math
import textwrap
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
    SkipValidation,
    ValidationError,
    model_validator,
)
from pydantic.dataclasses import dataclass
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from veritracer.errors import DataError, listing, message, unknown_name
from veritracer.times import Moment, entry_timestamp, expiry_timestamp, to_timestamp

if TYPE_CHECKING:
    from veritracer.encoding import Encoding
    from veritracer.schema import Feature, Schema

KAPPA = 0.2
"""Size of the set of models that certificates cover by default."""

HOLDOUT = 0.2
"""Share of the rows on which a model is evaluated by default."""

FINE_TUNING_EPOCHS = 20
"""Passes over the new rows when a model is updated."""

AUDIT_RECOURSE = 20
"""Broken promises for which an audit searches new recourse."""

BATCH_ROWS = 4_096
"""Rows of one block of a run over many cores: some seconds of work, so that all cores finish together."""

PROMISE_TERM = timedelta(days=365)
"""Duration of a promise by default."""

PYTHON_ONLY: dict[str, JsonValue] = {"python_only": True}
"""Mark of an option without a flag."""

Original = Literal["plain", "encrypted", "commitment"]
"""How a ledger keeps a person's own row."""

Effort = Literal["fast", "exact"]
"""Whether rows that no bound proves are left open, or decided by branch and bound."""

Uncertified = Literal["promise", "skip"]
"""What a ledger records for a counterfactual that is certified for no model but today's."""

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


def _names(value: Any) -> Any:
    """Convert a list of names to a tuple; leave anything else to the type."""
    return tuple(value) if isinstance(value, list) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_names)]
Price = Annotated[float, Field(gt=0, allow_inf_nan=True)]
Share = Annotated[float, Field(ge=0)]
Moves = Annotated[float | tuple[float, float], BeforeValidator(_drift)]


# ---------------------------------------------------------------- errors


def raises_data_errors(cls: _Class) -> _Class:
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

OPTIONS_CONFIG = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
"""Options take no unknown names, no text for numbers, and no infinity."""


@raises_data_errors
@dataclass(frozen=True, kw_only=True, config=OPTIONS_CONFIG)
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
        Names,
        Field(
            examples=[["savings"]],
            description="Leave these features unchanged, besides those that the schema calls immutable.",
        ),
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
                "Weight of the distance to the training data, in shares of the cost. By default a model "
                "with a panel searches toward prototypes instead: training rows with the wanted label that "
                "all models of the set and the panel accept."
            ),
        ),
    ] = None
    agreement: Annotated[
        float | None,
        Field(
            ge=0,
            le=1,
            examples=[0.5],
            description=(
                "Require this share of the panel's held-out members to accept the counterfactual; "
                "otherwise the row gets none, with this reason."
            ),
        ),
    ] = None
    plausible: Annotated[
        bool,
        Field(
            description=(
                "Require a local outlier factor of at most 1.5 among rows of the wanted label; otherwise "
                "the row gets no counterfactual, with this reason."
            )
        ),
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
        Field(
            description=(
                "Allow all legal values. By default, if labels are known, numbers stay between the 5 % and "
                "95 % quantiles of rows of the wanted label, and categories occur in at least 0.5 % of "
                "them."
            )
        ),
    ] = False
    n: Annotated[
        int,
        Field(
            ge=1,
            examples=[3],
            description=(
                "Return up to this many alternatives for each row, with different features changed. They "
                "come in the order in which the search prefers them, which with prototypes is not that of "
                "the cost."
            ),
        ),
    ] = 1
    time_budget: Annotated[
        float | None,
        Field(
            ge=0,
            examples=[60],
            description=(
                "Stop the search after this many seconds, with the best so far; the exact stage gets what "
                "is left. Without it, results are deterministic."
            ),
        ),
    ] = None
    effort: Annotated[
        Effort,
        Field(
            description=(
                "With exact, decide by branch and bound what the bounds leave open, for sets of norm linf: "
                "a counterfactual is then certified, or broken by a model that is named."
            )
        ),
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
            description=(
                "Also certify that these features move by themselves, in raw units or levels: up to so far "
                "both ways, or from the first to the second of two numbers. The actions of the schema do "
                "not limit it."
            ),
        ),
    ] = Field(default_factory=dict)
    refine: Annotated[
        bool,
        Field(
            description=(
                "Search for the closest counterfactual instead of taking the generator's, which is faster."
            )
        ),
    ] = True
    search_radius: Annotated[
        bool,
        Field(
            description=(
                "Search for the largest kappa with a proof. Otherwise the radius is kappa for certified "
                "rows, and 0 for the others."
            )
        ),
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
        """Return the options for one table, with the yearly drift that its schema states.

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
        return replace(self, cost=cost, drift={**yearly_drift(schema), **self.drift})


@raises_data_errors
@dataclass(frozen=True, kw_only=True, config=OPTIONS_CONFIG)
class Terms:
    """Terms that all promises of one call of ``issue`` share.

    ``key`` and ``now`` are for Python only: the command line reads keys from files, and promises of today.
    """

    expires: Annotated[
        timedelta | datetime | None,
        Field(description="Duration or last day of the promises, if they end."),
    ] = PROMISE_TERM
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
        Field(
            json_schema_extra=PYTHON_ONLY,
            description="Key of encrypted original rows; without one, that of the ledger.",
        ),
    ] = Field(default=None, repr=False)
    now: Annotated[
        Moment,
        SkipValidation,  # ``dates`` checks it
        Field(json_schema_extra=PYTHON_ONLY, description="Date of the promises; None for the present time."),
    ] = None

    def dates(self, newest: float = -math.inf) -> tuple[float, float]:
        """Return when promises that follow an entry of time ``newest`` are issued, and when they expire."""
        issued = entry_timestamp(to_timestamp(self.now), newest, stated=self.now is not None)
        return issued, expiry_timestamp(self.expires, issued)


@raises_data_errors
@dataclass(frozen=True, kw_only=True, config=OPTIONS_CONFIG)
class IssueOptions(Terms, ExplainOptions):
    """Options of one call of ``issue``: those of ``explain``, and the terms of the promises."""

    ids: Annotated[Any, Field(description="Identifiers of the applicants, one for each row.")]
    ledger: Annotated[Any, Field(description="The ledger: its file, or the URL of its database.")]

    def of_explain(self) -> ExplainOptions:
        """Return the options of ``explain`` alone."""
        return ExplainOptions(**{field.name: getattr(self, field.name) for field in fields(ExplainOptions)})


def _check_kind(option: str, feature: Feature) -> None:
    """Refuse a feature that has no amount to limit, or no order to move in."""
    received = f"the {feature.kind} feature {feature.name!r}"
    if option == "limits" and not feature.is_numeric:
        remedy = "limit numbers only; actions in the schema say what may change"
        raise DataError(message("a numeric feature in limits", received, remedy))
    if option == "drift" and feature.kind == "categorical":
        expected = "a feature that can drift"
        raise DataError(message(expected, received, "name numbers and ordered features only"))


def yearly_drift(schema: Schema, years: float = 1.0) -> dict[str, tuple[float, float]]:
    """Return the moves that the schema states for so many years, rounded up to whole years."""
    whole = max(1, math.ceil(years - 1e-9))
    return {
        f.name: (whole * f.yearly[0], whole * f.yearly[1]) for f in schema.features if f.yearly is not None
    }


# ---------------------------------------------------------------- signatures


def takes(
    options: Callable[_P, _Options],
) -> Callable[[Callable[[_Owner, Any, _Options], _Result]], Callable[Concatenate[_Owner, Any, _P], _Result]]:
    """Turn a method ``(self, X, options)`` into ``(self, X, *, name=value, ...)``.

    The names, types and defaults of the keywords are those of the type ``options``. Its descriptions become
    the section *Parameters* of the docstring, before *Returns* if there is one.
    """

    def decorate(
        method: Callable[[_Owner, Any, _Options], _Result],
    ) -> Callable[Concatenate[_Owner, Any, _P], _Result]:
        @functools.wraps(method)
        def call(self: _Owner, X: Any, *args: _P.args, **given: _P.kwargs) -> _Result:
            return method(self, X, options(*args, **given))

        written = inspect.signature(method)
        others = [p for p in written.parameters.values() if p.name != "options"]
        call.__signature__ = written.replace(parameters=[*others, *_parameters(options)])  # type: ignore[attr-defined]
        call.__doc__ = _documented(inspect.cleandoc(method.__doc__ or ""), options)
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


def _documented(text: str, options: Any) -> str:
    """Return a docstring with a numpydoc parameter for each field of an options type."""
    fields: Mapping[str, FieldInfo] = options.__pydantic_fields__
    lines = ["Parameters", "----------"]
    for name, field in fields.items():
        example = next(iter(field.examples or ()), None)
        shown = f" For example ``{name}={example!r}``." if isinstance(example, Mapping | Sequence) else ""
        described = textwrap.wrap(f"{field.description}{shown}", 100, break_on_hyphens=False)
        lines += [name, *(f"    {line}" for line in described)]
    summary, returns, rest = text.partition("Returns\n-------\n")
    return "\n".join([summary.rstrip(), "", *lines]) + (f"\n\n{returns}{rest}" if returns else "")
