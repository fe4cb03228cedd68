"""What is measured of a step: seconds, tokens per second, utilization, memory.

MFU is model FLOPs per second over the peak of all ranks (Chowdhery et al. 2022, PaLM,
https://arxiv.org/abs/2204.02311, appendix B): work that is computed twice does not count, so
activation checkpointing lowers it. Never imports torch unless training has.
"""

from __future__ import annotations

import re
import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from strongroom.canonical import JsonObject
from strongroom.model.flops import ModelFlops

TERA = 10**12
KIB = 1024
PROCESS_STATUS = Path("/proc/self/status")

_NVIDIA = "https://www.nvidia.com/en-us/data-center/"
_AMD = "https://www.amd.com/en/products/accelerators/instinct/mi300/"


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSheet:
    """What a vendor states of an accelerator.

    Attributes:
        name: words of the name by which its driver knows it.
        peak_tflops: by dtype, dense: half of what is stated "with sparsity". float32 is that of the
            vector units, as torch uses by default, not TF32.
        source: where the data sheet is found.
    """

    name: str
    peak_tflops: Mapping[str, float]
    source: str


def _data_sheet(
    name: str, source: str, *, float32: float, bfloat16: float, float8: float | None = None
) -> DataSheet:
    peaks = {"float32": float32, "bfloat16": bfloat16}
    if float8 is not None:
        peaks["float8"] = float8
    return DataSheet(name=name, peak_tflops=peaks, source=source)


DATA_SHEETS = (
    _data_sheet("A100", _NVIDIA + "a100/", float32=19.5, bfloat16=312.0),
    _data_sheet("L4", _NVIDIA + "l4/", float32=30.3, bfloat16=121.0, float8=242.5),
    _data_sheet("L40S", _NVIDIA + "l40s/", float32=91.6, bfloat16=362.05, float8=733.0),
    _data_sheet("H100", _NVIDIA + "h100/", float32=66.9, bfloat16=989.4, float8=1978.9),
    _data_sheet("H100 PCIe", _NVIDIA + "h100/", float32=51.2, bfloat16=756.4, float8=1512.9),
    _data_sheet("H100 NVL", _NVIDIA + "h100/", float32=60.0, bfloat16=835.5, float8=1670.5),
    _data_sheet("H200", _NVIDIA + "h200/", float32=66.9, bfloat16=989.4, float8=1978.9),
    _data_sheet("H200 NVL", _NVIDIA + "h200/", float32=60.0, bfloat16=835.5, float8=1670.5),
    _data_sheet(
        "GH200",
        _NVIDIA + "grace-hopper-superchip/",
        float32=66.9,
        bfloat16=989.4,
        float8=1978.9,
    ),
    _data_sheet("B200", _NVIDIA + "hgx/", float32=75.0, bfloat16=2250.0, float8=4500.0),
    _data_sheet("GB200", _NVIDIA + "gb200-nvl72/", float32=80.0, bfloat16=2500.0, float8=5000.0),
    _data_sheet("MI300X", _AMD + "mi300x.html", float32=163.4, bfloat16=1307.4, float8=2614.9),
    _data_sheet("MI325X", _AMD + "mi325x.html", float32=163.4, bfloat16=1307.4, float8=2614.9),
)
"""Data center accelerators; what is not among them has no known peak."""


def known_peak_flops(device: str, dtype: str) -> float | None:
    """Return the FLOP/s that an accelerator can do at most, or None where that is not known.

    Args:
        device: its name, as `torch.cuda.get_device_name()` gives it.
        dtype: what it multiplies: `bfloat16`, `float32` or `float8`.
    """
    fitting = [item for item in DATA_SHEETS if re.search(rf"\b{re.escape(item.name)}\b", device)]
    if not fitting:
        return None
    tflops = max(fitting, key=lambda item: len(item.name)).peak_tflops.get(dtype)
    return None if tflops is None else tflops * TERA


def peak_flops_per_rank(stated_tflops: float | None, dtype: str) -> float | None:
    """Return this rank's peak in FLOP/s: as stated, else by its accelerator's name, else None.

    Args:
        stated_tflops: `tracking.peak_tflops_per_rank`.
        dtype: what forward and backward passes are computed in.
    """
    if stated_tflops is not None:
        return stated_tflops * TERA
    device = _accelerator_name()
    return None if device is None else known_peak_flops(device, dtype)


def peak_memory_bytes() -> int:
    """Return the most memory that was in use so far: of the accelerator, else of this process.

    On an accelerator it is what tensors took; torch holds more. Of a process it is the resident
    set; pages that it shares with other processes count. Linux says it in /proc/self/status:
    getrusage(2), asked elsewhere, begins with what the process that started this one had in use.
    """
    if _accelerator_name() is not None:
        import torch

        return torch.cuda.max_memory_allocated()
    if (peak := re.search(rb"^VmHWM:\s*(\d+) kB$", _process_status(), re.MULTILINE)) is not None:
        return int(peak[1]) * KIB
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * KIB


def _process_status() -> bytes:
    """Return what Linux tells of this process, nothing elsewhere."""
    return PROCESS_STATUS.read_bytes() if PROCESS_STATUS.exists() else b""


def _accelerator_name() -> str | None:
    """Return the name of the accelerator that this process computes on, None where it has none."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    name: str = torch.cuda.get_device_name()
    return name


@dataclass(kw_only=True, slots=True)
class StepMeter:
    """Measures steps, one after another, on the rank that tells of them.

    Attributes:
        flops: what the model's passes cost; None where that is not known.
        peak_flops: FLOP/s that all ranks together can do at most; None where that is not known.
        clock: seconds, never going back.
    """

    flops: ModelFlops | None
    peak_flops: float | None
    clock: Callable[[], float] = time.monotonic
    _begun_s: float = field(default=0.0, init=False)

    @classmethod
    def of(  # noqa: PLR0913 -- what a utilization depends on
        cls,
        model_config: JsonObject,
        *,
        trainable: int,
        total: int,
        world_size: int,
        peak_flops_per_rank: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> Self:
        """Return the meter of a model; see `ModelFlops.of` for config and counts."""
        return cls(
            flops=ModelFlops.of(model_config, trainable=trainable, total=total),
            peak_flops=None if peak_flops_per_rank is None else peak_flops_per_rank * world_size,
            clock=clock,
        )

    def begin(self) -> None:
        """A step begins now."""
        self._begun_s = self.clock()

    def measured(self, *, tokens: int, pairs: int) -> JsonObject:
        """Return what was measured of the step that ends now.

        Args:
            tokens: what all ranks read in it, padding not counted.
            pairs: the sum over all ranks' rows of the square of their tokens.

        Returns:
            step_tokens, step_s, tokens_per_s, mfu (None where the model's FLOPs or the peak are not
            known) and memory_bytes.
        """
        seconds = self.clock() - self._begun_s
        mfu = None
        if self.flops is not None and self.peak_flops is not None:
            flops = self.flops.of_step(tokens=tokens, pairs=pairs)
            mfu = flops / seconds / self.peak_flops
        return {
            "step_tokens": tokens,
            "step_s": seconds,
            "tokens_per_s": tokens / seconds,
            "mfu": mfu,
            "memory_bytes": peak_memory_bytes(),
        }
