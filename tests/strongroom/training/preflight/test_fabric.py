"""What is measured over a real group, and what is said of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from strongroom.errors import TrainingError
from strongroom.training.preflight import probe
from strongroom.training.preflight.checks.network import chosen
from strongroom.training.preflight.fabric import fabric_findings
from strongroom.training.preflight.probe import probe_allreduce

MANY = 256


def test_a_slow_fabric_is_found_over_many_ranks_alone() -> None:
    (finding,) = fabric_findings(12.1, MANY, {"NCCL_NET": "Socket", "HOME": "/root"})
    assert (finding.check, finding.severity) == ("fabric", "warn")
    assert "12.1 ms" in finding.saw
    assert "NCCL_NET=Socket" in finding.mend
    assert "HOME" not in finding.mend
    assert fabric_findings(12.0, MANY, {}) == []
    assert fabric_findings(500.0, MANY - 1, {}) == []


def test_the_thresholds_may_be_others() -> None:
    numbers = {"allreduce_ms": 1.0, "allreduce_ranks": 2}
    assert len(fabric_findings(1.1, 2, {}, numbers=numbers)) == 1
    assert fabric_findings(0.9, 2, {}, numbers=numbers) == []


@pytest.mark.parametrize(
    ("wanted", "left"),
    [
        ("", ["eth0", "eth1", "ib0"]),
        ("eth", ["eth0", "eth1"]),
        ("=eth0", ["eth0"]),
        ("eth0:1,ib", ["eth0", "ib0"]),
        ("^eth", ["ib0"]),
        ("^=eth0", ["eth1", "ib0"]),
        ("bond", []),
    ],
)
def test_filters_are_read_as_nccl_reads_them(wanted: str, left: list[str]) -> None:
    assert chosen(wanted, ["eth0", "eth1", "ib0"]) == left


def test_two_ranks_are_started_and_agree_on_one_number() -> None:
    latency_ms = probe_allreduce(2)
    assert 0.0 < latency_ms < 60_000.0


def test_every_rank_gets_the_number_of_the_slowest() -> None:
    """One rank sleeps before it joins each round: all of them must say so."""
    code = """
import os, time
import torch.distributed as dist
from strongroom.training.preflight import fabric
from strongroom.training.world import leave_world
dist.init_process_group("gloo")
fabric.WARM_UPS, fabric.ROUNDS = 1, 3
if dist.get_rank() == 1:
    all_reduce = dist.all_reduce
    def late(*arguments, **options):
        time.sleep(0.2)
        return all_reduce(*arguments, **options)
    dist.all_reduce = late
# One write each: the two ranks share one pipe.
os.write(1, f"latency {fabric.measure_allreduce_ms():.6f}\\n".encode())
leave_world()
"""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    command += ["--local-addr", "127.0.0.1", "--no-python", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    said = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("latency")]
    assert len(said) == 2
    assert said[0] == said[1]
    assert float(said[0]) >= 190.0


def test_ranks_that_do_not_come_together_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        probe, "_command", lambda _ranks, _file: [sys.executable, "-c", "raise SystemExit('no')"]
    )
    with pytest.raises(TrainingError, match=r"exit code 1:\nno"):
        probe_allreduce(2)
    monkeypatch.setattr(
        probe,
        "_command",
        lambda _ranks, _file: [sys.executable, "-c", "import time; time.sleep(60)"],
    )
    with pytest.raises(TrainingError, match="within 1 s"):
        probe_allreduce(2, timeout_s=1.0)
