from __future__ import annotations

import math
from xml.etree.ElementTree import fromstring

from hypothesis import given
from hypothesis import strategies as st

from strongroom.governance import drawing
from strongroom.governance.loss_drawing import LossPoint, draw_loss

FINITE = st.floats(-1e6, 1e6, allow_nan=False, allow_infinity=False)


@given(low=FINITE, span=st.floats(0, 1e6), most=st.integers(2, 12))
def test_ticks_are_round_rising_and_cover_the_range(low: float, span: float, most: int) -> None:
    high = low + span
    marks = drawing.ticks(low, high, most=most)
    slack = 1e-6 * max(1.0, abs(low), abs(high))
    assert 2 <= len(marks) <= most + 1
    assert marks == sorted(set(marks))
    assert marks[0] <= low + slack
    assert marks[-1] >= high - slack


@given(words=st.text(max_size=80), width=st.floats(20, 300))
def test_a_shortened_text_fits_and_a_short_one_is_left_alone(words: str, width: float) -> None:
    shown = drawing.shorten(words, width, 14)
    room = max(3, int(width / (14 * drawing.CHARACTER_EM)))
    assert len(shown) <= room
    assert (shown == words) == (len(words) <= room)


@given(words=st.text(max_size=40))
def test_no_text_breaks_out_of_a_drawing(words: str) -> None:
    svg = drawing.canvas(10, 10, name="x", title=words, description=words)
    drawing.add_text(svg, 1, 1, f"<script>{words}</script>", fit=(4, 10))
    read = fromstring(drawing.write(svg))  # noqa: S314 -- our own
    assert not list(read.iter("{http://www.w3.org/2000/svg}script"))


def test_loss_is_drawn_with_the_base_as_a_line_and_the_subject_marked() -> None:
    drawn = draw_loss(
        [
            LossPoint(step=10, loss=1.41),
            LossPoint(step=40, loss=1.07, subject=True),
            LossPoint(step=20, loss=1.21),
        ],
        base_loss=1.7,
    )
    assert drawn is not None
    assert "base model 1.700" in drawn
    assert "this checkpoint 1.070" in drawn
    assert drawn.count('class="point"') == 2
    assert drawn.count('class="point subject"') == 1
    assert "step 10: 1.4100; step 20: 1.2100; step 40: 1.0700. Base model: 1.7000." in drawn


def test_better_is_lower_on_the_page() -> None:
    drawn = draw_loss([LossPoint(step=1, loss=1.0), LossPoint(step=2, loss=2.0)], base_loss=2.0)
    assert drawn is not None
    circles = [e for e in fromstring(drawn).iter() if e.tag.endswith("circle")]  # noqa: S314
    assert float(circles[0].get("cy", "")) > float(circles[1].get("cy", ""))


def test_a_loss_that_is_not_finite_is_not_drawn() -> None:
    assert draw_loss([LossPoint(step=1, loss=math.nan)], base_loss=1.7) is None
    assert draw_loss([], base_loss=1.7) is None
    drawn = draw_loss(
        [LossPoint(step=1, loss=1.2), LossPoint(step=2, loss=math.inf)], base_loss=math.nan
    )
    assert drawn is not None
    assert drawn.count("<circle") == 1
    assert "base model" not in drawn


def test_one_point_and_equal_losses_can_be_drawn() -> None:
    assert draw_loss([LossPoint(step=0, loss=1.7)], base_loss=1.7) is not None
