"""How long the ranks take to agree: measured over the real group, and what that says of the fabric.

What is measured is an all-reduce of 1 MiB in float32: small enough that latency and the number of
hops decide, large enough that a path over IP sockets shows.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping

from strongroom.training.preflight.findings import Finding, finding
from strongroom.training.preflight.numbers import values

PAYLOAD_BYTES = 1 << 20
WARM_UPS = 5
"""Rounds that are not counted: connections are made in the first."""
ROUNDS = 20


def measure_allreduce_ms() -> float:
    """Return the median latency of an all-reduce over the default group, in milliseconds.

    Collective: every rank of an initialised process group calls it, and gets the same number, that
    of the slowest rank. Over accelerators where the group serves them, else over the host.
    """
    import torch
    import torch.distributed as dist

    on_device = torch.cuda.is_available() and "nccl" in str(dist.get_backend_config())
    device = torch.device("cuda", torch.cuda.current_device()) if on_device else torch.device("cpu")
    payload = torch.ones(PAYLOAD_BYTES // 4, dtype=torch.float32, device=device)
    milliseconds = []
    for number in range(WARM_UPS + ROUNDS):
        payload.fill_(1.0)
        if on_device:
            torch.cuda.synchronize(device)
        started = time.perf_counter()
        dist.all_reduce(payload)
        if on_device:
            torch.cuda.synchronize(device)
        if number >= WARM_UPS:
            milliseconds.append(1000.0 * (time.perf_counter() - started))
    slowest = torch.tensor(statistics.median(milliseconds), dtype=torch.float64, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return float(slowest)


def fabric_findings(
    latency_ms: float,
    world_size: int,
    environment: Mapping[str, str],
    *,
    numbers: Mapping[str, float] | None = None,
) -> list[Finding]:
    """Return what a measured latency says of the fabric; nothing for a group that is small.

    Args:
        latency_ms: of an all-reduce, as `measure_allreduce_ms` gives it.
        world_size: ranks it was measured over.
        environment: variables of NCCL, to be looked at first.
        numbers: thresholds, where they are not the usual ones.
    """
    numbers = values({}) if numbers is None else numbers
    if world_size < numbers["allreduce_ranks"] or latency_ms <= numbers["allreduce_ms"]:
        return []
    told = ", ".join(
        f"{name}={value}" for name, value in sorted(environment.items()) if name.startswith("NCCL_")
    )
    return [
        finding(
            "fabric",
            "warn",
            saw=f"an all-reduce of 1 MiB over {world_size} ranks takes {latency_ms:.3g} ms, more "
            f"than {numbers['allreduce_ms']:g} ms",
            mend="run NCCL_DEBUG=INFO and look which transport it names; check cabling, "
            f"congestion and topology (NCCL is told: {told or 'nothing'})",
        )
    ]
