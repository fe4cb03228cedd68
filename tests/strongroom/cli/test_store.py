"""Every command on a real store: one run of two checkpoints, trained in this session."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from strongroom.custody.context import Custody
from strongroom.custody.resolve import resolve
from strongroom.errors import ConflictError, InputError, IntegrityError, QuarantinedError
from strongroom.ledger.events import EventKind
from strongroom.ledger.proof import InclusionProof
from strongroom.names import Attempt, CheckpointId, CheckpointName, Digest, Step
from strongroom.storage.store import create_store
from tests.strongroom.cli.test_main import HEAVY, loaded_packages
from tests.support.command_line import CommandLine
from tests.support.trained_store import AUTHOR, RUN

LAST = f"{RUN}/4"
UNREACHABLE = "s3://bucket/p?endpoint_url=http://127.0.0.1:1&region=us-east-1&path_style=true"


def folder_of(custody: Custody, text: str) -> Path:
    root = Path(custody.store.url.removeprefix("file://"))
    return root / resolve(custody, text).folder


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.chmod(path.stat().st_mode | stat.S_IWUSR)
    path.write_bytes(data)


# --- reading --------------------------------------------------------------------------


def test_ls_lists_the_checkpoints(store: CommandLine) -> None:
    ran = store("ls")
    assert ran.code == 0, ran.err
    assert [row.split()[0] for row in ran.out.splitlines()[1:]] == [f"{RUN}/2", LAST]
    of_run = store("ls", str(RUN)).out.splitlines()[1:]  # a moment later: ages may differ
    assert [row.split()[:2] for row in of_run] == [
        row.split()[:2] for row in ran.out.splitlines()[1:]
    ]
    found = store("ls", "--json").document["checkpoints"]
    assert [item["step"] for item in found] == [2, 4]


def test_every_way_of_writing_the_store_is_the_same_store(
    store: CommandLine, custody: Custody, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STRONGROOM_STORE")
    root = custody.store.url.removeprefix("file://")
    for line in (
        ("ls", "--store", root),
        ("ls", "--store", custody.store.url),
        ("--store", root, "ls"),
        (f"--store={root}", "--json", "ls"),
    ):
        assert store(*line).code == 0, line


def test_show_and_lineage_explain_a_checkpoint(store: CommandLine, custody: Custody) -> None:
    ran = store("show", LAST)
    assert ran.code == 0, ran.err
    assert str(resolve(custody, LAST).checkpoint_id) in ran.out
    document = store("show", LAST, "--json").document
    assert document["manifest"]["step"] == 4
    assert document["run"]["author"] == AUTHOR
    tree = store("lineage", LAST)
    assert tree.code == 0, tree.err
    assert "step 4" in next(row for row in tree.out.splitlines() if "<- this one" in row)
    assert store("lineage", LAST, "--json").document["nodes"]


def test_the_ledger_is_checked_read_and_proved(store: CommandLine, custody: Custody) -> None:
    assert store("ledger", "verify").code == 0
    size = store("ledger", "verify", "--json").document["ledger"]["size"]
    events = store("ledger", "tail", "-n", "2", "--json").document["events"]
    assert [event["index"] for event in events] == [size - 2, size - 1]
    ran = store("ledger", "prove", str(size - 1))
    proof = InclusionProof.from_text(ran.out)
    event = proof.check(custody.ledger().origin, custody.keys.keyring())
    assert {"index": size - 1, **event.to_json()} == events[-1]


def test_a_changed_ledger_is_found(store: CommandLine, custody: Custody) -> None:
    entries = Path(custody.store.url.removeprefix("file://")) / "ledger" / "tile" / "entries"
    for path in entries.rglob("*"):
        if path.is_file():
            flip(path, len(path.read_bytes()) // 2)
    ran = store("ledger", "verify", "--json")
    assert ran.code in {22, 23, 24}
    assert ran.document["exit_code"] == ran.code


def test_the_audit_report_is_one_page(store: CommandLine, tmp_path: Path) -> None:
    out = tmp_path / "reports" / "four.html"
    ran = store("audit", "report", LAST, "--out", str(out), "--json")
    assert ran.code == 0, ran.err
    assert ran.document["report"] == str(out)
    assert out.read_text(encoding="utf-8").lower().startswith("<!doctype html>")


def test_the_audit_report_has_a_file_name_of_its_own(
    store: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = store("audit", "report", LAST)
    assert (tmp_path / f"{RUN}-step-4.html").is_file()
    assert str(tmp_path / f"{RUN}-step-4.html") in ran.out


def test_reading_a_store_loads_no_heavy_package(store: CommandLine, custody: Custody) -> None:
    assert store("ls").code == 0
    shared = ("--store", custody.store.url, "--keys", os.environ["STRONGROOM_KEYS"], "--json")
    for command in (["ls"], ["show", LAST], ["lineage", LAST], ["ledger", "verify"]):
        loaded = loaded_packages([*command, *shared], custody.cache)
        assert not loaded & HEAVY, command


# --- verifying, evaluating, deciding --------------------------------------------------


def test_from_verification_to_production(
    store: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = store("promote", LAST, "--stage", "staging", "--json")
    assert refused.code == 40
    assert any("never verified" in reason for reason in refused.document["reasons"])

    ran = store("verify", f"{RUN}/2", LAST)
    assert ran.code == 0, ran.err
    assert ran.out.count("holds (rung 1 bytes") == 2
    evaluated = store("evaluate", LAST, "--json")
    assert evaluated.code == 0, evaluated.err
    assert evaluated.document["passed"] is True

    assert store("promote", LAST, "--stage", "staging").code == 0
    again = store("promote", LAST, "--stage", "staging", "--json")
    assert (again.code, again.document["moved"]) == (0, False)

    for name in ("ada", "grace"):
        assert store("keys", "add", name).code == 0
    first = store("approve", LAST, "--stage", "production", "--as", "ada", "--comment", "good")
    assert "1 of 2" in first.out
    monkeypatch.setenv("STRONGROOM_PERSON", "grace")
    second = store("approve", "@staging", "--stage", "production", "--json")
    assert second.document["allowed"] is True
    assert store("promote", LAST, "--stage", "production").code == 0
    assert store("ls", "--json").document["checkpoints"][1]["stages"] == [
        "candidate",
        "staging",
        "production",
    ]
    rejected = store("reject", "@production", "--stage", "production", "--comment", "no")
    assert rejected.code == 0
    assert 'grace rejected it: "no"' in rejected.out


def test_verify_climbs_no_higher_than_asked(store: CommandLine) -> None:
    (report,) = store("verify", LAST, "--rung", "1", "--json").document["checkpoints"]
    assert [rung["name"] for rung in report["rungs"]] == ["bytes"]


def test_a_changed_byte_in_any_file_ends_with_20_names_the_place_and_quarantines(
    store: CommandLine, custody: Custody
) -> None:
    folder = folder_of(custody, LAST)
    names = sorted(path.name for path in folder.iterdir())
    assert {"manifest.json", "manifest.sha256"} < set(names)
    for name in names:
        whole = (folder / name).read_bytes()
        flip(folder / name, len(whole) // 2)
        ran = store("verify", LAST, "--rung", "1", "--json")
        (folder / name).write_bytes(whole)
        assert ran.code == 20, name
        assert ran.document["error"] == "IntegrityError"
        assert ran.document["expected"] != ran.document["got"]
        # A digest and its document contradict each other: either may be the one named.
        named = Path(ran.document["file"]).name
        assert named == name or {named, name} <= {"manifest.json", "manifest.sha256"}
    assert "quarantined" in store("ls").out


def test_damage_is_told_to_people_with_its_place(store: CommandLine, custody: Custody) -> None:
    tensor = resolve(custody, LAST).manifest.tensors[0]
    flip(folder_of(custody, LAST) / tensor.chunks[0].file, tensor.chunks[0].offset)
    ran = store("verify", LAST, f"{RUN}/2")
    assert ran.code == 20
    assert "quarantined" in ran.out
    assert f"{RUN}/2: holds" in ran.out
    assert f"tensor {tensor.name}, byte offset {tensor.chunks[0].offset}" in ran.err
    assert "Traceback" not in ran.err


def test_a_lost_file_and_a_lost_manifest_are_damage_too(
    store: CommandLine, custody: Custody
) -> None:
    folder = folder_of(custody, LAST)
    next(folder.glob("*.distcp")).unlink()
    assert store("verify", LAST, "--rung", "1").code == 20
    folder = folder_of(custody, f"{RUN}/2")
    (folder / "manifest.json").unlink()
    assert store("verify", f"{RUN}/2", "--rung", "1").code == 20
    assert store("show", f"{RUN}/2").code == 0


def test_a_quarantined_checkpoint_goes_no_further(store: CommandLine, custody: Custody) -> None:
    shard = next(folder_of(custody, LAST).glob("*.distcp"))
    flip(shard, shard.stat().st_size // 2)
    store("verify", LAST, "--rung", "1")
    evaluated = store("evaluate", LAST, "--json")
    assert (evaluated.code, evaluated.document["error"]) == (41, "QuarantinedError")
    assert store("promote", LAST, "--stage", "staging").code == 40


# --- bad input ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        (("show", f"{RUN}/3"), 13, "it has: 2, 4"),
        (("show", "small-tolk/2"), 13, f"near: {RUN}"),
        (("ls", "small-tolk"), 13, f"near: {RUN}"),
        (("ls", "Not A Run"), 10, "expected 1 to 63"),
        (("show", "@production"), 13, "strongroom promote CKPT --stage production"),
        (("lineage", "ffffffffffff"), 13, "no checkpoint id starts with"),
        (("verify", "what is this"), 13, "expected RUN/step"),
        (("verify", LAST, "--rung", "4"), 2, "less than or equal to 3"),
        (("verify",), 2, "Missing argument"),
        (("evaluate", f"{RUN}@verified"), 13, f"strongroom verify {RUN}@latest"),
        (("promote", LAST), 2, "--stage"),
        (("promote", LAST, "--stage", "moon"), 13, "staging, production"),
        (("approve", LAST, "--stage", "staging"), 2, "STRONGROOM_PERSON"),
        (("approve", LAST, "--stage", "staging", "--as", "ada"), 13, "strongroom keys add ada"),
        (("approve", LAST, "--stage", "staging", "--as", "Ada L"), 10, "pseudonym"),
        (("ledger", "prove", "999"), 10, "counted from 0"),
        (("ledger", "prove", "one"), 2, "valid"),
        (("ledger", "tail", "-n", "0"), 2, "greater than or equal to 1"),
        (("audit", "report", LAST, "--out", "/dev/null/x.html"), 10, "cannot be written"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_help(
    store: CommandLine, line: tuple[str, ...], code: int, said: str
) -> None:
    ran = store(*line)
    assert ran.code == code
    assert said in " ".join(ran.err.split())
    assert ran.out == ""
    assert "Traceback" not in ran.err
    failed = store(*line, "--json")
    assert failed.document["exit_code"] == code
    assert failed.document["message"]


def test_an_id_prefix_that_fits_two_lists_both(store: CommandLine, custody: Custody) -> None:
    last = resolve(custody, LAST)
    prefix = last.checkpoint_id.hex[:8]
    custody.record(
        EventKind.CHECKPOINT_COMMITTED,
        checkpoint_id=CheckpointId(Digest(prefix + "0" * 56)),
        checkpoint=CheckpointName(RUN, Attempt(1), Step(5)),
        num_bytes=1,
    )
    ran = store("show", prefix, "--json")
    assert ran.code == 14
    assert LAST in ran.document["message"]
    assert f"{RUN}/5" in ran.document["message"]


@pytest.mark.parametrize(
    ("url", "code", "said"),
    [
        (None, 10, "--store URL"),
        ("/nowhere/at/all", 54, "there is no strongroom store here"),
        ("ftp://host/store", 10, "ftp"),
        ("s3://bucket?frobnicate=1", 10, "frobnicate"),
        (UNREACHABLE, 51, "check that the endpoint runs"),
    ],
)
def test_a_store_that_is_none_is_named(
    command_line: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
    url: str | None,
    code: int,
    said: str,
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    ran = command_line("ls", *(() if url is None else ("--store", url)))
    assert ran.code == code
    assert said in ran.err


def test_keys_of_another_store_are_not_believed(store: CommandLine, tmp_path: Path) -> None:
    ran = store("ls", "--keys", str(tmp_path / "others"))
    assert ran.code == 22
    assert "keyring" in ran.err


def test_an_empty_store_says_so(command_line: CommandLine, tmp_path: Path) -> None:
    url = create_store(str(tmp_path / "empty")).url
    assert "no checkpoints yet" in command_line("ls", "--store", url).out
    assert "no events yet" in command_line("ledger", "tail", "--store", url).out
    ran = command_line("verify", "chat@latest", "--store", url)
    assert (ran.code, "no runs yet" in ran.err) == (13, True)


# --- taking a copy out ----------------------------------------------------------------


def test_export_writes_a_copy_and_the_ledger_says_so(
    store: CommandLine, custody: Custody, tmp_path: Path
) -> None:
    ran = store("export", LAST, "--to", "dcp", "--out", str(tmp_path / "copy"), "--json")
    assert ran.code == 0, ran.err
    committed = resolve(custody, LAST)
    assert ran.document["exported_id"] == str(committed.checkpoint_id)  # it was full
    here = {
        path.name: path.read_bytes() for path in (tmp_path / "copy").iterdir() if path.is_file()
    }
    there = {path.name: path.read_bytes() for path in folder_of(custody, LAST).iterdir()}
    assert here == there
    *_, last = custody.ledger().events()
    assert last.kind == EventKind.CHECKPOINT_EXPORTED
    assert last.facts["exported"] == str(committed.checkpoint_id)


def test_export_refuses_what_it_cannot_do(
    store: CommandLine, custody: Custody, tmp_path: Path
) -> None:
    out = str(tmp_path / "copy")
    assert store("export", LAST, "--to", "zarr", "--out", out).code == InputError.exit_code
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "notes.txt").write_text("mine")
    assert store("export", LAST, "--to", "dcp", "--out", out).code == ConflictError.exit_code
    flip(folder_of(custody, LAST) / "__0_0.distcp", 2000)
    other = str(tmp_path / "other")
    assert store("export", LAST, "--to", "dcp", "--out", other).code == IntegrityError.exit_code
    assert store("verify", LAST).code == IntegrityError.exit_code  # and so quarantined
    ran = store("export", LAST, "--to", "dcp", "--out", str(tmp_path / "third"))
    assert ran.code == QuarantinedError.exit_code
    assert EventKind.CHECKPOINT_EXPORTED not in {event.kind for event in custody.ledger().events()}
