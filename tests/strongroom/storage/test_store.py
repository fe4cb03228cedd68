from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from strongroom import canonical
from strongroom.canonical import JsonObject
from strongroom.errors import ConflictError, FormatError, InputError, StoreMissingError
from strongroom.storage.local import LocalStorage
from strongroom.storage.memory import MemoryStorage
from strongroom.storage.s3 import S3Storage
from strongroom.storage.store import (
    create_store,
    make_store,
    open_or_create_store,
    open_storage,
    open_store,
    read_store,
)

spawn = multiprocessing.get_context("spawn")


def test_a_store_is_created_once_and_opened_after(tmp_path: Path) -> None:
    url = str(tmp_path / "store")
    made = create_store(url)
    assert made.url == (tmp_path / "store").as_uri()
    for again in (open_store(url), open_store(made.url), open_or_create_store(url)):
        assert (again.store_id, again.url) == (made.store_id, made.url)
    with pytest.raises(ConflictError, match=r"strongroom\.json"):
        create_store(url)
    document = json.loads((tmp_path / "store/strongroom.json").read_bytes())
    assert document["format"] == "strongroom.store/1"
    assert document["store_id"] == made.store_id
    assert document["created"].endswith("Z")
    assert document["capabilities"] == {"conditional_create": True}
    assert made.capabilities == open_store(url).capabilities == document["capabilities"]


def test_a_store_made_before_capabilities_were_recorded_is_opened() -> None:
    storage = MemoryStorage()
    document = {"format": "strongroom.store/1", "store_id": "a", "created": "2026-11-30T00:00:00Z"}
    storage.create("strongroom.json", canonical.dumps(document))
    store = read_store(storage)
    assert (store.store_id, store.capabilities) == ("a", {})


class Able(MemoryStorage):
    """A storage that finds out what it can do, and notes when."""

    def capabilities(self) -> JsonObject:
        self.operations.append("probe")
        return {"restore": None}


def test_a_storage_that_can_probe_is_probed_once_before_the_store_is_there() -> None:
    storage = Able()
    made = make_store(storage)
    assert made.capabilities == {"conditional_create": True, "restore": None}
    assert storage.operations[0] == "probe"
    assert read_store(storage).capabilities == made.capabilities
    with pytest.raises(ConflictError, match="a store here already"):
        make_store(storage)
    assert storage.operations.count("probe") == 1


def test_opening_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(StoreMissingError, match="check the URL") as caught:
        open_store(str(tmp_path / "store"))
    assert str(tmp_path / "store") in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_something_else_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(StoreMissingError):
        open_store(str(tmp_path))


@pytest.mark.parametrize(
    "data",
    [
        canonical.dumps({"format": "strongroom.store/2", "store_id": "a"}),
        canonical.dumps({"format": "strongroom.store/1"}),
        canonical.dumps({"format": "strongroom.store/1", "store_id": 1}),
        canonical.dumps({"format": "strongroom.store/1", "store_id": "a", "capabilities": []}),
        b'{"format": "strongroom.store/1", "store_id": "spaces are not canonical"}',
        b"",
    ],
)
def test_an_unknown_store_document_is_refused(data: bytes) -> None:
    storage = MemoryStorage()
    storage.create("strongroom.json", data)
    with pytest.raises(FormatError, match=r"strongroom\.json"):
        read_store(storage)


def open_or_create(root: Path, number: int, start: Barrier) -> None:
    start.wait()
    (root / f"id-{number}").write_text(open_or_create_store(str(root / "store")).store_id)


def test_of_many_who_open_or_create_at_once_all_get_one_store(tmp_path: Path) -> None:
    start = spawn.Barrier(4)
    processes = [
        spawn.Process(target=open_or_create, args=(tmp_path, number, start)) for number in range(4)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    ids = {path.read_text() for path in tmp_path.glob("id-*")}
    assert [process.exitcode for process in processes] == [0] * 4
    assert ids == {open_store(str(tmp_path / "store")).store_id}


def test_a_store_can_live_in_memory() -> None:
    storage = MemoryStorage()
    made = make_store(storage)
    assert read_store(storage.reopen()).store_id == made.store_id


def test_the_kind_of_storage_is_told_by_the_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for url, root in (
        ("store", tmp_path / "store"),
        ("./a/../store", tmp_path / "store"),
        ("~/store", tmp_path / "store"),
        ("file:///var/güz%20dönemi", Path("/var/güz dönemi")),
        ("file://localhost/var/store", Path("/var/store")),
    ):
        storage = open_storage(url)
        assert isinstance(storage, LocalStorage)
        assert storage.root == root
    s3 = open_storage("s3://bucket/store?endpoint_url=http://127.0.0.1:1&region=us-east-1")
    assert isinstance(s3, S3Storage)


@pytest.mark.parametrize(
    "url",
    ["", " ", "memory://a", "gs://bucket/a", "file://host/a", "file://", "file:///a?b=c"],
)
def test_what_is_no_url_of_a_storage_is_refused(url: str) -> None:
    with pytest.raises(InputError, match="expected"):
        open_storage(url)


def test_who_uses_no_s3_does_not_load_boto3() -> None:
    code = (
        "import sys, strongroom.storage.store as s, strongroom.storage.s3_settings, "
        "strongroom.storage.trees, strongroom.storage.memory; s.open_storage('/tmp'); "
        "assert not {'boto3', 'botocore', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
