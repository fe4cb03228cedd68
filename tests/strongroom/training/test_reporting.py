from __future__ import annotations

import json
import threading
from pathlib import Path

from strongroom.checkpoint.manifest import Inputs, Manifest
from strongroom.names import CheckpointName, Digest
from strongroom.training.reporting import ReportKind, committed_event, reporting


def lines(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_an_event_can_be_read_as_soon_as_it_is_told(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    with reporting(file) as report:
        report({"kind": ReportKind.STEP, "step": 1, "loss": 0.5})
        assert lines(file) == [{"kind": "training.step", "step": 1, "loss": 0.5}]


def test_threads_and_processes_never_mix_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    with reporting(file) as one, reporting(file) as other:
        threads = [
            threading.Thread(target=lambda tell=tell: [tell({"x": "y" * 500}) for _ in range(50)])
            for tell in (one, one, other)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert lines(file) == [{"x": "y" * 500}] * 150


def test_nobody_listening_is_no_error() -> None:
    with reporting(None) as report:
        report({"kind": ReportKind.FINISHED, "step": 3})


def test_a_commit_is_told_with_its_numbers() -> None:
    digest = Digest.of(b"")
    manifest = Manifest(
        name=CheckpointName.parse("nightly/attempt-0002/step-00000030"),
        save_id="0" * 32,
        created="2026-01-01T00:00:00.000Z",
        world_size=2,
        parent=None,
        inputs=Inputs(base_model=digest, dataset=digest, tokenizer=digest, config=digest),
        files=(),
        tensors=(),
        state={},
        metrics={"pause_s": 0.25, "train_loss": 1.5, "probe_loss": 2.5},
        exact_resume=True,
    )
    assert committed_event(manifest, durable_s=3.0) == {
        "kind": "checkpoint.committed",
        "checkpoint": "nightly/attempt-0002/step-00000030",
        "checkpoint_id": str(manifest.checkpoint_id),
        "step": 30,
        "num_bytes": 0,
        "pause_s": 0.25,
        "durable_s": 3.0,
        "train_loss": 1.5,
        "probe_loss": 2.5,
    }
