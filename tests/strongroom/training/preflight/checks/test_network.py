"""Checks of the fabric, each found by its name, alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.preflight import (
    LARGE_FACTS,
    found,
    large,
    on_machine,
    only,
    with_checkpoints,
)


@pytest.mark.parametrize(
    ("machine", "said"),
    [
        ({"environment": {"NCCL_IB_DISABLE": "1"}}, "NCCL_IB_DISABLE=1"),
        ({"environment": {"NCCL_NET": "Socket"}}, "NCCL_NET=Socket"),
        ({"environment": {"NCCL_IB_HCA": "mlx4"}}, "NCCL_IB_HCA=mlx4"),
        ({"environment": {"NCCL_IB_HCA": "^mlx5"}}, "NCCL_IB_HCA=^mlx5"),
        ({"environment": {"NCCL_SOCKET_IFNAME": "bond"}}, "NCCL_SOCKET_IFNAME=bond"),
        (
            {
                "environment": {"NCCL_TOPO_FILE": "/topo.xml"},
                "topology_fault": "it cannot be read (No such file or directory)",
            },
            "NCCL_TOPO_FILE=/topo.xml: it cannot be read",
        ),
        (
            {"rdma": tuple(replace(LARGE_FACTS.machine.rdma[0], is_active=False) for _ in "ab")},  # type: ignore[union-attr]
            "no port of it is active",
        ),
    ],
)
def test_fabric(machine: dict[str, Any], said: str) -> None:
    finding = only(large(), on_machine(LARGE_FACTS, **machine))
    assert (finding.check, finding.severity) == ("fabric", "warn")
    assert said in finding.saw


@pytest.mark.parametrize(
    "environment",
    [
        {"NCCL_IB_DISABLE": "0"},
        {"NCCL_NET": "IB"},
        {"NCCL_IB_HCA": "mlx5_0:1,mlx5_1:1"},
        {"NCCL_IB_HCA": "=mlx5_0"},
        {"NCCL_IB_HCA": "^mlx5_7"},
        # The sockets are those of the first contact; what follows goes over RDMA all the same.
        {"NCCL_SOCKET_IFNAME": "eth"},
        {"NCCL_SOCKET_IFNAME": "=eth0,=eth1"},
        {"NCCL_SOCKET_IFNAME": "^docker,lo"},
        {"NCCL_TOPO_FILE": "/topo.xml"},
    ],
)
def test_a_fabric_that_is_used(environment: dict[str, str]) -> None:
    assert found(large(), on_machine(LARGE_FACTS, environment=environment)) == []


def test_a_topology_that_a_hypervisor_hides() -> None:
    config = large(train={"world_size": 16, "replicas": 2})
    rehearsed = with_checkpoints(LARGE_FACTS, resharded=((16, 8),))
    hidden = on_machine(rehearsed, is_virtual=True)
    assert only(config, hidden).check == "fabric"
    assert "NCCL_TOPO_FILE is not set" in only(config, hidden).saw
    assert found(config, on_machine(rehearsed, is_virtual=True, has_topology=True)) == []
    given = on_machine(rehearsed, is_virtual=True, environment={"NCCL_TOPO_FILE": "/topo.xml"})
    assert found(config, given) == []
    assert found(large(), on_machine(LARGE_FACTS, is_virtual=True)) == []  # one machine


def test_a_slow_all_reduce_over_many_ranks() -> None:
    config = large(train={"world_size": 256, "replicas": 32, "batch_rows": 256})
    config = replace(
        config,
        preflight=replace(
            config.preflight, reference_batch_tokens=1_048_576, reference_learning_rate=1e-5
        ),
    )
    rehearsed = with_checkpoints(LARGE_FACTS, resharded=((256, 128),))
    slow = replace(rehearsed, allreduce_ms=12.5)
    assert only(config, slow).check == "fabric"
    assert "256 ranks takes 12.5 ms" in only(config, slow).saw
    assert found(config, replace(rehearsed, allreduce_ms=12.0)) == []
