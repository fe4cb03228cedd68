"""The process that writes: what it does like the thread, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from strongroom.checkpoint.catalogue import list_checkpoints, read_checkpoint
from strongroom.checkpoint.manifest import Manifest
from strongroom.checkpoint.reading.reader import CheckpointReader
from strongroom.checkpoint.saving.process import SaveProcess
from strongroom.checkpoint.saving.saver import AsyncSaver, SaveOptions
from strongroom.errors import FencedError, InputError, SaveError, StrongroomError
from strongroom.storage.local import LocalStorage
from strongroom.storage.memory import MemoryStorage
from tests.support.checkpoints import (
    checkpoint_name,
    ignore_commit,
    mixed_state,
    same,
    save_facts,
    training_state,
)
from tests.support.ranks import run_ranks

PATIENCE_S = 60.0
PROCESS = SaveOptions(writer="process", staging="overlap", full_every=2)


def saved(storage: LocalStorage, step: int) -> dict[str, Tensor]:
    reader = CheckpointReader(storage, read_checkpoint(storage, checkpoint_name(step)))
    return {name: reader.read(name) for name in reader.tensor_names}


def pid_of(saver: AsyncSaver) -> int:
    assert isinstance(saver._saving, SaveProcess)
    return saver._saving.pid


@contextmanager
def new_saver(
    folder: Path,
    *,
    fence: Callable[[], None] = lambda: None,
    on_commit: Callable[[Manifest, float], None] = ignore_commit,
    timeout_s: float = 300.0,
) -> Iterator[AsyncSaver]:
    saver = AsyncSaver(
        LocalStorage(folder),
        fence=fence,
        on_commit=on_commit,
        options=PROCESS,
        timeout_s=timeout_s,
    )
    with saver:
        yield saver


def error_within(seconds: float, ask: Callable[[], None]) -> str:
    """Return the SaveError that asking again and again ends with."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            ask()
        except SaveError as error:
            return str(error)
        time.sleep(0.01)
    raise AssertionError(f"no error in {seconds} s")


def test_it_writes_what_the_state_was_and_asks_the_parent(tmp_path: Path) -> None:
    asked: list[tuple[str, int]] = []
    announced: list[Manifest] = []

    def on_commit(manifest: Manifest, durable_s: float) -> None:
        asked.append(("committed", os.getpid()))
        assert durable_s > 0
        announced.append(manifest)

    states = {1: mixed_state(1), 2: training_state(2), 3: mixed_state(3)}
    with new_saver(
        tmp_path, fence=lambda: asked.append(("fence", os.getpid())), on_commit=on_commit
    ) as saver:
        assert pid_of(saver) != os.getpid()
        for step, state in states.items():
            before = {name: tensor.clone() for name, tensor in state.items()}
            saver.save(state, save_facts(checkpoint_name(step)))
            saver.wait_staged()
            for tensor in state.values():
                tensor.zero_()
            states[step] = before
    storage = LocalStorage(tmp_path)
    assert asked == [("fence", os.getpid()), ("committed", os.getpid())] * 3
    for step, manifest in zip(states, announced, strict=True):
        assert same(saved(storage, step), states[step])
        committed = read_checkpoint(storage, checkpoint_name(step))
        assert manifest.checkpoint_id == committed.checkpoint_id
        assert 0 < manifest.metrics["pause_s"] < PATIENCE_S


def test_its_errors_are_those_of_the_thread_and_the_next_save_succeeds(tmp_path: Path) -> None:
    def on_commit(manifest: Manifest, _durable_s: float) -> None:
        if manifest.name.step.number == 3:

            class LocalError(Exception):
                """A class that no other process can find."""

            raise LocalError("the ledger may not be written")

    with new_saver(tmp_path, on_commit=on_commit) as saver:

        def save(step: int) -> None:
            saver.save(training_state(step), save_facts(checkpoint_name(step)))
            saver.wait()

        save(1)
        with pytest.raises(SaveError, match=r"step-00000001: failed on rank\(s\) 0: ConflictError"):
            save(1)
        save(2)
        with pytest.raises(SaveError, match="LocalError: the ledger may not be written"):
            save(3)
        save(4)
    assert {item.name.step.number for item in list_checkpoints(LocalStorage(tmp_path))} == {
        1,
        2,
        3,  # it stands, though it could not be announced
        4,
    }


def test_the_fence_of_the_parent_stops_its_commit(tmp_path: Path) -> None:
    def fence() -> None:
        raise FencedError("run nightly-7: a newer attempt owns it")

    with (
        pytest.raises(FencedError, match="a newer attempt"),
        new_saver(tmp_path, fence=fence) as saver,
    ):
        saver.save(training_state(), save_facts(checkpoint_name(1)))
    assert list(list_checkpoints(LocalStorage(tmp_path))) == []


