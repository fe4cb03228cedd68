from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from strongroom.canonical import JsonObject
from strongroom.training.tracking.base import Tracked
from strongroom.training.tracking.tensorboard import TensorBoard


def tracked(folder: Path, *, attempt: int = 1, step: int = 0) -> Tracked:
    return Tracked(
        folder=folder,
        run="nightly-7",
        attempt=attempt,
        step=step,
        settings={"train": {"steps": 3, "learning_rate": 0.1}},
    )


def step_event(step: int, **fields: object) -> JsonObject:
    return {"kind": "training.step", "step": step, "loss": 10.0 - step, **fields}


def write(folder: Path, *events: JsonObject, attempt: int = 1, step: int = 0) -> None:
    writer = TensorBoard(tracked(folder, attempt=attempt, step=step))
    for event in events:
        writer.tell(event)
    writer.close()


def read(folder: Path) -> Any:  # noqa: ANN401 -- tensorboard publishes no types
    accumulator: Any = EventAccumulator(str(folder / "nightly-7"))
    accumulator.Reload()
    return accumulator


def series(accumulator: Any, tag: str) -> list[tuple[int, float]]:  # noqa: ANN401 -- as above
    return [(point.step, point.value) for point in accumulator.Scalars(tag)]


def notes(accumulator: Any, tag: str) -> list[tuple[int, str]]:  # noqa: ANN401 -- as above
    return [
        (point.step, point.tensor_proto.string_val[0].decode())
        for point in accumulator.Tensors(f"{tag}/text_summary")
    ]


def test_every_number_is_found_again_at_its_step(tmp_path: Path) -> None:
    measured = {
        "learning_rate": 0.5,
        "grad_norm": 0.25,
        "tokens_per_s": 1000.0,
        "step_tokens": 500,
        "step_s": 0.5,
        "mfu": 0.375,
        "memory_bytes": 2**30,
    }
    committed: JsonObject = {
        "kind": "checkpoint.committed",
        "step": 1,
        "num_bytes": 2**20,
        "pause_s": 0.125,
        "durable_s": 2.5,
        "probe_loss": 2.0,
    }
    # A checkpoint is committed when training has gone on already.
    write(tmp_path, step_event(1, **measured), step_event(2, **measured), committed)
    found = read(tmp_path)
    assert series(found, "train/loss") == [(1, 9.0), (2, 8.0)]
    for tag, value in {
        "train/learning_rate": 0.5,
        "train/grad_norm": 0.25,
        "speed/tokens_per_s": 1000.0,
        "speed/step_s": 0.5,
        "speed/mfu": 0.375,
        "memory/peak_bytes": 2.0**30,
    }.items():
        assert series(found, tag) == [(1, value), (2, value)], tag
    for tag, value in {
        "save/bytes": 2.0**20,
        "save/pause_s": 0.125,
        "save/durable_s": 2.5,
        "probe/loss": 2.0,
    }.items():
        assert series(found, tag) == [(1, value)], tag


def test_what_is_not_known_is_not_shown_and_what_is_not_finite_is(tmp_path: Path) -> None:
    write(tmp_path, step_event(1, mfu=None), {**step_event(2), "loss": "nan", "grad_norm": "inf"})
    found = read(tmp_path)
    assert "speed/mfu" not in found.Tags()["scalars"]
    assert math.isnan(series(found, "train/loss")[1][1])
    assert series(found, "train/grad_norm") == [(2, math.inf)]


def test_steps_that_are_taken_again_after_a_resume_are_shown_once(tmp_path: Path) -> None:
    write(tmp_path, *(step_event(step) for step in range(1, 8)))
    again = [step_event(step, loss=100.0) for step in range(5, 8)]
    write(tmp_path, *again, attempt=2, step=4)
    assert series(read(tmp_path), "train/loss") == [
        (1, 9.0),
        (2, 8.0),
        (3, 7.0),
        (4, 6.0),
        (5, 100.0),
        (6, 100.0),
        (7, 100.0),
    ]


def test_what_came_after_a_checkpoint_is_gone_before_it_is_taken_again(tmp_path: Path) -> None:
    write(tmp_path, *(step_event(step) for step in range(1, 8)))
    write(tmp_path, attempt=2, step=4)
    assert [step for step, _ in series(read(tmp_path), "train/loss")] == [1, 2, 3, 4]


