"""Slurm's own commands, and what they are told and say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from strongroom.errors import (
    ConfigError,
)
from strongroom.training.launching import slurm_commands
from strongroom.training.launching.slurm_commands import (
    CommandFailedError,
    JobState,
    Slurm,
)


def test_without_slurms_commands_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="sbatch, scancel, scontrol, squeue: no such command"):
        Slurm()


def test_slurms_own_variables_are_no_options_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBATCH_PARTITION", "x")
    monkeypatch.setenv("SQUEUE_FORMAT", "x")
    monkeypatch.setenv("SLURM_CONF", "here")
    monkeypatch.setenv("AWS_PROFILE", "x")
    kept = slurm_commands._environment()
    assert {"SLURM_CONF", "AWS_PROFILE"} <= set(kept)
    assert not {"SBATCH_PARTITION", "SQUEUE_FORMAT"} & set(kept)


def test_states_are_read_as_slurm_writes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    said = (
        "JobId=2 JobName=try UserId=root(0) JobState=CANCELLED Reason=None Dependency=(null) "
        "ExitCode=75:0 Command=/x JobState=FAKE NodeList=vm Comment=ExitCode=1:1\n"
    )
    monkeypatch.setattr(slurm_commands, "_run", lambda *_: said)
    monkeypatch.setattr(Slurm, "__init__", lambda _self: None)
    assert Slurm().state("2") == JobState(
        name="CANCELLED", reason=None, exit_code="75:0", nodes="vm"
    )
    assert str(Slurm().state("2")) == "CANCELLED (exit code 75:0, nodes vm)"
    assert str(JobState(name="PENDING")) == "PENDING"


def test_what_is_no_answer_is_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_commands, "_run", lambda *_: "something else")
    monkeypatch.setattr(Slurm, "__init__", lambda _self: None)
    with pytest.raises(CommandFailedError, match="expected JobState, got 'something else'"):
        Slurm().state("2")


def test_a_command_that_never_answers_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in slurm_commands.COMMANDS:
        (tmp_path / name).write_text("#!/bin/bash\nsleep 60\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(slurm_commands, "TIMEOUT_S", 0.1)
    with pytest.raises(CommandFailedError, match=r"squeue did not answer in 0.1 s"):
        Slurm().find("x")
    with pytest.raises(CommandFailedError, match=r"scontrol did not answer"):
        Slurm().state("1")
    Slurm().kill("1")  # only its state tells whether that worked