def test_a_copy_that_failed_is_its_failure_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_copying: object, *_part: object) -> None:
        raise RuntimeError("the device is lost")

    with new_saver(tmp_path) as saver:
        with monkeypatch.context() as patch:
            patch.setattr("strongroom.checkpoint.saving.staging.Copying._take", failing)
            saver.save(training_state(), save_facts(checkpoint_name(1)))
            with pytest.raises(SaveError, match="the device is lost"):
                saver.wait_staged()
        saver.save(training_state(), save_facts(checkpoint_name(2)))
    assert same(saved(LocalStorage(tmp_path), 2), training_state())


def test_killed_with_nothing_to_do_it_is_missed_at_the_next_check(tmp_path: Path) -> None:
    with new_saver(tmp_path) as saver:
        saver.save(training_state(), save_facts(checkpoint_name(1)))
        saver.wait()
        saver.check()
        os.kill(pid_of(saver), signal.SIGKILL)
        assert "was killed by signal 9" in error_within(PATIENCE_S, saver.check)
    assert len(list_checkpoints(LocalStorage(tmp_path))) == 1


def test_killed_in_the_middle_of_a_save_it_fails_that_save(tmp_path: Path) -> None:
    asked, killed = threading.Event(), threading.Event()

    def fence() -> None:
        asked.set()
        assert killed.wait(PATIENCE_S)

    with new_saver(tmp_path, fence=fence) as saver:
        saver.save(training_state(), save_facts(checkpoint_name(1)))
        assert asked.wait(PATIENCE_S)
        os.kill(pid_of(saver), signal.SIGKILL)
        killed.set()
        error = error_within(PATIENCE_S, saver.check)
        assert "save of nightly-7/attempt-0001/step-00000001" in error
        assert "was killed by signal 9" in error
    assert list(list_checkpoints(LocalStorage(tmp_path))) == []


def test_signals_that_stop_a_training_do_not_stop_its_last_save(tmp_path: Path) -> None:
    with new_saver(tmp_path) as saver:
        for number in (signal.SIGTERM, signal.SIGINT):  # it has hardly begun to start
            os.kill(pid_of(saver), number)
        saver.save(training_state(), save_facts(checkpoint_name(1)))
        saver.wait()
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(pid_of(saver), number)
        saver.save(training_state(), save_facts(checkpoint_name(2)))
    assert len(list_checkpoints(LocalStorage(tmp_path))) == 2
    assert signal.pthread_sigmask(signal.SIG_BLOCK, set()) == set()  # here nothing is blocked


def test_one_that_says_nothing_is_killed_in_time(tmp_path: Path) -> None:
    with new_saver(tmp_path, timeout_s=3.0) as saver:
        os.kill(pid_of(saver), signal.SIGSTOP)
        saver.save(training_state(), save_facts(checkpoint_name(1)))
        with pytest.raises(SaveError, match="was killed by signal 9") as caught:
            saver.wait()
        assert "nothing was heard of it for 3 s" in str(caught.value.__cause__)


def test_it_ends_with_its_saver(tmp_path: Path) -> None:
    with new_saver(tmp_path) as saver:
        pid = pid_of(saver)
        os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_storage_that_no_other_process_can_open_is_refused() -> None:
    with pytest.raises(InputError, match="scheme 'memory'"):
        AsyncSaver(MemoryStorage(), fence=lambda: None, on_commit=ignore_commit, options=PROCESS)


# As a user writes it: no `if __name__ == "__main__"`, and work at the top level.
SCRIPT = """
import sys, time
from pathlib import Path
from strongroom.checkpoint.saving.saver import AsyncSaver, SaveOptions
from strongroom.storage.local import LocalStorage
from tests.support.checkpoints import checkpoint_name, save_facts, training_state

saver = AsyncSaver(
    LocalStorage(Path(sys.argv[1])), fence=lambda: None, on_commit=lambda manifest, seconds: None,
    options=SaveOptions(writer="process"),
)
print(saver._saving.pid, flush=True)
saver.save(training_state(1), save_facts(checkpoint_name(1)))
saver.wait()
print("saved", flush=True)
time.sleep(float(sys.argv[2]))
saver.close()
"""


def script(folder: Path, seconds: float) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder), str(seconds)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_a_script_without_a_guard_is_not_run_again(tmp_path: Path) -> None:
    with script(tmp_path, 0.0) as process:
        said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert said.split()[1:] == ["saved"]
    assert len(list_checkpoints(LocalStorage(tmp_path))) == 1


