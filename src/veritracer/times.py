"""Read and write dates and durations; inside, a time is seconds since 1970 in UTC."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime, timedelta

from veritracer.errors import DataError, LedgerError, message

Moment = datetime | float | None
"""A date with a time zone, seconds since 1970, or None for now."""

FIRST = -62_135_596_800.0
"""First second of the year 1."""

LAST = 253_370_764_800.0
"""First second of the year 9999: later times cannot be written as dates everywhere."""

CLOCK_TOLERANCE = 300.0
"""Seconds by which the clocks of those who write into a ledger may differ."""

UNITS = {"d": 1, "w": 7, "y": 365}
"""Days in each unit of a duration on the command line."""


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


def entry_timestamp(now: float, newest: float) -> float:
    """Return the time of a new entry: ``now``, or the newest entry's time if that is a little later.

    The clocks of several writers need not agree to the second, and nothing written today can change what was
    true on an earlier day. A time further behind the newest entry comes from a wrong clock, and is refused.
    """
    if now < newest - CLOCK_TOLERANCE:
        expected = f"a time not before the ledger's newest entry ({format_time(newest)})"
        remedy = (
            "set this clock, or if the one of that entry was wrong: "
            "veritracer verify --correct-clock REASON (Ledger.correct_clock)"
        )
        raise LedgerError(message(expected, format_time(now), remedy))
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


def parse_expiry(text: str) -> timedelta | datetime | None:
    """Parse a duration or a date (``365d``, ``52w``, ``1y``, ``2027-01-31``); ``never`` is None.

    >>> parse_expiry("2w"), parse_expiry("1y") == timedelta(365)
    (datetime.timedelta(days=14), True)
    """
    if text.strip() == "never":
        return None
    number, unit = text.strip()[:-1], text.strip()[-1:]
    try:
        if unit in UNITS and number.replace(".", "", 1).isdecimal():
            return timedelta(days=float(number) * UNITS[unit])
        return parse_time(text)
    except (DataError, OverflowError):
        remedy = "write 365d, 52w, 1y, 2027-01-31 or never"
        raise DataError(message("a duration or a date", repr(text), remedy)) from None
