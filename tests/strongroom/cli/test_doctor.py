"""`strongroom doctor` on good configurations, and on twelve that are wrong on purpose."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from strongroom.custody.context import Custody
from strongroom.training.preflight.numbers import NUMBERS
from strongroom.training.preflight.rules import RULES
from tests.support.command_line import CommandLine, Ran
from tests.support.forged_runs import forge, newest_manifest, without_tensors
from tests.support.tiny_recipe import make_tiny_recipe
from tests.support.trained_store import RUN

H100 = "NVIDIA H100 80GB HBM3, 81559, 9.0, 5, 16"
A100 = "NVIDIA A100-SXM4-80GB, 81920, 8.0, 4, 16"

Doctor = Callable[..., Ran]


@pytest.fixture(scope="session")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good configuration on disk, with its model and its rows; nobody writes into its folder."""
    return make_tiny_recipe(Path(tmp_path_factory.mktemp("doctor")), steps=4)


@pytest.fixture
def doctor(command_line: CommandLine, recipe: Path, tmp_path: Path) -> Doctor:
    """Write the good configuration with sections changed, and have it looked over."""

    def look(*options: str, **changes: dict[str, Any]) -> Ran:
        document = yaml.safe_load(recipe.read_text(encoding="utf-8"))
        document["data"]["sources"][0]["uri"] = str(recipe.parent / "rows.jsonl")
        for section, fields in changes.items():
            document.setdefault(section, {}).update(fields)
        path = tmp_path / "wrong.yaml"
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
        return command_line("doctor", str(path), *options, "--json")

    return look


def found(ran: Ran) -> list[str]:
    return [item["check"] for item in ran.document["findings"]]


