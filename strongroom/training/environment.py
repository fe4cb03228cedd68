"""What the numbers of a training may depend on, beside its configuration: packages and hardware."""

from __future__ import annotations

import importlib.metadata
import platform
from pathlib import Path

import torch

from strongroom.canonical import JsonObject

PACKAGES = ("torch", "transformers", "tokenizers", "peft")
CPU_FACTS = Path("/proc/cpuinfo")


def environment(device: torch.device, strategy: str) -> JsonObject:
    """Return versions, and what computes: what an attempt records of where it runs.

    Args:
        device: `cpu` or `cuda`.
        strategy: `zero3` computes by DeepSpeed.
    """
    names = (*PACKAGES, "deepspeed") if strategy == "zero3" else PACKAGES
    versions = {name: importlib.metadata.version(name) for name in names}
    return {"device": _name_of(device), **versions}


def _name_of(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{_processor()}, {torch.backends.cpu.get_cpu_capability()}"


def _processor() -> str:
    """Return the model of the processor, as the kernel names it; elsewhere its architecture."""
    try:
        lines = CPU_FACTS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.machine())
