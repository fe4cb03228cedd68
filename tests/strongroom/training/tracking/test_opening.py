from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from strongroom.canonical import JsonObject
from strongroom.errors import ConfigError
from strongroom.training.tracking.base import Tracker
from strongroom.training.tracking.config import TrackingConfig, WandbConfig
from strongroom.training.tracking.opening import open_trackers

WANDB = WandbConfig(project="tests")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)


def opened(config: TrackingConfig, folder: Path, failures: list[JsonObject]) -> Tracker:
    return open_trackers(
        config,
        folder=folder,
        run="nightly-7",
        attempt=1,
        step=0,
        settings={},
        on_failure=failures.append,
    )


def event_files(folder: Path) -> list[Path]:
    return list(folder.rglob("events.out.tfevents.*"))


def test_where_nothing_is_asked_for_nobody_is_told(tmp_path: Path) -> None:
    failures: list[JsonObject] = []
    tracker = opened(TrackingConfig(), tmp_path / "none", failures)
    tracker.tell({"kind": "training.step", "step": 1, "loss": 1.0})
    tracker.close()
    assert failures == []
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("module", "config", "named"),
    [
        ("torch.utils.tensorboard", TrackingConfig(tensorboard=True), "tensorboard"),
        ("wandb", TrackingConfig(wandb=WANDB), "wandb"),
    ],
)
def test_a_package_that_is_missing_is_named_with_what_to_install(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    config: TrackingConfig,
    named: str,
) -> None:
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "")  # given back after the test
    monkeypatch.setenv("WANDB_CACHE_DIR", "")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"(?s)tracking\.{named}.*strongroom\[tracking\]"):
        opened(config, tmp_path, [])


def test_the_folder_of_the_configuration_comes_first(tmp_path: Path) -> None:
    config = TrackingConfig(tensorboard=True, folder=str(tmp_path / "there"))
    opened(config, tmp_path / "here", []).close()
    assert len(event_files(tmp_path / "there" / "nightly-7")) == 1
    assert not (tmp_path / "here").exists()


def test_a_folder_that_cannot_be_made_is_a_fault_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"tracking\.folder.*\n.*file/below cannot be written"):
        opened(TrackingConfig(tensorboard=True), tmp_path / "file" / "below", [])


def test_a_folder_that_cannot_be_written_is_one_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    with pytest.raises(ConfigError, match="Permission denied"):
        opened(TrackingConfig(tensorboard=True), tmp_path, [])


def test_one_tracker_that_cannot_begin_does_not_keep_others_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from strongroom.training.tracking import tensorboard, wandb

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    told: list[JsonObject] = []

    class Fake:
        def __init__(self, *_: object, **__: object) -> None: ...

        def tell(self, event: JsonObject) -> None:
            told.append(event)

        def close(self) -> None:
            told.append({"kind": "closed"})

    monkeypatch.setattr(tensorboard, "TensorBoard", full)
    monkeypatch.setattr(wandb, "Wandb", Fake)
    failures: list[JsonObject] = []
    tracker = opened(TrackingConfig(tensorboard=True, wandb=WANDB), tmp_path, failures)
    tracker.tell({"kind": "training.step", "step": 1})
    tracker.close()
    assert [event["kind"] for event in told] == ["training.step", "closed"]
    assert failures == [
        {
            "kind": "tracker.failed",
            "tracker": "tensorboard",
            "error": "OSError",
            "message": "[Errno 28] No space left on device",
        }
    ]


@pytest.mark.parametrize(
    ("config", "makes"),
    [
        (TrackingConfig(tensorboard=True), (os, "makedirs")),  # as tensorboard does
        (TrackingConfig(wandb=WANDB), (Path, "mkdir")),
    ],
)
def test_a_full_disk_is_no_fault_of_the_configuration(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    config: TrackingConfig,
    makes: tuple[object, str],
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    folder = tmp_path / "new"
    monkeypatch.setattr(*makes, full)
    failures: list[JsonObject] = []
    opened(config, folder, failures).close()
    assert [event["error"] for event in failures] == ["OSError"]


def test_a_fault_of_one_tracker_ends_those_that_had_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from strongroom.training.tracking import tensorboard

    closed: list[str] = []
    close = tensorboard.TensorBoard.close

    def note(self: Any) -> None:  # noqa: ANN401 -- the class is patched
        closed.append("tensorboard")
        close(self)

    monkeypatch.setattr(tensorboard.TensorBoard, "close", note)
    monkeypatch.setenv("WANDB_MODE", "dryrun")
    with pytest.raises(ConfigError, match="WANDB_MODE"):
        opened(TrackingConfig(tensorboard=True, wandb=WANDB), tmp_path, [])
    assert closed == ["tensorboard"]


def test_the_environment_can_turn_wandb_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    with caplog.at_level("INFO"):
        opened(TrackingConfig(wandb=WANDB), tmp_path / "none", []).close()
    assert not (tmp_path / "none").exists()
    assert "turned off by WANDB_MODE" in caplog.text


def test_nothing_is_imported_that_is_not_asked_for() -> None:
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from strongroom.training.tracking.config import TrackingConfig\n"
        "from strongroom.training.tracking.opening import open_trackers\n"
        "open_trackers(TrackingConfig(), folder=Path('x'), run='r', attempt=1, step=0,"
        " settings={}, on_failure=print).close()\n"
        "sys.exit(str({'torch', 'tensorboard', 'wandb'} & set(sys.modules) or ''))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert ran.stderr.strip() == ""