def test_it_does_not_outlive_a_parent_that_is_killed(tmp_path: Path) -> None:
    with script(tmp_path, PATIENCE_S) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert process.stdout.readline() == "saved\n"
        os.kill(pid, signal.SIGSTOP)  # so that it cannot notice by itself
        process.kill()
        process.wait(PATIENCE_S)
        deadline = time.monotonic() + PATIENCE_S
        while Path(f"/proc/{pid}").exists() and "Z" not in state_of(pid):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def state_of(pid: int) -> str:
    """Return the letter of a process's state; it may be a zombie that nobody waits for here."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


# --- on two ranks ---------------------------------------------------------------------


def spread(step: int) -> dict[str, Tensor]:
    """Return a state of both ranks: sharded, replicated, plain and a rank's own."""
    mesh = init_device_mesh("cpu", (2,))
    return {
        "rows": distribute_tensor(torch.full((5, 3), float(step)), mesh, [Shard(0)]),
        "columns": distribute_tensor(torch.arange(12.0).view(2, 6) + step, mesh, [Shard(1)]),
        "everywhere": distribute_tensor(torch.ones(4).bfloat16(), mesh, [Replicate()]),
        "step": torch.tensor(float(step)),
        f"rng.{dist.get_rank()}.torch": torch.full((8,), dist.get_rank(), dtype=torch.uint8),
    }


def whole(step: int) -> dict[str, Tensor]:
    return {
        "rows": torch.full((5, 3), float(step)),
        "columns": torch.arange(12.0).view(2, 6) + step,
        "everywhere": torch.ones(4).bfloat16(),
        "step": torch.tensor(float(step)),
        "rng.0.torch": torch.zeros(8, dtype=torch.uint8),
        "rng.1.torch": torch.ones(8, dtype=torch.uint8),
    }


def work(rank: int, folder: Path) -> None:
    found: dict[str, str] = {}
    saver = AsyncSaver(
        LocalStorage(folder / "store"),
        fence=lambda: None,
        on_commit=ignore_commit,
        options=PROCESS,
        timeout_s=120.0,
    )
    for step in (1, 2, 3):  # full, delta, full; training's own collectives go on meanwhile
        saver.save(spread(step), save_facts(checkpoint_name(step)))
        dist.all_reduce(torch.ones(10))
        saver.wait_staged()
    saver.wait()

    if rank == 1:  # in the middle of a save: it has not answered yet when it is killed
        os.kill(pid_of(saver), signal.SIGSTOP)
    dist.barrier()
    saver.save(spread(4), save_facts(checkpoint_name(4)))
    if rank == 1:
        time.sleep(0.5)
        os.kill(pid_of(saver), signal.SIGKILL)
    found["killed in a save"] = error_within(PATIENCE_S, saver.check)
    found["and after it"] = error_within(PATIENCE_S, saver.check)
    try:
        saver.close()
    except StrongroomError as error:
        found["close"] = str(error)

    saver = AsyncSaver(
        LocalStorage(folder / "store"), fence=lambda: None, on_commit=ignore_commit, options=PROCESS
    )
    saver.save(spread(5), save_facts(checkpoint_name(5)))  # a new saver has new processes
    saver.wait()
    state = spread(6)
    if rank == 1:
        os.kill(pid_of(saver), signal.SIGKILL)
    else:
        saver.save(state, save_facts(checkpoint_name(6)))
    found["killed idle"] = error_within(PATIENCE_S, saver.check)
    saver.close()
    (folder / f"found-{rank}.json").write_text(json.dumps(found), encoding="utf-8")


def test_on_two_ranks_it_saves_and_a_killed_one_fails_both(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    run_ranks(2, work, tmp_path)
    storage = LocalStorage(tmp_path / "store")
    committed = list(list_checkpoints(storage))
    assert [item.name.step.number for item in committed] == [1, 2, 3, 5]
    assert [item.manifest.chain for item in committed] == [0, 1, 0, 0]
    assert all(item.manifest.world_size == 2 for item in committed)
    for step in (1, 2, 3, 5):
        assert same(saved(storage, step), whole(step))
    first, second = (
        json.loads((tmp_path / f"found-{rank}.json").read_text(encoding="utf-8"))
        for rank in range(2)
    )
    assert "save of nightly-7/attempt-0001/step-00000004" in first["killed in a save"]
    assert "was killed by signal 9" in second["killed in a save"]
    # The first one's ends itself, so that none waits for it.
    assert "the process that writes for this rank ended with 1" in first["and after it"]
    assert "was killed by signal 9" in second["and after it"]
    assert "save of nightly-7/attempt-0001/step-00000006" in first["killed idle"]
    assert "was killed by signal 9" in second["killed idle"]
    assert "close" not in first.keys() | second.keys()
