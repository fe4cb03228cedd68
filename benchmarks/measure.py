"""What a piece of work costs: seconds, CPU here and at the server, memory at its peak.

A process is measured with all its descendants, those that live and those that have ended. CPU time
of living processes comes from /proc, in steps of 10 ms.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

PROC = Path("/proc")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
RESET_PEAK = "5"  # proc(5), /proc/PID/clear_refs: VmHWM falls to VmRSS


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What a piece of work cost.

    Attributes:
        wall_s: seconds from its begin to its end.
        client_cpu_s: CPU-seconds, user and system, of this process and its descendants.
        server_cpu_s: the same of the server's processes; None where there is no server.
    """

    wall_s: float
    client_cpu_s: float
    server_cpu_s: float | None

    def cpu_per_gib(self, num_bytes: int) -> dict[str, float]:
        """Return the CPU-seconds for each GiB, of so many bytes, by quantity."""
        num_gib = num_bytes / 2**30
        quantities = {"client_cpu_s_per_gib": self.client_cpu_s / num_gib}
        if self.server_cpu_s is not None:
            quantities["server_cpu_s_per_gib"] = self.server_cpu_s / num_gib
        return quantities


class Meter:
    """Measures what happens while it is open: `with Meter(pids) as meter: ...; meter.cost`."""

    cost: Cost

    def __init__(self, server_pids: Sequence[int] = ()) -> None:
        self._server_pids = tuple(server_pids)

    def __enter__(self) -> Self:
        self._started = self._read()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        wall_s, client_cpu_s, server_cpu_s = (
            end - start for start, end in zip(self._started, self._read(), strict=True)
        )
        self.cost = Cost(
            wall_s=wall_s,
            client_cpu_s=client_cpu_s,
            server_cpu_s=server_cpu_s if self._server_pids else None,
        )

    def _read(self) -> tuple[float, float, float]:
        server_cpu_s = sum(_cpu_s(pid) for pid in self._server_pids)
        return time.perf_counter(), _client_cpu_s(), server_cpu_s


class PeakMemory:
    """The most memory this process and its descendants took, beyond what they had at the start.

    Linux keeps the peak itself (VmHWM), so nothing is sampled. The peaks of the processes are added
    although they need not have coincided, so the sum may be too high, never too low. Memory that a
    descendant shares with this process is counted here alone.
    """

    def __init__(self) -> None:
        self._before_bytes = 0
        for pid in _family():
            (PROC / str(pid) / "clear_refs").write_text(RESET_PEAK)
            self._before_bytes += _own_bytes(pid, "VmRSS")

    def extra_bytes(self) -> int:
        """Return it, in bytes, for the time since this object was made."""
        return sum(_own_bytes(pid, "VmHWM") for pid in _family()) - self._before_bytes


def _client_cpu_s() -> float:
    own, ended = (
        resource.getrusage(resource.RUSAGE_SELF),
        resource.getrusage(resource.RUSAGE_CHILDREN),
    )
    living_s = sum(_cpu_s(pid) for pid in _family() if pid != os.getpid())
    return own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime + living_s


def _cpu_s(pid: int) -> float:
    """Return the CPU-seconds of a process and of those of its children that have ended."""
    return sum(map(int, _stat(pid)[11:15])) / TICKS_PER_S  # utime, stime, cutime, cstime


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat that follow the command's name: state, parent, ..."""
    return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


def _family() -> list[int]:
    """Return this process and all its living descendants."""
    parents: dict[int, int] = {}
    for folder in PROC.iterdir():
        if folder.name.isdigit():
            try:
                parents[int(folder.name)] = int(_stat(int(folder.name))[1])
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended while we looked
    family = [os.getpid()]
    for member in family:  # grows while it is walked
        family += [pid for pid, parent in parents.items() if parent == member]
    return family


def _own_bytes(pid: int, field: str) -> int:
    """Return a figure of /proc/PID/status, without what a descendant has as shared memory."""
    lines = (PROC / str(pid) / "status").read_text().splitlines()
    kib = {
        name: int(rest.split()[0])
        for name, _, rest in (line.partition(":") for line in lines)
        if rest.endswith("kB")
    }
    shared_kib = 0 if pid == os.getpid() else kib["RssShmem"]
    return max(kib[field] - shared_kib, 0) * 1024
