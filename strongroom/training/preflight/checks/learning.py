"""Checks of how it is learnt: batch and rate, recomputation, compilation, prefetching, sharding."""

from __future__ import annotations

import math
from collections.abc import Iterator

from strongroom.planning.model_shape import ModelShape
from strongroom.training.preflight.estimates import num_accelerators, spread_of
from strongroom.training.preflight.findings import Case, Finding, finding
from strongroom.training.preflight.wording import in_bytes, in_count, in_seconds


def batch_and_learning_rate(case: Case) -> Iterator[Finding]:
    """Find a batch or a learning rate far from the reference that the configuration names."""
    reference, train = case.config.preflight, case.config.train
    tokens, wanted_tokens = case.estimates.step_tokens, reference.reference_batch_tokens
    scale = 1.0 if tokens is None or wanted_tokens is None else tokens / wanted_tokens
    if tokens is not None and wanted_tokens is not None and _is_beyond(scale, case, "batch_factor"):
        yield finding(
            "batch-and-learning-rate",
            "warn",
            saw=f"a step has about {tokens:.0f} tokens, the reference {wanted_tokens}: "
            f"{_times(scale)} that",
            mend="change train.batch_rows, or data.packing; or give the reference that this run "
            "follows (preflight.reference_batch_tokens)",
        )
    if reference.reference_learning_rate is None:
        return
    if wanted_tokens is not None and tokens is None:
        return  # it cannot be told how the rate is to be scaled
    expected = reference.reference_learning_rate * math.sqrt(scale)
    if _is_beyond(train.learning_rate / expected, case, "learning_rate_factor"):
        yield finding(
            "batch-and-learning-rate",
            "warn",
            saw=f"train.learning_rate is {train.learning_rate:g}; the reference "
            f"{reference.reference_learning_rate:g}, scaled by the square root of {_times(scale)} "
            f"its batch, is {expected:.2g}",
            mend=f"set train.learning_rate near {expected:.2g}, or give the reference that this "
            "run follows (preflight.reference_learning_rate)",
        )


def _is_beyond(ratio: float, case: Case, number: str) -> bool:
    """Return whether a ratio is too large or too small."""
    return not 1.0 / case.numbers[number] <= ratio <= case.numbers[number]


def _times(ratio: float) -> str:
    return f"{ratio:.3g} times"


def activation_checkpointing(case: Case) -> Iterator[Finding]:
    """Find large models that keep all activations."""
    if case.config.train.activation_checkpointing:
        return
    shape = None if case.facts.model is None else case.facts.model.shape
    most = case.numbers["activation_checkpointing_parameters"]
    if shape is not None and shape.parameters > most:
        yield finding(
            "activation-checkpointing",
            "warn",
            saw=f"the model has {in_count(shape.parameters)} parameters, more than "
            f"{in_count(most)}, and keeps all activations",
            mend="set train.activation_checkpointing",
        )


def compile_time(case: Case) -> Iterator[Finding]:
    """Find runs that would spend a good part of their time compiling."""
    train, step_s = case.config.train, case.estimates.step_s
    if train.strategy != "fsdp2" or not train.fsdp2.compile_layers:
        return
    compile_s, most = case.numbers["compile_s"], case.numbers["compile_share"]
    if step_s is None:
        is_short = train.steps < case.numbers["compile_steps"]
        length = f"{train.steps} steps"
    else:
        is_short = compile_s > most * train.steps * step_s
        length = f"{train.steps} steps, {in_seconds(train.steps * step_s)}"
    if is_short:
        yield finding(
            "compile-time",
            "warn",
            saw=f"train.fsdp2.compile_layers takes some {in_seconds(compile_s)} at each start of a "
            f"run of {length}",
            mend="leave train.fsdp2.compile_layers out",
        )


def prefetch(case: Case) -> Iterator[Finding]:
    """Find prefetching that holds much of the model, or lets every layer wait."""
    train, model = case.config.train, case.facts.model
    shape = None if model is None else model.shape
    if shape is None:
        return
    spread = spread_of(case.config, case.facts.model)
    if train.strategy == "fsdp2":
        setting, ahead = "train.fsdp2.prefetch_layers", train.fsdp2.prefetch_layers
        elements = min(ahead, shape.layers) * shape.layer_parameters
        is_idle = ahead > 0 and spread.shards == 1
        idle = "nothing is sharded, so nothing is gathered"
    else:
        setting, ahead = "train.zero3.prefetch_elements", train.zero3.prefetch_elements
        elements = min(ahead, shape.held)
        is_idle = ahead == 0 and train.world_size > 1
        idle = "nothing is gathered ahead: each layer waits for its parameters"
    if is_idle:
        yield finding(
            "prefetch",
            "warn",
            saw=f"{setting} is {ahead}: {idle}",
            mend="leave it out",
        )
        return
    held = elements * spread.compute_bytes
    there = _memory_of_a_rank(case)
    if there is not None and held > case.numbers["prefetch_share"] * there:
        yield finding(
            "prefetch",
            "warn",
            saw=f"{setting} is {ahead}: {in_bytes(held)} of parameters are gathered ahead on each "
            f"rank, of {in_bytes(there)} of memory",
            mend="lower it, or leave it out",
        )


def _memory_of_a_rank(case: Case) -> float | None:
    """Return the bytes that one rank can have; None where that is not known."""
    device, host = case.estimates.device, case.estimates.host
    if device is not None:
        return device.there_bytes
    if host is None or host.there_bytes is None:
        return None
    return host.there_bytes / case.config.train.world_size


def wrapping(case: Case) -> Iterator[Finding]:
    """Find sharding that divides nothing, or whose shards lie on several machines."""
    train, model = case.config.train, case.facts.model
    shape = None if model is None else model.shape
    if train.strategy == "zero3":
        yield from _persistent(case, shape)
        return
    if train.replicas == 1:
        return
    shards = train.world_size // train.replicas
    if shards == 1:
        yield finding(
            "wrapping",
            "warn",
            saw=f"train.replicas is {train.replicas}, as many as ranks: each holds the whole model "
            "and all of the optimizer",
            mend="lower train.replicas",
        )
    here = num_accelerators(case.facts.machine)
    if here and shards > here:
        yield finding(
            "wrapping",
            "warn",
            saw=f"each of {train.replicas} replicas is sharded over {shards} ranks, and a machine "
            f"has {here} accelerators: every layer is gathered over the network",
            mend=f"set train.replicas to {train.world_size // here}, so that a replica lies on one "
            "machine, or to 1",
        )


def _persistent(case: Case, shape: ModelShape | None) -> Iterator[Finding]:
    """Find layers that stay gathered as a whole, where that takes much of the memory."""
    train, there = case.config.train, _memory_of_a_rank(case)
    persistent = train.zero3.persist_below_elements
    if shape is None or there is None or shape.layer_parameters > persistent:
        return
    held = shape.held * spread_of(case.config, case.facts.model).compute_bytes
    if train.world_size == 1 or held <= case.numbers["prefetch_share"] * there:
        return
    yield finding(
        "wrapping",
        "warn",
        saw=f"train.zero3.persist_below_elements is {persistent}, and a whole layer has "
        f"{in_count(shape.layer_parameters)} parameters: each rank keeps all, {in_bytes(held)} of "
        f"{in_bytes(there)}",
        mend="lower train.zero3.persist_below_elements below the layer's weights, or train with "
        "fsdp2",
    )
