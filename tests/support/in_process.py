"""A whole training in this process, and what can be made to go wrong in it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from strongroom.canonical import JsonObject
from strongroom.checkpoint.catalogue import Committed, checkpoint_names, list_checkpoints
from strongroom.checkpoint.reading.reader import CheckpointReader
from strongroom.model.loss import completion_loss_sum
from strongroom.training import loop
from strongroom.training.launching.spec import LaunchSettings
from strongroom.training.loop import Loop
from strongroom.training.run import RunRequest, train
from strongroom.training.stop import StopRequest
from strongroom.training.world import leave_world
from tests.support.training_run import TrainingRun

Watch = Callable[[JsonObject, StopRequest], None]


@contextmanager
def as_the_only_rank(folder: Path) -> Iterator[None]:
    """Be one rank alone while the context lasts; torch's settings are as before after it."""
    threads = torch.get_num_threads()
    meeting = folder / "meeting-point"
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=0, world_size=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANK", "0")
        patch.setenv("LOCAL_RANK", "0")
        yield
    leave_world()
    torch.use_deterministic_algorithms(mode=False)
    torch.set_num_threads(threads)


def go_on(
    run: TrainingRun,
    *,
    watch: Watch | None = None,
    settings: LaunchSettings | None = None,
    fresh_start: bool = False,
    told: list[JsonObject] | None = None,
) -> list[JsonObject]:
    """Launch `run` on the ranks there are and return what this one reported.

    Args:
        run: which.
        watch: sees each event at once.
        settings: those of its record if not given.
        fresh_start: as in a launch.
        told: takes the events, for a launch that fails.
    """
    events = [] if told is None else told
    stop = StopRequest()

    def report(event: JsonObject) -> None:
        events.append(event)
        if watch is not None:
            watch(event, stop)

    request = RunRequest(
        store_url=run.store_url,
        run=run.record.run,
        keys=run.keys,
        cache=run.cache,
        settings=run.launch().settings if settings is None else settings,
        fresh_start=fresh_start,
    )
    train(request, report, stop)
    return events


def of_kind(events: list[JsonObject], kind: str) -> list[JsonObject]:
    return [event for event in events if event["kind"] == kind]


def losses(events: list[JsonObject]) -> dict[int, float]:
    return {event["step"]: event["loss"] for event in of_kind(events, "training.step")}


def stop_after(step: int) -> Watch:
    def watch(event: JsonObject, stop: StopRequest) -> None:
        if event["kind"] in {"training.step", "step.passed_over"} and event["step"] == step:
            stop.is_asked = True

    return watch


def newest(run: TrainingRun) -> Committed:
    return max(list_checkpoints(run.storage, run.record.run), key=lambda each: each.name)


def tensors(run: TrainingRun, committed: Committed) -> dict[str, Tensor]:
    reader = CheckpointReader(run.storage, committed)
    return {name: reader.read(name) for name in reader.tensor_names}


def damage(run: TrainingRun, step: int) -> None:
    """Flip one bit in the middle of the first shard of the newest checkpoint of `step`."""
    name = max(n for n in checkpoint_names(run.storage, run.record.run) if n.step.number == step)
    root = Path(run.store_url.removeprefix("file://"))
    shard = root / "runs" / str(name) / "__0_0.distcp"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.chmod(0o644)
    shard.write_bytes(data)


class _InfiniteGradient(torch.autograd.Function):
    """What it is given, with a gradient that overflowed on its way back."""

    @staticmethod
    def forward(_context: Any, nats: Tensor) -> Tensor:  # noqa: ANN401 -- torch's own
        return nats.clone()

    @staticmethod
    def backward(_context: Any, gradient: Tensor) -> Tensor:  # noqa: ANN401 -- as above
        return gradient * float("inf")


POISONS: dict[str, Callable[[Tensor], Tensor]] = {
    "loss": lambda nats: nats * float("nan"),
    "gradient": _InfiniteGradient.apply,
}


def poison(patch: pytest.MonkeyPatch, steps: Collection[int], kind: str = "loss") -> list[int]:
    """Have these steps give a loss that is no number, or a gradient without end, whenever taken.

    Returns:
        The steps that were computed, as they are.
    """
    compute, at = Loop._compute, [0]
    computed: list[int] = []

    def noting(self: Loop, batches: list[Any]) -> Any:  # noqa: ANN401 -- passed on as it is
        at[0] = self.progress.step + 1
        computed.append(at[0])
        return compute(self, batches)

    def loss_sum(logits_BTV: Tensor, labels_BT: Tensor) -> tuple[Tensor, Tensor]:
        nats, count = completion_loss_sum(logits_BTV, labels_BT)
        return (POISONS[kind](nats) if at[0] in steps else nats), count

    patch.setattr(Loop, "_compute", noting)
    patch.setattr(loop, "completion_loss_sum", loss_sum)
    return computed
