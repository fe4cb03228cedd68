"""A task of Slurm becomes a rank, and finds rank 0 through the store."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from strongroom.errors import ConfigError, TrainingError
from strongroom.names import RunKey
from strongroom.storage.memory import MemoryStorage
from strongroom.storage.store import create_store
from strongroom.training.launching import slurm_rank
from strongroom.training.launching.slurm_rank import Task, main, rendezvous
from strongroom.training.launching.store_events import LaunchId, StoreEvents

RUN = RunKey("nightly-7")
LAUNCH = LaunchId("20260131T081500Z-0123abcd")
VARIABLES = {
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURMD_NODENAME": "node-3",
}


def task(rank: int) -> Task:
    return Task(rank=rank, world_size=2, local_rank=0, node="here")


def test_slurms_variables_become_those_of_torch() -> None:
    found = Task.of(VARIABLES)
    assert found == Task(rank=5, world_size=8, local_rank=1, node="node-3")
    assert found.variables() == {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}


def test_outside_slurm_it_says_what_is_missing() -> None:
    with pytest.raises(ConfigError, match="SLURM_LOCALID: is not set; this program is started by"):
        Task.of({name: value for name, value in VARIABLES.items() if name != "SLURM_LOCALID"})


def test_ranks_meet_at_a_port_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    monkeypatch.setattr(slurm_rank, "MEETING_POLL_S", 0.01)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    storage = MemoryStorage()
    met: list[tuple[str, int]] = []

    def other() -> None:
        with rendezvous(storage, "launch", task(1)) as address:
            met.append(address)
            TCPStore(*address, is_master=False).set("word", "hello")

    thread = threading.Thread(target=other, daemon=True)
    thread.start()
    with rendezvous(storage, "launch", task(0)) as (host, port):
        # As torch does it in a process of rank 0 where it finds MASTER_ADDR and MASTER_PORT.
        torch_own = TCPStore(host, port, is_master=True, multi_tenant=True, wait_for_workers=False)
        assert torch_own.get("word") == b"hello"
        thread.join(timeout=60.0)
    assert met == [(host, port)]


def test_rank_0_is_found_under_its_node_where_nothing_else_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with rendezvous(MemoryStorage(), "launch", task(0)) as (host, _):
        assert host == "here"


def test_a_rank_0_that_never_comes_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_rank, "MEETING_TIMEOUT_S", 0.05)
    monkeypatch.setattr(slurm_rank, "MEETING_POLL_S", 0.01)
    with (
        pytest.raises(TrainingError, match="rank 0 did not open the rendezvous"),
        rendezvous(MemoryStorage(), "launch", task(1)),
    ):
        pass


def test_it_trains_with_what_torch_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = create_store(str(tmp_path))
    seen: list[tuple[list[str], dict[str, str]]] = []

    def train(arguments: list[str]) -> int:
        seen.append((arguments, dict(os.environ)))
        return 75

    monkeypatch.setattr(slurm_rank, "train", train)
    monkeypatch.setattr(slurm_rank, "die_with_parent", lambda: None)
    variables = {**VARIABLES, "SLURM_PROCID": "0"}
    monkeypatch.setattr(os, "environ", {**os.environ, **variables, "MASTER_ADDR": "127.0.0.1"})
    given = ["--store", store.url, "--run-key", str(RUN), "--launch-id", str(LAUNCH)]
    assert main([*given, "--keys", "keys"]) == 75
    ((arguments, environment),) = seen
    assert arguments == [*given, "--keys", "keys"]
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")
    assert [environment[name] for name in names] == ["0", "8", "1", "127.0.0.1"]
    assert int(environment["MASTER_PORT"]) > 0


def test_who_waits_in_vain_says_so_through_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = create_store(str(tmp_path))
    monkeypatch.setattr(slurm_rank, "die_with_parent", lambda: None)
    monkeypatch.setattr(slurm_rank, "MEETING_TIMEOUT_S", 0.0)
    monkeypatch.setattr(os, "environ", {**os.environ, **VARIABLES})
    given = ["--store", store.url, "--run-key", str(RUN), "--launch-id", str(LAUNCH)]
    assert main([*given, "--keys", "unused"]) == TrainingError.exit_code
    (told,) = StoreEvents(store.storage, RUN, LAUNCH).read()
    assert (told["kind"], told["rank"]) == ("training.failed", 5)


def test_it_starts_without_torch() -> None:
    code = (
        "import sys, strongroom.training.launching.slurm_rank; "
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
