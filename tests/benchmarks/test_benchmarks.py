"""Every benchmark runs on a tiny state and prints its document; no figure is looked at.

Trials run in this process, which spares each the start of an interpreter; one test shows that they
run in a process of their own, too.
"""

from __future__ import annotations

import json
import os
import pkgutil
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from benchmarks import rounds, trial
from benchmarks.command import FORMAT
from benchmarks.load import READINGS, UNCHECKED
from benchmarks.places import Place, open_place
from benchmarks.report import QUANTITIES, markdown
from benchmarks.save import save
from benchmarks.systems import SYSTEMS
from strongroom.canonical import JsonObject

ROOT = Path(__file__).resolve().parents[2]
OPTIONAL = {"DCP s3torchconnector"}  # of the dependency group bench, not of dev
PROCESSES = {"strongroom, process", "DCP disk, async process"}  # start interpreters of their own

TINY = ["--mib", "4", "--rounds", "2"]
DISK = ["--place", "disk"]
OURS = ["--system", "strongroom"]


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """What a trial sets for its process does not outlast the test."""
    threads = torch.get_num_threads()
    with patch.dict(os.environ):
        yield
    torch.set_num_threads(threads)


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(work: str, arguments: JsonObject) -> Any:  # noqa: ANN401 -- the numbers of a trial
        return pkgutil.resolve_name(work)(**json.loads(json.dumps(arguments)))

    monkeypatch.setattr(trial, "run_trial", run)
    monkeypatch.setattr(rounds, "run_trial", run)


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    ("name", "options", "systems"),
    [
        ("save", [*TINY, *DISK, *OURS], {"strongroom"}),
        ("load", [*TINY, *DISK, *OURS, "--system", UNCHECKED], {"strongroom", UNCHECKED}),
        ("verify", [*TINY, *DISK], {"rung 1", "rung 1, a quarter of it"}),
        ("delta", [*TINY, *DISK], {"delta save", "full save"}),
        ("training", ["--mib", "12", "--rounds", "1", *OURS], {"no saves", "strongroom"}),
    ],
)
def test_a_benchmark_prints_its_document(
    name: str,
    options: list[str],
    systems: set[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "bench"
    with patch("sys.argv", [name, *options, "--folder", str(folder), "--json"]):
        runpy.run_path(str(ROOT / "benchmarks" / f"{name}.py"), run_name="__main__")
    document = json.loads(capsys.readouterr().out)
    assert (document["format"], document["benchmark"]) == (FORMAT, name)
    assert document["machine"]["cores"] == os.cpu_count()
    num_rounds = document["settings"]["rounds"]
    for table in document["tables"]:
        assert systems <= set(table["rows"])
        for samples in table["rows"].values():
            assert samples
            assert set(samples) <= set(QUANTITIES)
            assert all(len(values) == num_rounds for values in samples.values())
    assert any(target["got"] is not None for target in document["targets"])
    assert all(row in markdown(document) for row in systems)
    assert not list(folder.iterdir())


def test_a_trial_is_a_process_of_its_own(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.delta", "--mib", "4", "--rounds", "1", *DISK]
    done = subprocess.run(
        [*command, "--folder", tmp_path], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert "| delta save " in done.stdout


def test_a_trial_that_fails_says_why() -> None:
    with pytest.raises(RuntimeError, match="KeyError: 'nowhere'"):
        trial.run_trial(
            "benchmarks.save:save",
            {"place": {"url": "/", "server_pids": []}, "kind": "nowhere", "system": "", "mib": 1},
        )


@pytest.mark.parametrize("system", sorted(SYSTEMS["disk"].keys() - PROCESSES))
def test_every_system_saves_to_disk(system: str, tmp_path: Path) -> None:
    with open_place("disk", tmp_path) as opened:
        numbers = save(place=opened.place.to_json(), kind="disk", system=system, mib=2)
        assert 2 < numbers["stored_mib"] < 3
        opened.empty()
        assert opened.place.stored_bytes() == 0


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("system", sorted(READINGS["disk"]))
def test_every_system_loads_from_disk_what_was_saved(system: str, tmp_path: Path) -> None:
    with open_place("disk", tmp_path) as opened:
        write_and_load(opened.place, "disk", system)


@pytest.mark.ceph
@pytest.mark.usefixtures("in_this_process")
def test_every_system_saves_to_the_gateway_and_loads_from_it(tmp_path: Path) -> None:
    with open_place("gateway", tmp_path) as opened:
        for system in SYSTEMS["gateway"].keys() - OPTIONAL - PROCESSES:
            place = opened.place.to_json()
            numbers = save(place=place, kind="gateway", system=system, mib=8)
            assert 8 < numbers["stored_mib"] < 9, system
            opened.empty()
            assert opened.place.stored_bytes() == 0
        for system in READINGS["gateway"].keys() - OPTIONAL:
            write_and_load(opened.place, "gateway", system)
            opened.empty()


def write_and_load(place: Place, kind: str, system: str) -> None:
    """Save 2 MiB and load them; the trial itself compares what it has loaded."""
    what = {"place": place.to_json(), "kind": kind, "mib": 2}
    writer = READINGS[kind][system].written_by
    trial.run_trial("benchmarks.load:write", {**what, "system": writer})
    cold = kind == "disk"
    numbers = trial.run_trial("benchmarks.load:load", {**what, "system": system, "cold": cold})
    assert numbers["seconds"] > 0
