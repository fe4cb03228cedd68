"""What follows from a configuration and the facts: tokens, memory, bytes and seconds. Pure.

Each is None where a fact that it follows from is not known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from strongroom.planning.memory import RankMemory, Spread, rank_memory, state_bytes
from strongroom.training.config import RunConfig
from strongroom.training.meters import TERA, known_peak_flops
from strongroom.training.preflight.facts import (
    Accelerator,
    Facts,
    MachineFacts,
    ModelFacts,
    SavedCheckpoint,
)

StepSource = Literal["given", "measured", "estimated"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """Memory that is needed, and how much there is; None where that is not known."""

    needed_bytes: int
    there_bytes: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimates:
    """What a run will need.

    Attributes:
        step_tokens: tokens of one optimizer step, over all ranks.
        passes: forward and backward passes of one step on one rank.
        memory: of one rank, where it computes.
        device: memory of a rank's accelerator; None where there is none.
        host: memory of this machine, for all ranks that start on it.
        checkpoint_bytes: of a full checkpoint.
        num_checkpoints: how many the run has yet to save, its last one included.
        step_s: seconds of a step, by the way it is known (`step_source`).
        interval_s: seconds between two saves, at most.
        upload_s: seconds to write a full checkpoint into the store.
    """

    step_tokens: float | None
    passes: int
    memory: RankMemory | None
    device: Room | None
    host: Room | None
    checkpoint_bytes: int | None
    num_checkpoints: int
    step_s: float | None
    step_source: StepSource | None
    interval_s: float
    upload_s: float | None


def estimate(config: RunConfig, facts: Facts, numbers: Mapping[str, float]) -> Estimates:
    """Return everything that follows from what is known."""
    train = config.train
    shape = None if facts.model is None else facts.model.shape
    spread = spread_of(config, facts.model)
    memory = None
    checkpoint_bytes = None
    if shape is not None:
        rows = train.micro_batch_rows or train.batch_rows // train.world_size
        memory = rank_memory(shape, spread, rows=rows, row_tokens=config.data.max_tokens)
        checkpoint_bytes = state_bytes(shape, spread)
    step_tokens = _step_tokens(config, facts)
    step_s, step_source = _step_s(config, facts, step_tokens, numbers)
    bytes_per_s = config.preflight.upload_bytes_per_s
    return Estimates(
        step_tokens=step_tokens,
        passes=train.placement.micro_batches(train.batch_rows),
        memory=memory,
        device=_device_room(memory, facts.machine, numbers),
        host=_host_room(config, memory, checkpoint_bytes, facts.machine, numbers),
        checkpoint_bytes=checkpoint_bytes,
        num_checkpoints=_num_checkpoints(config, facts, step_s),
        step_s=step_s,
        step_source=step_source,
        interval_s=_interval_s(config, step_s),
        upload_s=None
        if checkpoint_bytes is None or bytes_per_s is None
        else checkpoint_bytes / bytes_per_s,
    )


def spread_of(config: RunConfig, model: ModelFacts | None) -> Spread:
    """Return how a configuration spreads a model."""
    train = config.train
    parameter_bytes = 2 if config.model.dtype == "bfloat16" else 4
    is_fsdp2 = train.strategy == "fsdp2"
    return Spread(
        strategy=train.strategy,
        ranks=train.world_size,
        replicas=train.replicas,
        parameter_bytes=parameter_bytes,
        compute_bytes=parameter_bytes if train.compute_dtype is None else 2,
        keeps_gathered=is_fsdp2 and not train.fsdp2.reshard_after_forward,
        # Left to itself torch gathers one layer while another computes.
        layers_ahead=max(train.fsdp2.prefetch_layers, 1),
        reduce_elements=train.zero3.reduce_elements,
        offloads=offloads(config),
        recomputes=train.activation_checkpointing,
        shards_inputs=not is_fsdp2 and train.zero3.partition_activations,
        # DeepSpeed casts the whole model to what is computed with before it shards it.
        maps_weights=model is not None
        and model.dtypes == (config.model.dtype,)
        and (is_fsdp2 or train.compute_dtype in {None, config.model.dtype}),
    )


def offloads(config: RunConfig) -> bool:
    """Return whether parameters and optimizer are to live outside the accelerators."""
    train = config.train
    if train.strategy == "fsdp2":
        return train.fsdp2.cpu_offload
    return train.zero3.offload != "none"


def first_accelerator(machine: MachineFacts | None) -> Accelerator | None:
    """Return one of the accelerators here, taken to be alike; None where none is known."""
    return None if machine is None else next(iter(machine.accelerators or ()), None)


def num_accelerators(machine: MachineFacts | None) -> int:
    """Return how many accelerators are known to be here."""
    return 0 if machine is None else len(machine.accelerators or ())


def _step_tokens(config: RunConfig, facts: Facts) -> float | None:
    """Blocks are filled up to `max_tokens`; rows are as long as they are."""
    if config.data.packing == "blocks":
        return float(config.train.batch_rows * config.data.max_tokens)
    if facts.data is None:
        return None
    return config.train.batch_rows * facts.data.mean_tokens


def _step_s(
    config: RunConfig, facts: Facts, step_tokens: float | None, numbers: Mapping[str, float]
) -> tuple[float | None, StepSource | None]:
    if config.preflight.step_s is not None:
        return config.preflight.step_s, "given"
    if facts.run is not None and (measured := _measured_step_s(facts.run.checkpoints)) is not None:
        return measured, "measured"
    if (computed := compute_s(config, facts, step_tokens, numbers)) is not None:
        return computed, "estimated"
    return None, None


def compute_s(
    config: RunConfig, facts: Facts, step_tokens: float | None, numbers: Mapping[str, float]
) -> float | None:
    """Return the seconds of a step on accelerators of which as much is used as usually is."""
    accelerator = first_accelerator(facts.machine)
    flops = None if facts.model is None else facts.model.flops
    if accelerator is None or flops is None or step_tokens is None:
        return None
    train, stated = config.train, config.tracking.peak_tflops_per_rank
    dtype = train.compute_dtype or config.model.dtype
    peak = known_peak_flops(accelerator.name, dtype) if stated is None else stated * TERA
    if peak is None:
        return None
    row_tokens = step_tokens / train.batch_rows
    work = flops.of_step(tokens=round(step_tokens), pairs=round(step_tokens * row_tokens))
    return work / (train.world_size * peak * numbers["mfu"])


def _measured_step_s(checkpoints: tuple[SavedCheckpoint, ...]) -> float | None:
    """Return the seconds of a step between the two newest checkpoints of one attempt."""
    for newer, older in pairwise(checkpoints):
        if newer.created_s is None or older.created_s is None:
            continue
        seconds, steps = newer.created_s - older.created_s, newer.step - older.step
        if newer.attempt == older.attempt and steps > 0 and seconds > 0:
            return seconds / steps
    return None


def _device_room(
    memory: RankMemory | None, machine: MachineFacts | None, numbers: Mapping[str, float]
) -> Room | None:
    if memory is None or machine is None or not machine.accelerators:
        return None
    return Room(
        needed_bytes=memory.device_peak + int(numbers["device_bytes"]),
        there_bytes=min(accelerator.memory_bytes for accelerator in machine.accelerators),
    )


def _host_room(
    config: RunConfig,
    memory: RankMemory | None,
    checkpoint_bytes: int | None,
    machine: MachineFacts | None,
    numbers: Mapping[str, float],
) -> Room | None:
    """Each rank here needs itself, the copies that saves take, and what is not on an accelerator.

    Before that it needs the whole model, which is built on the host, where its weights are not used
    as they lie in the file. On a machine with accelerators that cannot be asked it is not known
    where ranks compute.
    """
    if memory is None or checkpoint_bytes is None or machine is None:
        return None
    if machine.accelerators is None:
        return None
    copies = 2 if config.save.asynchronous else 1
    staged = copies * checkpoint_bytes // config.train.world_size
    ranks = config.train.world_size
    if machine.accelerators:
        ranks = min(ranks, len(machine.accelerators))
        needed = max(memory.building, memory.offloaded + staged)
    else:
        needed = memory.host_peak + memory.offloaded + staged
    return Room(
        needed_bytes=ranks * (needed + int(numbers["process_bytes"])),
        there_bytes=machine.memory_bytes,
    )


def _interval_s(config: RunConfig, step_s: float | None) -> float:
    by_clock = config.save.every_minutes * 60.0
    return by_clock if step_s is None else min(by_clock, config.save.every_steps * step_s)


def _num_checkpoints(config: RunConfig, facts: Facts, step_s: float | None) -> int:
    steps_apart = float(config.save.every_steps)
    if step_s is not None:
        steps_apart = min(steps_apart, max(config.save.every_minutes * 60.0 / step_s, 1.0))
    newest = None if facts.run is None else facts.run.newest
    steps_left = config.train.steps - (0 if newest is None else newest.step)
    return math.ceil(max(steps_left, 0) / steps_apart)
