"""What is read of a machine, from trees of files that stand for /proc and /sys."""

from __future__ import annotations

from pathlib import Path

import pytest

from strongroom.training.preflight.facts import Accelerator, RdmaDevice
from strongroom.training.preflight.machine import read_machine

TWO = "NVIDIA H100 80GB HBM3, 81559, 9.0, 5, 16\nNVIDIA A100-SXM4-80GB, 81920, 8.0, [N/A], [N/A]\n"


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text, encoding="utf-8")


def nvidia_smi(folder: Path, answer: str, *, code: int = 0) -> dict[str, str]:
    """Return an environment in whose PATH nvidia-smi answers so."""
    script = folder / "bin" / "nvidia-smi"
    write(folder, "bin/nvidia-smi", f"#!/bin/sh\ncat <<'END'\n{answer}END\nexit {code}\n")
    script.chmod(0o755)
    return {"PATH": f"{script.parent}:/usr/bin:/bin"}


def test_this_machine_is_read_in_a_moment() -> None:
    machine = read_machine()
    assert machine.cores >= 1
    assert machine.memory_bytes is not None
    assert machine.memory_bytes > 100_000_000
    assert "lo" in machine.interfaces
    assert set(machine.packages) <= {"deepspeed", "torchao", "tensorboard", "wandb"}


def test_an_empty_tree_says_nothing(tmp_path: Path) -> None:
    machine = read_machine({}, root=tmp_path)
    assert (machine.memory_bytes, machine.is_virtual, machine.topology_fault) == (None, None, None)
    assert (machine.accelerators, machine.rdma, machine.interfaces) == ((), (), ())


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    2000 kB\n"}, 2_048_000),
        (
            {
                "proc/meminfo": "MemAvailable: 2000 kB\n",
                "sys/fs/cgroup/memory.max": "1500000\n",
                "sys/fs/cgroup/memory.current": "900000\n",
                "sys/fs/cgroup/memory.stat": "anon 5\ninactive_file 100000\n",
            },
            700_000,
        ),
        (
            {
                "proc/meminfo": "MemAvailable: 2000 kB\n",
                "sys/fs/cgroup/memory.max": "max\n",
                "sys/fs/cgroup/memory.current": "900000\n",
            },
            2_048_000,
        ),
        (
            {
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "1500000\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "900000\n",
                "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 1\n",
            },
            600_001,
        ),
    ],
)
def test_memory_is_what_the_machine_and_its_container_leave(
    tmp_path: Path, files: dict[str, str], expected: int
) -> None:
    for path, text in files.items():
        write(tmp_path, path, text)
    assert read_machine({}, root=tmp_path).memory_bytes == expected


def test_accelerators_are_those_that_the_driver_names(tmp_path: Path) -> None:
    machine = read_machine(nvidia_smi(tmp_path, TWO), root=tmp_path)
    assert machine.accelerators == (
        Accelerator(
            name="NVIDIA H100 80GB HBM3",
            memory_bytes=81559 << 20,
            capability=9.0,
            pcie_generation=5,
            pcie_lanes=16,
        ),
        Accelerator(name="NVIDIA A100-SXM4-80GB", memory_bytes=81920 << 20, capability=8.0),
    )


@pytest.mark.parametrize(
    ("wanted", "num_seen"),
    [("1", 1), ("0,1", 2), ("1,7,0", 1), ("-1", 0), ("", 0), ("GPU-5c8f", 1)],
)
def test_accelerators_that_are_hidden_are_not_seen(
    tmp_path: Path, wanted: str, num_seen: int
) -> None:
    environment = nvidia_smi(tmp_path, TWO) | {"CUDA_VISIBLE_DEVICES": wanted}
    seen = read_machine(environment, root=tmp_path).accelerators
    assert seen is not None
    assert len(seen) == num_seen


@pytest.mark.parametrize(
    "answer", [("", 9), ("NVIDIA-SMI has failed\n", 0), ("a, b, c, d, e\n", 0)]
)
def test_accelerators_that_do_not_answer_are_not_known(
    tmp_path: Path, answer: tuple[str, int]
) -> None:
    environment = nvidia_smi(tmp_path, answer[0], code=answer[1])
    assert read_machine(environment, root=tmp_path).accelerators == ()
    write(tmp_path, "sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n")
    write(tmp_path, "sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n")
    assert read_machine(environment, root=tmp_path).accelerators is None
    assert read_machine({"PATH": "/nowhere"}, root=tmp_path).accelerators is None


def test_other_devices_are_no_accelerators(tmp_path: Path) -> None:
    write(tmp_path, "sys/bus/pci/devices/0000:01:00.0/class", "0x020000\n")
    write(tmp_path, "sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n")
    write(tmp_path, "sys/bus/pci/devices/0000:02:00.0/class", "0x030000\n")
    write(tmp_path, "sys/bus/pci/devices/0000:02:00.0/vendor", "0x1af4\n")
    assert read_machine({"PATH": "/nowhere"}, root=tmp_path).accelerators == ()


def test_rdma_is_read_port_by_port(tmp_path: Path) -> None:
    for device, link, state in (
        ("mlx5_0", "InfiniBand", "4: ACTIVE"),
        ("mlx5_1", "Ethernet", "1: DOWN"),
    ):
        write(tmp_path, f"sys/class/infiniband/{device}/ports/1/link_layer", f"{link}\n")
        write(tmp_path, f"sys/class/infiniband/{device}/ports/1/state", f"{state}\n")
    assert read_machine({}, root=tmp_path).rdma == (
        RdmaDevice(name="mlx5_0", link="InfiniBand", is_active=True),
        RdmaDevice(name="mlx5_1", link="Ethernet", is_active=False),
    )


def test_what_nccl_is_told_is_kept_and_nothing_else(tmp_path: Path) -> None:
    given = {"NCCL_DEBUG": "INFO", "AWS_SECRET_ACCESS_KEY": "x", "PATH": "/nowhere"}
    assert read_machine(given, root=tmp_path).environment == {"NCCL_DEBUG": "INFO"}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('<system version="1"><cpu/></system>', None),
        ("graph", "it holds no <system> of NCCL's"),
        (None, "it cannot be read (No such file or directory)"),
    ],
)
def test_a_topology_file_is_looked_into(
    tmp_path: Path, text: str | None, fault: str | None
) -> None:
    if text is not None:
        write(tmp_path, "topo.xml", text)
    environment = {"NCCL_TOPO_FILE": str(tmp_path / "topo.xml"), "PATH": "/nowhere"}
    assert read_machine(environment, root=tmp_path).topology_fault == fault


def test_a_hypervisor_and_its_topology_are_seen(tmp_path: Path) -> None:
    write(tmp_path, "proc/cpuinfo", "processor: 0\nflags\t: fpu hypervisor avx\n")
    write(tmp_path, "var/run/nvidia-topologyd/virtualTopology.xml", "<system/>")
    machine = read_machine({}, root=tmp_path)
    assert machine.is_virtual is True
    assert machine.has_topology
    write(tmp_path, "proc/cpuinfo", "flags\t: fpu avx\n")
    assert read_machine({}, root=tmp_path).is_virtual is False
