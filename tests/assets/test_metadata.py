from __future__ import annotations

import json

import dagster as dg
import pytest

from assets.metadata import lines, numbers


def test_finite_numbers_stay_numbers_so_that_the_ui_plots_them() -> None:
    told = numbers({"loss": 1.5, "num_bytes": 12})

    assert told == {"loss": dg.MetadataValue.float(1.5), "num_bytes": dg.MetadataValue.int(12)}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_not_finite_becomes_text(value: float) -> None:
    told = numbers({"loss": value})

    assert told == {"loss": dg.MetadataValue.text(f"not finite: {value}")}
    json.dumps([entry.value for entry in told.values()], allow_nan=False)


def test_what_is_unknown_is_left_out() -> None:
    assert numbers({"durable_s": None}) == {}


def test_texts_become_a_list() -> None:
    assert lines(["a", "b"]).value == "- a\n- b"
    assert lines([]).value == "none"
