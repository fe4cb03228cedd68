"""What no implementation can do better: one copy of the state, one SHA-256 of every byte."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median

from torch import Tensor

from benchmarks.measure import Meter
from benchmarks.states import GIB, MIB

BLOCK_BYTES = 16 * MIB
COPIES = 5


def sha256(*, mib: int, threads: int | None = None) -> dict[str, float]:
    """Hash so much memory, by as many threads as there are cores unless told otherwise."""
    memory = memoryview(os.urandom(BLOCK_BYTES) * -(-mib * MIB // BLOCK_BYTES))[: mib * MIB]
    blocks = [memory[start : start + BLOCK_BYTES] for start in range(0, mib * MIB, BLOCK_BYTES)]
    with ThreadPoolExecutor(threads or os.cpu_count()) as pool:
        _hash(blocks[:1])
        with Meter() as meter:
            list(pool.map(_hash, ([block] for block in blocks)))
    return {
        "seconds": meter.cost.wall_s,
        "gib_per_s": mib * MIB / GIB / meter.cost.wall_s,
        **meter.cost.cpu_per_gib(mib * MIB),
    }


def warm_copy_s(state: Mapping[str, Tensor]) -> float:
    """Return the seconds of one copy of the state into memory that was written to before."""
    kept = {name: tensor.clone() for name, tensor in state.items()}
    seconds = []
    for _ in range(COPIES):
        started = time.perf_counter()
        for name, tensor in state.items():
            kept[name].copy_(tensor)
        seconds.append(time.perf_counter() - started)
    return median(seconds)


def _hash(blocks: Sequence[memoryview]) -> None:
    for block in blocks:
        hashlib.sha256(block).digest()