@pytest.fixture
def accelerators(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Have the driver name these accelerators."""

    def pretend(*lines: str) -> None:
        script = tmp_path / "bin" / "nvidia-smi"
        script.parent.mkdir()
        script.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines))
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    return pretend


# --- good ones ------------------------------------------------------------------------


def test_nothing_is_found_in_a_good_configuration(
    command_line: CommandLine, recipe: Path, tmp_path: Path
) -> None:
    ran = command_line("doctor", str(recipe), "--store", str(tmp_path / "store"))
    assert ran.code == 0, ran.err
    assert ran.out.startswith(f"{recipe}: nothing found\n")
    for said in ("LlamaForCausalLM", "told apart by its place", "not made yet", "not known"):
        assert said in ran.out
    assert not (tmp_path / "store").exists()
    document = command_line("doctor", str(recipe), "--json").document
    assert document["findings"] == []
    assert document["facts"]["store"] is None
    assert document["estimates"]["num_checkpoints"] == 2


def test_nothing_is_found_in_a_finished_run(store: CommandLine, trained_store: Path) -> None:
    ran = store("doctor", str(trained_store / "tiny.yaml"), "--run", str(RUN), "--json")
    assert (ran.code, found(ran)) == (0, [])
    assert [item["step"] for item in ran.document["facts"]["run"]["checkpoints"]] == [4, 2]


# --- twelve wrong ones ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("check", "code", "changes"),
    [
        ("synchronous-saves", 0, {"save": {"asynchronous": False}}),
        (
            "resharding-untested",
            0,
            {"train": {"world_size": 5, "batch_rows": 5}, "launch": {"min_world_size": 2}},
        ),
        ("blocking-upload", 64, {"preflight": {"step_s": 0.5, "upload_bytes_per_s": 1000.0}}),
        ("batch-and-learning-rate", 0, {"preflight": {"reference_learning_rate": 1.0e-4}}),
    ],
)
def test_a_pitfall_of_the_configuration_is_found_by_name(
    doctor: Doctor, check: str, code: int, changes: dict[str, Any]
) -> None:
    ran = doctor(**changes)
    assert (found(ran), ran.code) == ([check], code)
    (item,) = ran.document["findings"]
    assert all(item[part] for part in ("saw", "why", "mend", "source"))
    assert item["stops"] is (code == 64)


@pytest.mark.parametrize(
    ("accelerator", "setting", "expected"),
    [
        (H100, {"cpu_offload": True}, (["cpu-offload"], 0)),
        (A100, {"float8": "on"}, (["precision"], 64)),
    ],
)
def test_a_pitfall_of_the_hardware_is_found_by_name(
    doctor: Doctor,
    accelerators: Callable[..., None],
    accelerator: str,
    setting: dict[str, Any],
    expected: tuple[list[str], int],
) -> None:
    accelerators(accelerator, accelerator)
    ran = doctor(train={"fsdp2": setting})
    assert (found(ran), ran.code) == expected


def test_a_fabric_that_nccl_is_told_wrong_of_is_found(
    doctor: Doctor,
    accelerators: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    accelerators(H100, H100)
    two_ranks = {"world_size": 2}
    assert found(doctor(train=two_ranks)) == []
    monkeypatch.setenv("NCCL_TOPO_FILE", str(tmp_path / "topology.xml"))
    ran = doctor(train=two_ranks)
    assert (found(ran), ran.code) == (["fabric"], 0)
    assert "topology.xml" in ran.document["findings"][0]["saw"]


def test_a_storage_class_that_bills_longer_than_checkpoints_live_is_found(
    doctor: Doctor, s3_url: str
) -> None:
    store = f"{s3_url}{'&' if '?' in s3_url else '?'}storage_class=STANDARD_IA"
    ran = doctor("--store", store, preflight={"keep_days": 7})
    assert (found(ran), ran.code) == (["storage-tier"], 0)
    assert found(doctor("--store", store)) == []


def test_weights_of_another_training_are_found(
    doctor: Doctor, recipe: Path, tmp_path: Path
) -> None:
    model = tmp_path / "checkpoint-500"
    shutil.copytree(recipe.parent / "model", model)
    (model / "optimizer.pt").write_bytes(b"")
    ran = doctor(model={"source": str(model)})
    assert (found(ran), ran.code) == (["resume-without-optimizer"], 0)


@pytest.mark.parametrize(
    ("check", "prefix"),
    [
        ("optimizer-left-out", "optim.state.base_model.model.model.layers.1."),
        ("data-state-left-out", "rng."),
        ("resume-without-optimizer", "optim."),
    ],
)
def test_a_checkpoint_that_lacks_state_is_found_by_name(
    store: CommandLine, custody: Custody, trained_store: Path, check: str, prefix: str
) -> None:
    lacking = without_tensors(newest_manifest(custody, RUN), prefix)
    forge(custody, RUN, attempt=2, step=1, **lacking)
    ran = store("doctor", str(trained_store / "tiny.yaml"), "--run", str(RUN), "--json")
    assert (found(ran), ran.code) == ([check], 0)


def test_checkpoints_that_nobody_verifies_are_found(
    store: CommandLine, custody: Custody, trained_store: Path
) -> None:
    for step in (5, 6, 7):
        forge(custody, RUN, attempt=1, step=step)
    ran = store("doctor", str(trained_store / "tiny.yaml"), "--run", str(RUN), "--json")
    assert (found(ran), ran.code) == (["verification-off"], 0)


# --- how it is said -------------------------------------------------------------------


def test_what_stops_is_said_with_its_mend_and_may_be_ignored(
    command_line: CommandLine, doctor: Doctor, tmp_path: Path
) -> None:
    changes = {"data": {"max_tokens": 300}}
    assert doctor(**changes).code == 64
    shown = command_line("doctor", str(tmp_path / "wrong.yaml"))
    assert shown.code == 64
    assert "1 finding(s) that stop a launch" in shown.out
    for said in ("stop: max-length", "made for 256 positions", "set data.max_tokens to 256"):
        assert said in shown.out
    assert "preflight: 1 finding(s) stop the launch" in shown.err
    ignored = doctor(**changes, preflight={"ignore": ["max-length"]})
    assert (found(ignored), ignored.code) == (["max-length"], 0)
    assert "ignored: max-length" in command_line("doctor", str(tmp_path / "wrong.yaml")).out


def test_a_failure_is_one_json_document(doctor: Doctor) -> None:
    document = doctor(data={"max_tokens": 300}).document
    assert (document["error"], document["exit_code"]) == ("PreflightError", 64)
    assert [item["check"] for item in document["findings"]] == ["max-length"]


def test_the_rules_are_listed_with_the_numbers_in_force(
    command_line: CommandLine, doctor: Doctor
) -> None:
    plain = command_line("doctor", "--rules")
    assert plain.code == 0
    for name in (*RULES, *NUMBERS):
        assert f"\n{name} " in plain.out, name
    document = doctor("--rules", preflight={"numbers": {"mfu": 0.25}}).document
    assert {item["name"] for item in document["checks"]} == set(RULES)
    (mfu,) = [item for item in document["numbers"] if item["name"] == "mfu"]
    assert (mfu["value"], mfu["default"]) == (0.25, 0.4)


def test_a_configuration_must_be_named(command_line: CommandLine) -> None:
    ran = command_line("doctor")
    assert ran.code == 10
    assert "strongroom doctor CONFIG" in ran.err


def test_a_probe_measures_over_the_ranks_of_the_run(doctor: Doctor) -> None:
    ran = doctor("--probe", train={"world_size": 1})
    assert ran.code == 0, ran.err
    assert ran.document["facts"]["allreduce_ms"] > 0.0


def test_ranks_that_do_not_fit_here_are_not_probed(doctor: Doctor) -> None:
    ran = doctor("--probe", train={"world_size": 4096, "batch_rows": 4096})
    assert ran.code == 10
    assert "train.world_size 4096" in ran.document["message"]
