from __future__ import annotations

from dataclasses import replace

import pytest

from strongroom.training.preflight.estimates import Estimates, estimate, spread_of
from strongroom.training.preflight.facts import Facts
from strongroom.training.preflight.numbers import values
from tests.support.preflight import (
    H100,
    LARGE,
    LARGE_FACTS,
    SMALL,
    SMALL_FACTS,
    changed,
    on_machine,
    saved,
    with_checkpoints,
)


def of_small(facts: Facts = SMALL_FACTS, **changes: object) -> Estimates:
    config = changed(SMALL, **changes)
    return estimate(config, facts, values(config.preflight.numbers))


def of_large(facts: Facts = LARGE_FACTS, **changes: object) -> Estimates:
    config = changed(LARGE, **changes)
    return estimate(config, facts, values(config.preflight.numbers))


def test_tokens_of_a_step_are_those_of_rows_or_of_full_blocks() -> None:
    assert of_small().step_tokens == 4 * 55.0
    assert of_small(data={"packing": "blocks"}).step_tokens == 4 * 256
    assert of_small(replace(SMALL_FACTS, data=None)).step_tokens is None


def test_the_time_of_a_step_is_given_measured_or_estimated() -> None:
    given = of_small(preflight={"step_s": 7.0})
    assert (given.step_s, given.step_source) == (7.0, "given")
    measured = of_small(with_checkpoints(SMALL_FACTS, saved(30), saved(20)))
    assert (measured.step_s, measured.step_source) == (2.0, "measured")
    estimated = of_large()
    assert estimated.step_source == "estimated"
    flops = 262_144 * (6 * 7_504_924_672 + 12 * 32 * 4096 * 4096)
    assert estimated.step_s == pytest.approx(flops / (8 * 989.4e12 * 0.4))
    stated = of_large(tracking={"peak_tflops_per_rank": 100.0})
    assert stated.step_s == pytest.approx(flops / (8 * 100e12 * 0.4))
    assert of_small().step_s is None  # no accelerator, so nothing to estimate from
    for fact in (
        with_checkpoints(SMALL_FACTS, saved(30)),
        with_checkpoints(SMALL_FACTS, saved(30), saved(20, attempt=2)),
        with_checkpoints(SMALL_FACTS, saved(30), saved(20, created_s=None)),
        with_checkpoints(SMALL_FACTS, saved(30), saved(20, created_s=2e9)),
    ):
        assert of_small(fact).step_s is None


def test_saves_are_apart_by_steps_or_by_the_clock_whichever_is_sooner() -> None:
    assert of_small().interval_s == 240 * 60
    assert of_small(preflight={"step_s": 3.0}).interval_s == 30.0
    assert of_small(preflight={"step_s": 3.0}, save={"every_minutes": 0.25}).interval_s == 15.0


def test_checkpoints_to_come_end_with_the_last_step() -> None:
    assert of_small().num_checkpoints == 4
    assert of_small(train={"steps": 41}).num_checkpoints == 5
    assert of_small(with_checkpoints(SMALL_FACTS, saved(30), saved(10))).num_checkpoints == 1
    by_clock = of_small(preflight={"step_s": 3.0}, save={"every_minutes": 0.25})
    assert by_clock.num_checkpoints == 8


def test_a_rank_takes_its_part_of_the_batch_in_passes() -> None:
    assert of_large().passes == 8
    one = of_large(train={"micro_batch_rows": None})
    assert one.passes == 1
    assert one.memory is not None
    assert of_large().memory is not None
    assert one.memory.logits == 8 * of_large().memory.logits  # type: ignore[union-attr]


def test_memory_is_that_of_the_accelerator_and_of_the_host() -> None:
    model = LARGE_FACTS.model
    assert model is not None
    large = of_large()
    assert large.device is not None
    assert large.host is not None
    assert large.memory is not None
    assert large.checkpoint_bytes is not None
    assert large.device.needed_bytes == large.memory.training + 1_500_000_000
    # Two copies of a rank's eighth are less than the whole model, which each rank first builds, in
    # float32: stored in bfloat16 it cannot be used as it lies in the file.
    assert large.host.needed_bytes == 8 * (large.memory.building + 600_000_000)
    stored = replace(LARGE_FACTS, model=replace(model, dtypes=("float32",)))
    mapped = of_large(stored)
    assert mapped.host is not None
    assert mapped.host.needed_bytes == 8 * (2 * large.checkpoint_bytes // 8 + 600_000_000)
    mixed = of_large(replace(LARGE_FACTS, model=replace(model, dtypes=("bfloat16", "float32"))))
    assert mixed.host == large.host
    cast = of_large(stored, train={"strategy": "zero3"})  # compute_dtype is bfloat16
    assert cast.memory is not None
    assert cast.memory.building > 0
    zero3 = of_large(train={"strategy": "zero3"})
    assert zero3.device is not None
    assert zero3.memory is not None
    assert zero3.device.needed_bytes == zero3.memory.device_peak + 1_500_000_000
    small = of_small()
    assert small.device is None
    assert small.host is not None
    assert small.memory is not None
    assert small.checkpoint_bytes is not None
    assert small.host.needed_bytes == 2 * (
        small.memory.training + small.checkpoint_bytes + 600_000_000
    )
    waiting = of_small(save={"asynchronous": False})
    assert waiting.host is not None
    assert small.host.needed_bytes - waiting.host.needed_bytes == small.checkpoint_bytes


def test_what_is_not_known_is_none() -> None:
    unknown = of_small(on_machine(SMALL_FACTS, accelerators=None))
    assert (unknown.host, unknown.device) == (None, None)
    nothing = of_small(Facts())
    assert (nothing.memory, nothing.checkpoint_bytes, nothing.upload_s) == (None, None, None)
    assert of_large(preflight={"upload_bytes_per_s": None}).upload_s is None
    other = on_machine(LARGE_FACTS, accelerators=(replace(H100, name="Fancy 1"),) * 8)
    assert of_large(other).step_s is None


def test_the_spread_is_what_the_configuration_asks_for() -> None:
    fsdp2 = spread_of(
        changed(LARGE, train={"replicas": 2}, train__fsdp2={"cpu_offload": True}), None
    )
    assert (fsdp2.parameter_bytes, fsdp2.compute_bytes, fsdp2.shards) == (4, 2, 4)
    assert (fsdp2.layers_ahead, fsdp2.recomputes, fsdp2.offloads) == (2, True, True)
    zero3 = spread_of(
        changed(SMALL, train={"strategy": "zero3"}, train__fsdp2={"cpu_offload": 1}), None
    )
    assert (zero3.strategy, zero3.offloads, zero3.compute_bytes) == ("zero3", False, 2)
