"""One rank among several that train run after run in the same processes, and what it saw of each.

The training is the real one, `strongroom.training.run.train`. Beside it a rank notes which rows it
was given, and can have the state that it restored saved again at once, through the saver that
every checkpoint goes through, so that it can be compared with what was stored.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from strongroom.canonical import JsonObject
from strongroom.checkpoint.catalogue import Committed
from strongroom.checkpoint.run_record import RunRecord
from strongroom.checkpoint.saving.saver import AsyncSaver, SaveFacts
from strongroom.data.packing import Batch
from strongroom.parent import die_with_parent
from strongroom.storage.base import Storage
from strongroom.storage.local import LocalStorage
from strongroom.training import run as run_module
from strongroom.training.batches import TrainingRows
from strongroom.training.config import parse_config
from strongroom.training.launching.spec import Launch
from strongroom.training.progress import Progress, manifest_state
from strongroom.training.reporting import ReportKind
from strongroom.training.resume import restore
from strongroom.training.rng import random_state, rng_keys
from strongroom.training.run import RunRequest, train
from strongroom.training.stop import StopRequest
from strongroom.training.world import leave_world


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A launch of a run.

    Attributes:
        stop_after: the step after which it is asked to stop; None: it is trained to its end.
        witness: a folder to save the restored state in; None where nothing is restored.
    """

    launch: Launch
    stop_after: int | None = None
    witness: Path | None = None


@dataclass(kw_only=True, slots=True)
class Seen:
    """What one rank saw of a launch.

    Attributes:
        events: what it reported; rank 0 reports nearly all.
        batches: the rows of every micro-batch, in the order in which they were computed.
    """

    events: list[JsonObject] = field(default_factory=list)
    batches: list[list[int]] = field(default_factory=list)


def serve(rank: int, world_size: int, meeting: Path, connection: Connection) -> None:
    """Join the other ranks and do the tasks that come, until there is none; a process's main.

    The answer to a task is a `Seen`, or the traceback of what it failed with, as text.
    """
    die_with_parent()
    os.environ |= {
        "GLOO_SOCKET_IFNAME": "lo",
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
    }
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=world_size
    )
    while (task := connection.recv()) is not None:
        try:
            answer: Seen | str = do(task)
        except Exception:  # noqa: BLE001 -- whatever it is, it is told where it can be read
            answer = traceback.format_exc()
        connection.send(answer)
    leave_world()


def do(task: Task) -> Seen:
    """Launch a run as one of its ranks."""
    seen, stop = Seen(), StopRequest()

    def report(event: JsonObject) -> None:
        seen.events.append(event)
        if event["kind"] == ReportKind.STEP and event["step"] == task.stop_after:
            stop.is_asked = True

    launch = task.launch
    request = RunRequest(
        store_url=launch.store_url,
        run=launch.run,
        keys=launch.keys,
        cache=launch.cache,
        settings=launch.settings,
        fresh_start=False,
    )
    with _noted_rows(seen), _witnessed(task.witness):
        train(request, report, stop)
    return seen


@contextmanager
def _noted_rows(seen: Seen) -> Iterator[None]:
    batch = TrainingRows.batch

    def noting(self: TrainingRows, sequences: Sequence[tuple[int, ...]]) -> Batch:
        seen.batches.append([index for sequence in sequences for index in sequence])
        return batch(self, sequences)

    with patch.object(TrainingRows, "batch", noting):
        yield


@contextmanager
def _witnessed(folder: Path | None) -> Iterator[None]:
    """Save what is restored in `folder`, before anything is done with it."""

    def witnessing(
        storage: Storage,
        committed: Committed,
        record: RunRecord,
        **spread: Any,  # noqa: ANN401 -- passed on as they are
    ) -> Progress:
        progress = restore(storage, committed, record, **spread)
        if folder is not None:
            _save_again(folder, committed, record, progress, **spread)
        return progress

    with patch.object(run_module, "restore", witnessing):
        yield


def _save_again(  # noqa: PLR0913 -- everything that has state
    folder: Path,
    committed: Committed,
    record: RunRecord,
    progress: Progress,
    *,
    world: Any,  # noqa: ANN401 -- as `restore` has it
    strategy: Any,  # noqa: ANN401 -- as above
    **_: Any,  # noqa: ANN401 -- as above
) -> None:
    names = rng_keys(world.rank)
    state = {
        **strategy.state_tensors(),
        **{names[kind]: tensor for kind, tensor in random_state().items()},
    }
    facts = SaveFacts(
        name=committed.name,
        parent=None,
        inputs=record.inputs,
        state=manifest_state(
            progress,
            parse_config(record.config, source="witness"),
            base_model=record.inputs.base_model,
            param_groups=strategy.param_groups(),
        ),
        metrics=committed.manifest.metrics,
    )
    with AsyncSaver(
        LocalStorage(folder), fence=lambda: None, on_commit=lambda _manifest, _durable_s: None
    ) as saver:
        saver.save(state, facts)
