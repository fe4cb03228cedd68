"""The numbers that the preflight judges by, each with its unit and source. Data alone.

A number is given another value by `preflight.numbers` in a configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strongroom.training.preflight.references import (
    CUDA,
    HOUSE,
    LARGE_BATCH,
    LLAMA3,
    S3_CLASSES,
    SCALING_RULE,
    TORCHAO,
    ZERO_INFINITY,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Number:
    """One threshold, its unit, what it means and where it comes from."""

    name: str
    value: float
    unit: str
    meaning: str
    source: str


_NUMBERS = (
    Number(
        name="allreduce_ms",
        value=12.0,
        unit="ms",
        meaning="an all-reduce of 1 MiB that takes longer asks for a look at the fabric",
        source=HOUSE,
    ),
    Number(
        name="allreduce_ranks",
        value=256,
        unit="ranks",
        meaning="and does so from this many ranks on",
        source=HOUSE,
    ),
    Number(
        name="activation_checkpointing_parameters",
        value=30e9,
        unit="parameters",
        meaning="a larger model wants activation checkpointing",
        source=HOUSE,
    ),
    Number(
        name="compile_s",
        value=180.0,
        unit="s",
        meaning="what compiling a model's layers takes at a start",
        source="measured: 106 s for a model of two layers on a loaded CPU; minutes for large ones",
    ),
    Number(
        name="compile_share",
        value=0.1,
        unit="of the run",
        meaning="the most that compilation may take of the time of a run",
        source=HOUSE,
    ),
    Number(
        name="compile_steps",
        value=200,
        unit="steps",
        meaning="a run of fewer is too short to compile, where the time of a step is not known",
        source=HOUSE,
    ),
    Number(
        name="memory_share",
        value=0.9,
        unit="of the memory",
        meaning="more asks for a warning: allocators lose some to fragmentation",
        source=HOUSE,
    ),
    Number(
        name="process_bytes",
        value=6e8,
        unit="bytes",
        meaning="what a rank needs before it has a model: interpreter, torch, transformers",
        source="measured with torch 2.13 for CPUs",
    ),
    Number(
        name="device_bytes",
        value=1.5e9,
        unit="bytes",
        meaning="what a rank needs on its accelerator before it has a model: context, NCCL",
        source=HOUSE,
    ),
    Number(
        name="mfu",
        value=0.4,
        unit="of peak FLOPs",
        meaning="what is taken to be used, where the time of a step is not known",
        source=f"{LLAMA3}, table 4: 38 to 43 %",
    ),
    Number(
        name="pcie_share",
        value=0.8,
        unit="of the link",
        meaning="what a copy reaches of a PCIe link's rate",
        source=HOUSE,
    ),
    Number(
        name="offload_efficiency",
        value=0.5,
        unit="of the time",
        meaning="the least share of computing that offload may leave",
        source=f"{ZERO_INFINITY}, section 4",
    ),
    Number(
        name="lost_minutes",
        value=240.0,
        unit="min",
        meaning="the most that may lie between two checkpoints",
        source=HOUSE,
    ),
    Number(
        name="unverified_checkpoints",
        value=5,
        unit="checkpoints",
        meaning="so many in a row without a verification record mean that nobody verifies",
        source=HOUSE,
    ),
    Number(
        name="reshard_tested_ranks",
        value=4,
        unit="ranks",
        meaning="up to so many, every release is tested with each change of size and strategy",
        source="docs/reliability.md",
    ),
    Number(
        name="reshard_wanted_ranks",
        value=16,
        unit="ranks",
        meaning="from so many on a run outlives machines, and must go on with other sizes",
        source=f"{LLAMA3}, section 3.3.4: 419 unexpected interruptions in 54 days of 16,384 GPUs",
    ),
    Number(
        name="learning_rate_factor",
        value=2.0,
        unit="times",
        meaning="how far the learning rate may be from the reference's, scaled to the batch",
        source=SCALING_RULE,
    ),
    Number(
        name="batch_factor",
        value=8.0,
        unit="times",
        meaning="how far the tokens of a step may be from the reference's",
        source=LARGE_BATCH,
    ),
    Number(
        name="float8_capability",
        value=8.9,
        unit="compute capability",
        meaning="the least that multiplies in FP8",
        source=CUDA,
    ),
    Number(
        name="bfloat16_capability",
        value=8.0,
        unit="compute capability",
        meaning="the least that multiplies in BF16",
        source=CUDA,
    ),
    Number(
        name="float8_parameters",
        value=7e9,
        unit="parameters",
        meaning="a smaller model gains little by FP8",
        source=f"{TORCHAO}: up to 1.25 times at 8 billion",
    ),
    Number(
        name="prefetch_share",
        value=0.25,
        unit="of the memory",
        meaning="the most that layers may take that are gathered ahead, or stay gathered",
        source=HOUSE,
    ),
    Number(
        name="days_standard_ia",
        value=30,
        unit="days",
        meaning="least storage of STANDARD_IA",
        source=S3_CLASSES,
    ),
    Number(
        name="days_onezone_ia",
        value=30,
        unit="days",
        meaning="least storage of ONEZONE_IA",
        source=S3_CLASSES,
    ),
    Number(
        name="days_glacier_ir",
        value=90,
        unit="days",
        meaning="least storage of GLACIER_IR",
        source=S3_CLASSES,
    ),
)

NUMBERS: Mapping[str, Number] = {number.name: number for number in _NUMBERS}
"""Every threshold, by name."""


def values(given: Mapping[str, float]) -> dict[str, float]:
    """Return every threshold's value: the one given, or its own."""
    return {name: given.get(name, number.value) for name, number in NUMBERS.items()}
