"""Checks of what the machine has for what the configuration asks: memory, precision, packages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from strongroom.planning.memory import RankMemory, bytes_per_parameter, rank_memory
from strongroom.planning.model_shape import ModelShape
from strongroom.planning.offload import efficiency, offload_bytes, pcie_bytes_per_s
from strongroom.training.preflight.estimates import Room, compute_s, offloads, spread_of
from strongroom.training.preflight.facts import Accelerator
from strongroom.training.preflight.findings import Case, Finding, finding
from strongroom.training.preflight.wording import in_bytes, in_count, in_seconds


def memory(case: Case) -> Iterator[Finding]:
    """Find ranks that need more than there is, on their accelerator or on the host."""
    estimates, of_rank = case.estimates, case.estimates.memory
    if of_rank is None:
        return
    if estimates.device is not None:
        yield from _room(case, of_rank, of_rank.placing, estimates.device, "its accelerator")
    if estimates.host is not None:
        where = "this machine, all ranks together"
        yield from _room(case, of_rank, of_rank.building, estimates.host, where)


def _room(case: Case, memory: RankMemory, before: int, room: Room, where: str) -> Iterator[Finding]:
    """Find too little room; `before` is what a rank holds there before the model is sharded."""
    if room.there_bytes is None:
        return
    if room.needed_bytes <= case.numbers["memory_share"] * room.there_bytes:
        return
    is_too_much = room.needed_bytes > room.there_bytes
    parts = {
        "parameters": memory.parameters,
        "gradients": memory.gradients,
        "optimizer": memory.optimizer,
        "gathered layers": memory.gathered,
        "activations": memory.activations,
        "scores": memory.logits,
        "the whole model, before it is sharded,": before,
    }
    listed = ", ".join(f"{name} {in_bytes(size)}" for name, size in parts.items() if size)
    yield finding(
        "memory",
        "stop" if is_too_much else "warn",
        saw=f"on {where}, about {in_bytes(room.needed_bytes)} are needed and "
        f"{in_bytes(room.there_bytes)} are there; of a rank: {listed}",
        mend=_less_memory(memory, before),
    )


def _less_memory(memory: RankMemory, before: int) -> str:
    if before > memory.training:
        return (
            "each rank holds the whole model before it is sharded: on a host that needs nothing "
            "where model.dtype is what its weights are stored in, on an accelerator nothing under "
            "train.strategy fsdp2; or use model.dtype bfloat16"
        )
    passes = memory.activations + memory.logits
    if passes > memory.parameters + memory.gradients + memory.optimizer:
        return "lower train.micro_batch_rows, or set train.activation_checkpointing"
    return "use more ranks, fewer train.replicas, or adapter.method lora"


def cpu_offload(case: Case) -> Iterator[Finding]:
    """Find offload that cannot work, is not needed, or waits for PCIe."""
    machine = case.facts.machine
    if not offloads(case.config) or machine is None or machine.accelerators is None:
        return
    setting = (
        "train.fsdp2.cpu_offload"
        if case.config.train.strategy == "fsdp2"
        else f"train.zero3.offload {case.config.train.zero3.offload}"
    )
    if not machine.accelerators:
        yield finding(
            "cpu-offload",
            "stop",
            saw=f"{setting}, and this machine has no accelerator to offload from",
            mend="leave it out: everything is in the memory of the host already",
        )
        return
    shape = None if case.facts.model is None else case.facts.model.shape
    if shape is None:
        return
    needless = list(_needless(case, shape, setting))
    yield from needless or _link_bound(case, shape, setting, machine.accelerators[0])


def _needless(case: Case, shape: ModelShape, setting: str) -> Iterator[Finding]:
    train, room = case.config.train, case.estimates.device
    if room is None or room.there_bytes is None:
        return
    needed = case.numbers["device_bytes"] + (
        rank_memory(
            shape,
            replace(spread_of(case.config, case.facts.model), offloads=False),
            rows=train.micro_batch_rows or train.batch_rows // train.world_size,
            row_tokens=case.config.data.max_tokens,
        ).device_peak
    )
    if needed <= case.numbers["memory_share"] * room.there_bytes:
        yield finding(
            "cpu-offload",
            "warn",
            saw=f"{setting}, and without it a rank needs about {in_bytes(needed)} of "
            f"{in_bytes(room.there_bytes)}",
            mend="leave it out",
        )


def _link_bound(
    case: Case, shape: ModelShape, setting: str, accelerator: Accelerator
) -> Iterator[Finding]:
    if accelerator.pcie_generation is None or accelerator.pcie_lanes is None:
        return
    link = pcie_bytes_per_s(accelerator.pcie_generation, accelerator.pcie_lanes)
    computing_s = compute_s(case.config, case.facts, case.estimates.step_tokens, case.numbers)
    if link is None or computing_s is None:
        return
    spread = spread_of(case.config, case.facts.model)
    each = bytes_per_parameter(spread)
    moved = offload_bytes(
        shape,
        shards=spread.shards,
        passes=case.estimates.passes,
        uploads=1 if spread.keeps_gathered else 2,
        parameter_bytes=each.parameter,
        gradient_bytes=each.gradient,
    )
    moving_s = moved / (link * case.numbers["pcie_share"])
    share, least = efficiency(computing_s, moving_s), case.numbers["offload_efficiency"]
    if share < least:
        yield finding(
            "cpu-offload",
            "warn",
            saw=f"{setting} moves {in_bytes(moved)} over PCIe {accelerator.pcie_generation} x"
            f"{accelerator.pcie_lanes} in each step: {in_seconds(moving_s)}, beside "
            f"{in_seconds(computing_s)} of computing; {share:.0%} of the time is computed, "
            f"{least:.0%} is wanted",
            mend="leave it out and use more ranks, or compute more on each pass "
            "(train.micro_batch_rows, data.packing blocks)",
        )


def precision(case: Case) -> Iterator[Finding]:
    """Find dtypes that the accelerators do not have, and FP8 that is left unused."""
    machine, train = case.facts.machine, case.config.train
    if machine is None or machine.accelerators is None:
        return
    known = [item.capability for item in machine.accelerators if item.capability is not None]
    if len(known) < len(machine.accelerators):
        return
    least = min(known, default=0.0)
    has_float8 = least >= case.numbers["float8_capability"]
    float8 = train.fsdp2.float8 if train.strategy == "fsdp2" else "off"
    names = sorted({item.name for item in machine.accelerators})
    here = f"this machine has {', '.join(names) or 'no accelerator'}"
    if float8 == "on" and not has_float8:
        yield finding(
            "precision",
            "stop",
            saw=f"train.fsdp2.float8 is on, and {here}, without FP8",
            mend="set train.fsdp2.float8 to off",
        )
    if float8 == "emulated":
        yield finding(
            "precision",
            "warn",
            saw=f"train.fsdp2.float8 is emulated: rounded like FP8 and slower than without; {here}",
            mend=f"set train.fsdp2.float8 to {'on' if has_float8 else 'off'}",
        )
    computes_bfloat16 = "bfloat16" in {train.compute_dtype, case.config.model.dtype}
    if not known or not computes_bfloat16:
        return
    if least < case.numbers["bfloat16_capability"]:
        yield finding(
            "precision",
            "warn",
            saw=f"it is computed in BF16, and {here}, without BF16",
            mend="use accelerators of compute capability 8.0 or more, or model.dtype float32",
        )
    shape = None if case.facts.model is None else case.facts.model.shape
    if (
        float8 == "off"
        and has_float8
        and train.strategy == "fsdp2"
        and shape is not None
        and shape.is_full
        and shape.parameters >= case.numbers["float8_parameters"]
    ):
        yield finding(
            "precision",
            "warn",
            saw=f"{in_count(shape.parameters)} parameters are trained in BF16, and {here}, with "
            "FP8",
            mend="try train.fsdp2.float8 on, with train.fsdp2.compile_layers",
        )


def packages(case: Case) -> Iterator[Finding]:
    """Find settings that need a package which is not installed here."""
    machine, config = case.facts.machine, case.config
    if machine is None:
        return
    needed = {
        "deepspeed": ("train.strategy zero3", config.train.strategy == "zero3"),
        "torchao": (
            f"train.fsdp2.float8 {config.train.fsdp2.float8}",
            config.train.strategy == "fsdp2" and config.train.fsdp2.float8 != "off",
        ),
        "tensorboard": ("tracking.tensorboard", config.tracking.tensorboard),
        "wandb": ("tracking.wandb", config.tracking.wandb is not None),
    }
    for package, (setting, is_needed) in needed.items():
        if is_needed and package not in machine.packages:
            yield finding(
                "packages",
                "stop",
                saw=f"{setting} needs the package {package}, which is not installed here",
                mend=f"install {package}, or leave the setting out",
            )
