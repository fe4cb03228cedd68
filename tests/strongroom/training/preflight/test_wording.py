from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strongroom.training.preflight.wording import in_bytes, in_count, in_seconds


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (in_bytes(0), "0 bytes"),
        (in_bytes(999), "999 bytes"),
        (in_bytes(999_700), "1000 kB"),
        (in_bytes(8_637_600), "8.64 MB"),
        (in_bytes(1e15), "1 PB"),
        (in_bytes(2.5e18), "2500 PB"),
        (in_seconds(0.0012345), "0.00123 s"),
        (in_seconds(59.9), "59.9 s"),
        (in_seconds(90), "1.5 min"),
        (in_seconds(14_400), "4 h"),
        (in_seconds(86_400 * 1234), "1234 d"),
        (in_count(226), "226"),
        (in_count(921_600), "921600"),
        (in_count(8_030_261_248), "8.03 billion"),
    ],
)
def test_sizes_are_said_in_their_largest_unit(said: str, expected: str) -> None:
    assert said == expected


@given(st.floats(0.0, 1e17))
def test_no_number_is_said_as_a_power_of_ten(value: float) -> None:
    if value >= 1e-3 or value == 0.0:
        assert "e+" not in in_bytes(value) + in_seconds(value) + in_count(value)
