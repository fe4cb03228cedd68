"""Checks of how it is learnt, each found by its name, alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from strongroom.training.preflight.report import preflight
from tests.support.preflight import (
    LARGE_FACTS,
    SMALL,
    SMALL_FACTS,
    changed,
    found,
    large,
    on_machine,
    only,
    small,
    with_checkpoints,
    with_shape,
)


@pytest.mark.parametrize(
    ("preflight_changes", "train", "said"),
    [
        ({"reference_batch_tokens": 10_000}, {}, "262144 tokens"),
        ({"reference_batch_tokens": 4_000_000, "reference_learning_rate": None}, {}, "262144"),
        ({}, {"learning_rate": 1e-4}, "is 0.0001"),
        # A quarter of the batch wants half of the rate.
        ({"reference_batch_tokens": 1_048_576, "reference_learning_rate": 5e-5}, {}, "2.5e-05"),
    ],
)
def test_batch_and_learning_rate(
    preflight_changes: dict[str, Any], train: dict[str, Any], said: str
) -> None:
    findings = preflight(large(preflight=preflight_changes, train=train), LARGE_FACTS).findings
    assert {(item.check, item.severity) for item in findings} == {
        ("batch-and-learning-rate", "warn")
    }
    assert any(said in item.saw for item in findings)


def test_a_learning_rate_that_goes_with_the_root_of_the_batch_is_in_line() -> None:
    in_line = {"reference_batch_tokens": 4 * 262_144, "reference_learning_rate": 2e-5}
    assert found(large(preflight=in_line), LARGE_FACTS) == []
    reference = {"reference_batch_tokens": 10, "reference_learning_rate": 1.0}
    assert found(small(preflight=reference), replace(SMALL_FACTS, data=None)) == []


def test_activation_checkpointing() -> None:
    config = large(train={"activation_checkpointing": False, "micro_batch_rows": 1})
    huge = with_shape(LARGE_FACTS, parameters=30_000_000_001)
    (finding,) = [
        item
        for item in preflight(config, huge).findings
        if item.check == "activation-checkpointing"
    ]
    assert finding.severity == "warn"
    assert "activation-checkpointing" not in dict(found(large(), huge))
    assert "activation-checkpointing" not in dict(found(config, LARGE_FACTS))


def test_compile_time() -> None:
    compiled = small(train__fsdp2={"compile_layers": True})
    finding = only(compiled, SMALL_FACTS)
    assert (finding.check, finding.severity) == ("compile-time", "warn")
    assert (
        found(
            changed(SMALL, train={"steps": 200}, train__fsdp2={"compile_layers": True}), SMALL_FACTS
        )
        == []
    )
    # 180 s are a tenth of 1800 s: 20,000 steps of 0.09 s, or more.
    for step_s, is_found in ((0.08, True), (0.1, False)):
        given = large(preflight={"step_s": step_s, "upload_bytes_per_s": None})
        assert bool(found(given, LARGE_FACTS)) is is_found


def test_prefetch() -> None:
    one_rank = small(train={"world_size": 1}, train__fsdp2={"prefetch_layers": 1})
    assert only(one_rank, SMALL_FACTS).check == "prefetch"
    # 30 layers of 3.5 million parameters in two bytes: 212 MB on each of two ranks.
    many = small(train__fsdp2={"prefetch_layers": 1000})
    assert found(many, SMALL_FACTS) == []
    limited = small(
        train__fsdp2={"prefetch_layers": 1000}, preflight={"numbers": {"prefetch_share": 0.05}}
    )
    assert "212 MB" in only(limited, SMALL_FACTS).saw
    deepspeed = on_machine(SMALL_FACTS, packages=("deepspeed",))
    zero3 = {"strategy": "zero3"}
    assert found(small(train=zero3), deepspeed) == []
    idle = small(train=zero3, train__zero3={"prefetch_elements": 0})
    assert "each layer waits" in only(idle, deepspeed).saw


def test_wrapping() -> None:
    whole = small(train={"replicas": 2})
    finding = only(whole, SMALL_FACTS)
    assert (finding.check, finding.severity) == ("wrapping", "warn")
    across = large(train={"world_size": 32, "replicas": 2})
    rehearsed = with_checkpoints(LARGE_FACTS, resharded=((32, 16),))
    assert "set train.replicas to 4" in only(across, rehearsed).mend
    within = large(train={"world_size": 32, "replicas": 4})
    assert found(within, rehearsed) == []
    deepspeed = on_machine(SMALL_FACTS, packages=("deepspeed",))
    # 135 million parameters in two bytes, 271 MB, of which a fifteenth of 4 GB is less.
    persist = {
        "train": {"strategy": "zero3"},
        "train__zero3": {"persist_below_elements": 10_000_000},
    }
    strict = {"preflight": {"numbers": {"prefetch_share": 0.065}}}
    assert found(small(**persist), deepspeed) == []
    finding = only(small(**persist, **strict), deepspeed)
    assert finding.check == "wrapping"
    assert "271 MB of 4 GB" in finding.saw
    persist["train__zero3"] = {"persist_below_elements": 3_500_000}
    assert found(small(**persist, **strict), deepspeed) == []