def test_a_fresh_start_replaces_all_that_was_shown(tmp_path: Path) -> None:
    write(tmp_path, *(step_event(step) for step in range(1, 8)))
    write(tmp_path, step_event(1, loss=100.0), attempt=2, step=0)
    assert series(read(tmp_path), "train/loss") == [(1, 100.0)]


def test_a_roll_back_within_an_attempt_replaces_what_is_taken_again(tmp_path: Path) -> None:
    back: JsonObject = {
        "kind": "training.rolled_back",
        "from_step": 6,
        "to_step": 3,
        "checkpoint": "nightly-7/attempt-0001/step-00000003",
    }
    write(
        tmp_path,
        *(step_event(step) for step in range(1, 7)),
        back,
        step_event(4, loss=100.0),
    )
    found = read(tmp_path)
    assert series(found, "train/loss") == [(1, 9.0), (2, 8.0), (3, 7.0), (4, 100.0)]
    assert notes(found, "events/training.rolled_back") == [
        (3, "from_step: 6, to_step: 3, checkpoint: nightly-7/attempt-0001/step-00000003")
    ]


def test_what_happens_besides_is_told_in_words_at_its_step(tmp_path: Path) -> None:
    passed_over: JsonObject = {"kind": "step.passed_over", "step": 2, "reason": "loss is nan"}
    write(
        tmp_path,
        {"kind": "training.started", "run": "nightly-7", "attempt": 1},
        step_event(1),
        passed_over,
        {"kind": "training.finished", "step": 3},
    )
    found = read(tmp_path)
    assert notes(found, "events/training.started") == [(0, "run: nightly-7, attempt: 1")]
    assert notes(found, "events/step.passed_over") == [(2, "step: 2, reason: loss is nan")]
    assert notes(found, "events/training.finished") == [(3, "step: 3")]


def test_what_happens_twice_at_a_step_is_told_together(tmp_path: Path) -> None:
    # TensorBoard shows the last text of a kind and step alone.
    passed_over = [
        {"kind": "step.passed_over", "step": step, "reason": reason}
        for step, reason in ((2, "first"), (2, "second"), (3, "third"))
    ]
    write(tmp_path, *passed_over)
    first, second, third = notes(read(tmp_path), "events/step.passed_over")
    assert first == (2, "step: 2, reason: first")
    assert second == (2, "step: 2, reason: first\n\nstep: 2, reason: second")
    assert third == (3, "step: 3, reason: third")


def test_the_settings_of_the_run_are_shown(tmp_path: Path) -> None:
    write(tmp_path)
    [(step, text)] = notes(read(tmp_path), "run/settings")
    assert step == 0
    assert '"learning_rate": 0.1' in text


def test_files_say_of_which_attempt_they_are(tmp_path: Path) -> None:
    write(tmp_path, attempt=12)
    [file] = (tmp_path / "nightly-7").iterdir()
    assert file.name.endswith(".attempt-0012")


def test_what_was_told_is_there_while_training_goes_on(tmp_path: Path) -> None:
    from strongroom.training.tracking import tensorboard

    assert tensorboard.FLUSH_S <= 10
    writer = TensorBoard(tracked(tmp_path))
    writer.tell(step_event(1))
    writer._writer.flush()  # as its own thread does every FLUSH_S
    assert series(read(tmp_path), "train/loss") == [(1, 9.0)]
    writer.close()


def test_a_full_disk_ends_the_tracker_and_not_the_training(tmp_path: Path) -> None:
    # A process of its own: the limit of a file's size, as good as a full disk, is a process's.
    program = (
        "import resource, signal, sys, time\n"
        "from pathlib import Path\n"
        "from strongroom.training.tracking.config import TrackingConfig\n"
        "from strongroom.training.tracking.opening import open_trackers\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "failures = []\n"
        "tracker = open_trackers(TrackingConfig(tensorboard=True), folder=Path(sys.argv[1]),\n"
        "    run='nightly-7', attempt=1, step=0, settings={}, on_failure=failures.append)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))\n"
        "for step in range(3000):\n"
        "    tracker.tell({'kind': 'training.step', 'step': step, 'loss': 1.0})\n"
        "tracker.close()\n"
        "print([(str(event['kind']), event['tracker'], event['error']) for event in failures])\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "[('tracker.failed', 'tensorboard', 'OSError')]", ran.stderr
