"""Look at the machine: /proc, /sys, the environment and nvidia-smi; no torch.

What is not told is not known: an accelerator whose driver does not answer is not taken for absent.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from strongroom.training.preflight.facts import Accelerator, MachineFacts, RdmaDevice

logger = logging.getLogger(__name__)

OPTIONAL_PACKAGES = ("deepspeed", "torchao", "tensorboard", "wandb")
DEFAULT_TOPOLOGY = "var/run/nvidia-topologyd/virtualTopology.xml"
"""Where NCCL looks for a topology by itself."""

_QUERY = "name,memory.total,compute_cap,pcie.link.gen.max,pcie.link.width.max"
_QUERY_TIMEOUT_S = 20.0
_MIB = 1 << 20
_CONTROL_GROUPS = (
    ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory.current", "inactive_file"),
    (
        "sys/fs/cgroup/memory/memory.limit_in_bytes",
        "sys/fs/cgroup/memory/memory.usage_in_bytes",
        "total_inactive_file",
    ),
)
"""Limit, use, and the name of what can be given back, in version 2 and in version 1."""
_ACCELERATOR_CLASSES = ("0x0300", "0x0302", "0x1200")
"""PCI classes: VGA controller, 3D controller, processing accelerator."""
_ACCELERATOR_VENDORS = frozenset({"0x10de", "0x1002"})
"""PCI vendors: NVIDIA, AMD."""


def read_machine(
    environment: Mapping[str, str] | None = None, *, root: Path = Path("/")
) -> MachineFacts:
    """Return what this machine has.

    Args:
        environment: variables of the process that will launch the ranks; this one's if not given.
        root: the folder that holds `proc` and `sys`.
    """
    given = os.environ if environment is None else environment
    nccl = {name: value for name, value in given.items() if name.startswith("NCCL_")}
    return MachineFacts(
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=_available_bytes(root),
        accelerators=_accelerators(given, root),
        rdma=tuple(_rdma(root)),
        interfaces=tuple(_names(root / "sys/class/net")),
        environment=nccl,
        is_virtual=_is_virtual(root),
        topology_fault=_topology_fault(nccl.get("NCCL_TOPO_FILE")),
        has_topology=(root / DEFAULT_TOPOLOGY).is_file(),
        packages=tuple(
            name for name in OPTIONAL_PACKAGES if importlib.util.find_spec(name) is not None
        ),
    )


# --- memory ---------------------------------------------------------------------------


def _available_bytes(root: Path) -> int | None:
    """Return what processes can still get: of the machine, and of the limit of a container."""
    found = [_meminfo_available(root), _left_of_limit(root)]
    return min((value for value in found if value is not None), default=None)


def _meminfo_available(root: Path) -> int | None:
    for line in (_text(root / "proc/meminfo") or "").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _left_of_limit(root: Path) -> int | None:
    """Return what is left of a control group's limit; pages of files count as free."""
    for limit_file, used_file, pages_name in _CONTROL_GROUPS:
        limit, used = _text(root / limit_file), _text(root / used_file)
        if limit is None or used is None or not limit.isdigit():
            continue
        pages = 0
        for line in (_text(root / Path(used_file).with_name("memory.stat")) or "").splitlines():
            if line.startswith(f"{pages_name} "):
                pages = int(line.split()[1])
        return int(limit) - int(used) + pages
    return None


# --- accelerators ---------------------------------------------------------------------


def _accelerators(environment: Mapping[str, str], root: Path) -> tuple[Accelerator, ...] | None:
    command = shutil.which("nvidia-smi", path=environment.get("PATH"))
    if command is None:
        return None if _has_accelerator(root) else ()
    try:
        asked = subprocess.run(  # noqa: S603 -- found on the PATH, with fixed arguments
            [command, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=_QUERY_TIMEOUT_S,
            check=True,
        )
        found = [_accelerator(line) for line in asked.stdout.splitlines() if line.strip()]
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        logger.warning("accelerators are not known: %s: %s", command, error)
        return None if _has_accelerator(root) else ()
    return tuple(_visible(found, environment.get("CUDA_VISIBLE_DEVICES")))


def _accelerator(line: str) -> Accelerator:
    name, memory_mib, capability, generation, lanes = (part.strip() for part in line.split(","))
    return Accelerator(
        name=name,
        memory_bytes=int(memory_mib) * _MIB,
        capability=_number(capability),
        pcie_generation=_whole(generation),
        pcie_lanes=_whole(lanes),
    )


def _visible(found: list[Accelerator], wanted: str | None) -> list[Accelerator]:
    """Return those that CUDA_VISIBLE_DEVICES leaves; ids other than numbers are only counted."""
    if wanted is None:
        return found
    ids = [part.strip() for part in wanted.split(",") if part.strip()]
    if all(part.lstrip("-").isdigit() for part in ids):
        # What follows an index that is none is not seen either.
        seen = []
        for index in map(int, ids):
            if not 0 <= index < len(found):
                break
            seen.append(found[index])
        return seen
    return found[: len(ids)]


def _has_accelerator(root: Path) -> bool:
    devices = root / "sys/bus/pci/devices"
    return any(
        (_text(devices / name / "class") or "").startswith(_ACCELERATOR_CLASSES)
        and _text(devices / name / "vendor") in _ACCELERATOR_VENDORS
        for name in _names(devices)
    )


# --- network --------------------------------------------------------------------------


def _rdma(root: Path) -> Iterator[RdmaDevice]:
    folder = root / "sys/class/infiniband"
    for device in _names(folder):
        for port in _names(folder / device / "ports"):
            place = folder / device / "ports" / port
            yield RdmaDevice(
                name=device,
                link=_text(place / "link_layer") or "unknown",
                is_active="ACTIVE" in (_text(place / "state") or ""),
            )


def _topology_fault(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        with Path(path).open("rb") as file:
            return None if b"<system" in file.read(4096) else "it holds no <system> of NCCL's"
    except OSError as error:
        return f"it cannot be read ({error.strerror})"


def _is_virtual(root: Path) -> bool | None:
    for line in (_text(root / "proc/cpuinfo") or "").splitlines():
        if line.startswith("flags"):
            return "hypervisor" in line.split()
    return None


# --- reading --------------------------------------------------------------------------


def _text(path: Path) -> str | None:
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace").strip()
    return None


def _names(folder: Path) -> list[str]:
    with suppress(OSError):
        return sorted(entry.name for entry in folder.iterdir())
    return []


def _number(text: str) -> float | None:
    with suppress(ValueError):
        return float(text)
    return None


def _whole(text: str) -> int | None:
    return int(text) if text.isdigit() else None
