"""Numbers as text: percentages are rounded to nearest, and never claim all or none for some."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from veritracer.formatting import format_percent


@given(st.integers(1, 10**6).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_all_and_none_are_reserved_and_the_rest_is_the_nearest_tenth(counts: tuple[int, int]) -> None:
    some, every = counts
    for said in (format_percent(some / every), format_percent(some / every, fixed=True)):
        assert (said == "100 %") == (some == every)
        assert (said in ("0 %", "0.0 %")) == (some == 0)
        if said == ">99.9 %":
            assert 0.9994 < some / every < 1
        elif said == "<0.1 %":
            assert 0 < some / every < 0.0006
        else:
            assert abs(float(said.removesuffix(" %")) - 100 * some / every) <= 0.05 + 1e-9
