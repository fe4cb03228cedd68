"""Checks of memory, precision and packages, each found by its name, alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from strongroom.training.preflight.report import preflight
from tests.support.preflight import (
    GB,
    H100,
    LARGE_FACTS,
    SMALL_FACTS,
    found,
    large,
    on_machine,
    only,
    small,
    with_shape,
)


def test_cpu_offload_where_there_is_nothing_to_offload_from() -> None:
    for train in (
        {"train__fsdp2": {"cpu_offload": True}},
        {"train": {"strategy": "zero3"}, "train__zero3": {"offload": "cpu"}},
    ):
        finding = only(small(**train), on_machine(SMALL_FACTS, packages=("deepspeed",)))
        assert (finding.check, finding.severity) == ("cpu-offload", "stop")
        assert "no accelerator" in finding.saw


def test_cpu_offload_where_it_is_not_needed() -> None:
    finding = only(large(train__fsdp2={"cpu_offload": True}), LARGE_FACTS)
    assert (finding.check, finding.severity) == ("cpu-offload", "warn")
    assert "without it a rank needs about" in finding.saw


def test_cpu_offload_where_pcie_is_slower_than_the_computation() -> None:
    # In each of 32 passes a rank's half of 8.03e9 float32 parameters goes up twice, and gradients
    # come down: 1,542 GB, 30.6 s at 0.8 of 63 GB/s. 262,144 tokens take 1.35e16 FLOPs: 17 s at 0.4
    # of twice 989 TFLOP/s.
    two = on_machine(LARGE_FACTS, accelerators=(H100,) * 2)
    offload: dict[str, Any] = {
        "train": {"world_size": 2},
        "train__fsdp2": {"cpu_offload": True},
        "preflight": {"upload_bytes_per_s": None},
    }
    finding = only(large(**offload), two)
    assert (finding.check, finding.severity) == ("cpu-offload", "warn")
    assert "moves 1.54 TB over PCIe 5 x16 in each step: 30.6 s, beside 17" in finding.saw
    assert "36% of the time" in finding.saw
    larger = offload | {"train": {"world_size": 2, "micro_batch_rows": 2}}
    assert found(large(**larger), two) == []
    gathered = offload | {
        "train__fsdp2": {"cpu_offload": True, "reshard_after_forward": False},
        "preflight": {"upload_bytes_per_s": None, "numbers": {"offload_efficiency": 0.4}},
    }
    assert found(large(**gathered), two) == []  # parameters go up once
    for unknown in (replace(H100, pcie_lanes=None), replace(H100, name="Fancy 1")):
        assert found(large(**offload), on_machine(two, accelerators=(unknown,) * 2)) == []
    stated = large(**offload, tracking={"peak_tflops_per_rank": 400.0})
    assert found(stated, two) == []  # slower accelerators wait less


def test_precision_that_is_left_unused() -> None:
    finding = only(large(train__fsdp2={"float8": "off"}), LARGE_FACTS)
    assert (finding.check, finding.severity) == ("precision", "warn")
    assert "8.03 billion parameters are trained in BF16" in finding.saw
    for facts in (
        on_machine(LARGE_FACTS, accelerators=(replace(H100, capability=8.0),) * 8),
        on_machine(LARGE_FACTS, accelerators=(replace(H100, capability=None),) * 8),
        with_shape(LARGE_FACTS, parameters=6_900_000_000, trainable=6_900_000_000),
        with_shape(LARGE_FACTS, trainable=1_000_000),
    ):
        assert found(large(train__fsdp2={"float8": "off"}), facts) == []


def test_precision_that_is_not_there() -> None:
    old = on_machine(LARGE_FACTS, accelerators=(replace(H100, capability=8.6),) * 8)
    finding = only(large(), old)
    assert (finding.check, finding.severity) == ("precision", "stop")
    assert "without FP8" in finding.saw
    here = on_machine(SMALL_FACTS, packages=("torchao",))
    assert only(small(train__fsdp2={"float8": "on"}), here).severity == "stop"
    assert only(small(train__fsdp2={"float8": "emulated"}), here).severity == "warn"
    older = on_machine(LARGE_FACTS, accelerators=(replace(H100, capability=7.0),) * 8)
    finding = only(large(train__fsdp2={"float8": "off"}), older)
    assert "without BF16" in finding.saw


def test_memory_of_an_accelerator() -> None:
    tight = on_machine(LARGE_FACTS, accelerators=(replace(H100, memory_bytes=24 * GB),) * 8)
    finding = only(large(), tight)
    assert (finding.check, finding.severity) == ("memory", "stop")
    assert "32.6 GB are needed and 24 GB are there" in finding.saw
    assert "use more ranks" in finding.mend
    zero3 = large(train={"strategy": "zero3", "world_size": 64})
    (finding,) = (it for it in preflight(zero3, tight).findings if it.check == "memory")
    assert "33.6 GB are needed" in finding.saw
    assert "before it is sharded" in finding.mend
    close = on_machine(LARGE_FACTS, accelerators=(replace(H100, memory_bytes=35 * GB),) * 8)
    assert only(large(), close).severity == "warn"


def test_memory_of_the_host_for_all_ranks_on_it() -> None:
    finding = only(small(), on_machine(SMALL_FACTS, memory_bytes=3 * GB))
    assert (finding.check, finding.severity) == ("memory", "stop")
    assert "3.04 GB are needed" in finding.saw
    assert "micro_batch_rows" in finding.mend
    heavy = large(train={"world_size": 2}, adapter={"method": "full"})
    few = on_machine(LARGE_FACTS, accelerators=(H100,) * 2)
    assert "use more ranks" in only(heavy, few).mend


@pytest.mark.parametrize(
    ("changes", "package"),
    [
        ({"train": {"strategy": "zero3"}}, "deepspeed"),
        ({"tracking": {"tensorboard": True}}, "tensorboard"),
        ({"tracking": {"wandb": {"project": "p"}}}, "wandb"),
    ],
)
def test_packages(changes: dict[str, Any], package: str) -> None:
    finding = only(small(**changes), SMALL_FACTS)
    assert (finding.check, finding.severity) == ("packages", "stop")
    assert package in finding.saw
    assert found(small(**changes), on_machine(SMALL_FACTS, packages=(package,))) == []
    assert only(large(), on_machine(LARGE_FACTS, packages=())).check == "packages"
