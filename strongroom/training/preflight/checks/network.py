"""Checks of what NCCL is told, against the fabric that is there."""

from __future__ import annotations

from collections.abc import Iterator

from strongroom.training.preflight.estimates import num_accelerators
from strongroom.training.preflight.fabric import fabric_findings
from strongroom.training.preflight.facts import MachineFacts
from strongroom.training.preflight.findings import Case, Finding, finding

INTERFACES = "NCCL_SOCKET_IFNAME"
ADAPTERS = "NCCL_IB_HCA"


def fabric(case: Case) -> Iterator[Finding]:
    """Find RDMA that is there and unused, a topology that NCCL cannot know, and slow collectives.

    NCCL serves accelerators alone: without any, only what was measured counts.
    """
    machine = case.facts.machine
    ranks = case.config.train.world_size
    environment = {} if machine is None else machine.environment
    if case.facts.allreduce_ms is not None:
        yield from fabric_findings(
            case.facts.allreduce_ms, ranks, environment, numbers=case.numbers
        )
    if machine is None or not machine.accelerators or ranks == 1:
        return
    yield from _unused_rdma(machine)
    yield from _interfaces(machine)
    yield from _topology(machine, ranks)


def _unused_rdma(machine: MachineFacts) -> Iterator[Finding]:
    if not machine.rdma:
        return
    there = ", ".join(f"{device.name} ({device.link})" for device in machine.rdma)
    active = [device.name for device in machine.rdma if device.is_active]
    environment = machine.environment
    if environment.get("NCCL_IB_DISABLE", "0") not in {"0", ""}:
        said = f"NCCL_IB_DISABLE={environment['NCCL_IB_DISABLE']}"
        mend = "unset NCCL_IB_DISABLE"
    elif environment.get("NCCL_NET", "").lower() == "socket":
        said = f"NCCL_NET={environment['NCCL_NET']}"
        mend = "unset NCCL_NET"
    elif not active:
        said = "no port of it is active"
        mend = "ask for the cabling, the driver and the subnet manager: `ibstat` shows the ports"
    elif not chosen(environment.get(ADAPTERS, ""), active):
        said = f"{ADAPTERS}={environment[ADAPTERS]} leaves none of its active ports"
        mend = f"unset {ADAPTERS}, or name one of: {', '.join(active)}"
    else:
        return
    yield finding(
        "fabric",
        "warn",
        saw=f"RDMA is there, {there}, and NCCL will not use it: {said}",
        mend=mend,
    )


def _interfaces(machine: MachineFacts) -> Iterator[Finding]:
    wanted = machine.environment.get(INTERFACES, "")
    if not machine.interfaces or chosen(wanted, machine.interfaces):
        return
    yield finding(
        "fabric",
        "warn",
        saw=f"{INTERFACES}={wanted} names no network interface of this machine, which has "
        f"{', '.join(machine.interfaces)}",
        mend=f"unset {INTERFACES}, or name one of them",
    )


def _topology(machine: MachineFacts, ranks: int) -> Iterator[Finding]:
    if machine.topology_fault is not None:
        yield finding(
            "fabric",
            "warn",
            saw=f"NCCL_TOPO_FILE={machine.environment.get('NCCL_TOPO_FILE')}: "
            f"{machine.topology_fault}; NCCL goes on without it",
            mend="give the path of the description that the machine's maker delivers, or unset it",
        )
        return
    spans_machines = ranks > num_accelerators(machine)
    if (
        machine.is_virtual
        and spans_machines
        and machine.rdma
        and "NCCL_TOPO_FILE" not in machine.environment
        and not machine.has_topology
    ):
        yield finding(
            "fabric",
            "warn",
            saw=f"a hypervisor hides which of {len(machine.accelerators or ())} accelerators is "
            f"near which of {len(machine.rdma)} RDMA ports, and NCCL_TOPO_FILE is not set",
            mend="set NCCL_TOPO_FILE to the topology file that the cloud delivers for this kind of "
            "machine",
        )


def chosen(wanted: str, names: tuple[str, ...] | list[str]) -> list[str]:
    """Return which of `names` a filter of NCCL lets through; an empty one lets all through.

    `eth,mlx5` are prefixes, `=eth0` is a whole name, `^docker` excludes; ports (`mlx5_0:1`) are
    left aside. Source: NCCL's documentation of NCCL_SOCKET_IFNAME and NCCL_IB_HCA.
    """
    if not wanted:
        return list(names)
    excludes = wanted.startswith("^")
    rest = wanted.removeprefix("^")
    is_exact = rest.startswith("=")
    patterns = [part.partition(":")[0] for part in rest.removeprefix("=").split(",") if part]

    def fits(name: str) -> bool:
        return any(name == p if is_exact else name.startswith(p) for p in patterns)

    return [name for name in names if fits(name) != excludes]
