"""Read and write dates and durations; inside, a time is seconds since 1970 in UTC."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from veritracer.errors import DataError, VeriTracerWarning, message

Moment = datetime | float | None
"""A date with a time zone, seconds since 1970, or None for now."""

FIRST = -62_135_596_800.0
"""First second of the year 1."""

LAST = 253_370_764_800.0
"""First second of the year 9999: later times cannot be written as dates everywhere."""

UNITS = {"d": 1, "w": 7, "y": 365}
"""Days in each unit of a duration in text."""

MONTHS = 12
"""Months in 365 days."""


def to_timestamp(given: Moment) -> float:
    """Convert a date, seconds or None (now) to seconds since 1970 in UTC.

    >>> to_timestamp(datetime(1970, 1, 2, tzinfo=UTC))
    86400.0
    """
    if given is None:
        return time.time()
    if isinstance(given, datetime):
        if given.tzinfo is None:
            remedy = "add one: datetime(..., tzinfo=timezone.utc)"
            raise DataError(message("a time with its time zone", str(given), remedy))
        return given.timestamp()
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
        raise DataError(message("a moment", repr(given), "give a datetime, or seconds since 1970"))
    if not FIRST <= given < LAST:
        raise DataError(message("a moment from the year 1 to 9998", f"{given:g}", "give seconds since 1970"))
    return float(given)


def entry_timestamp(now: float, newest: float, *, stated: bool) -> float:
    """Return the time of a new entry: ``now``, or the newest entry's time if that is later.

    The clocks of several writers need not agree, and nothing written today can change what was true on an
    earlier day. If ``now`` was ``stated`` by the caller instead of read from the clock, a warning says that
    it was raised.
    """
    if now < newest and stated:
        expected = f"a moment that is not before the ledger's newest entry ({format_time(newest)})"
        remedy = "the entry is dated like the newest one: entries cannot be added to a ledger's past"
        warnings.warn(message(expected, format_time(now), remedy), VeriTracerWarning, stacklevel=4)
    return max(now, newest)


def expiry_timestamp(given: timedelta | datetime | float | None, issued: float) -> float:
    """Return the end of a promise made at ``issued``: infinite for None; a duration starts at ``issued``."""
    if given is None:
        return math.inf
    end = issued + given.total_seconds() if isinstance(given, timedelta) else to_timestamp(given)
    if not end < LAST:
        raise DataError(message("an expiry before the year 9999", repr(given), "leave it out for no end"))
    if end <= issued:
        received = f"{format_time(end)}, issued {format_time(issued)}"
        raise DataError(message("an expiry after the day of issue", received, "give a later one"))
    return end


def format_time(seconds: float) -> str:
    """Format a time as ISO 8601 in UTC; infinity is "never".

    >>> format_time(86400.0), format_time(math.inf)
    ('1970-01-02T00:00:00+00:00', 'never')
    """
    if math.isinf(seconds):
        return "never"
    if not FIRST <= seconds < LAST:
        return f"{seconds:g} seconds since 1970"
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def parse_time(text: str) -> datetime:
    """Parse ``2027-01-31`` or ``2027-01-31T12:00+01:00``; UTC if no zone is named.

    >>> parse_time("2027-01-31").isoformat()
    '2027-01-31T00:00:00+00:00'
    """
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        remedy = "write 2027-01-31, or 2027-01-31T12:00+01:00"
        raise DataError(message("a date", repr(text), remedy)) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def parse_duration(text: str) -> timedelta:
    """Parse a duration: ``365d``, ``52w`` or ``1y``, a year having 365 days.

    >>> parse_duration("2w"), parse_duration("1y") == timedelta(365)
    (datetime.timedelta(days=14), True)
    """
    number, unit = text.strip()[:-1], text.strip()[-1:]
    try:
        if unit in UNITS and number.replace(".", "", 1).isdecimal():
            return timedelta(days=float(number) * UNITS[unit])
    except OverflowError:
        pass
    raise DataError(message("a duration", repr(text), "write 365d, 52w or 1y"))


def format_duration(term: timedelta) -> str:
    """Write a duration in days, as ``parse_duration`` reads it.

    >>> format_duration(timedelta(weeks=2)), format_duration(timedelta(hours=36))
    ('14d', '1.5d')
    """
    return f"{term / timedelta(days=1):.15g}d"


def month_length(months: int) -> timedelta:
    """Return the length of so many months, of which a year of 365 days has twelve."""
    return timedelta(days=365) * months / MONTHS


def whole_months(term: timedelta) -> int:
    """Return how many whole months a term has.

    >>> whole_months(timedelta(days=365)), whole_months(timedelta(days=30))
    (12, 0)
    """
    return int(MONTHS * term / timedelta(days=365) + 1e-9)


def parse_expiry(text: str) -> timedelta | datetime | None:
    """Parse a duration or a date (``365d``, ``52w``, ``1y``, ``2027-01-31``); ``never`` is None.

    >>> parse_expiry("2w"), parse_expiry("1y") == timedelta(365)
    (datetime.timedelta(days=14), True)
    """
    if text.strip() == "never":
        return None
    parsers: tuple[Callable[[str], timedelta | datetime], ...] = (parse_duration, parse_time)
    for parse in parsers:
        with suppress(DataError):
            return parse(text)
    remedy = "write 365d, 52w, 1y, 2027-01-31 or never"
    raise DataError(message("a duration or a date", repr(text), remedy))
