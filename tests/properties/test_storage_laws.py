"""Laws of storage: every implementation is a map from keys to bytes, and a crash is all or nothing.

Key parts are drawn so that keys collide and neighbours differ by one sign.
"""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from strongroom.errors import ConflictError, InputError, ObjectMissingError
from strongroom.storage.base import Storage, check_key
from strongroom.storage.local import LocalStorage
from strongroom.storage.memory import Faults, MemoryStorage, SimulatedCrash
from strongroom.storage.s3_settings import S3Settings
from strongroom.storage.trees import fetch_tree, put_tree

parts = st.sampled_from(["a", "ab", "a.b", "a-b", "step-1", "step-10", ".metadata"])
key_texts = st.lists(parts, min_size=1, max_size=3).map("/".join)
blobs = st.binary(max_size=40)


def is_new(objects: dict[str, bytes], key: str) -> bool:
    """Whether `key` is neither an object, nor a folder, nor below an object."""
    return not any(
        other == key or other.startswith(f"{key}/") or key.startswith(f"{other}/")
        for other in objects
    )


def listed(objects: dict[str, bytes], folder: str) -> list[tuple[str, int]]:
    return [
        (key, len(data))
        for key, data in sorted(objects.items())
        if not folder or key.startswith(f"{folder}/")
    ]


class StorageIsAMap(RuleBasedStateMachine):
    """Local and memory storage do what a dict does, call by call."""

    keys = Bundle("keys")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.storages: list[Storage] = [LocalStorage(Path(self.folder.name)), MemoryStorage()]
        self.objects: dict[str, bytes] = {}

    def teardown(self) -> None:
        self.folder.cleanup()

    @initialize(target=keys)
    def one_key(self) -> str:
        return "a"

    @rule(target=keys, key=key_texts)
    def another_key(self, key: str) -> str:
        return key

    @rule(key=keys, data=blobs)
    def create(self, key: str, data: bytes) -> None:
        for storage in self.storages:
            if is_new(self.objects, key):
                storage.create(key, data)
            else:
                with pytest.raises(ConflictError):
                    storage.create(key, data)
        if is_new(self.objects, key):
            self.objects[key] = data

    @rule(key=keys, blocks=st.lists(blobs, max_size=3))
    def create_stream(self, key: str, blocks: list[bytes]) -> None:
        for storage in self.storages:
            try:
                with storage.create_stream(key) as writer:
                    for block in blocks:
                        writer.write(block)
            except ConflictError:
                assert not is_new(self.objects, key)
            else:
                assert is_new(self.objects, key)
        if is_new(self.objects, key):
            self.objects[key] = b"".join(blocks)

    @rule(key=keys, data=blobs)
    def replace(self, key: str, data: bytes) -> None:
        if key in self.objects or is_new(self.objects, key):
            for storage in self.storages:
                storage.replace(key, data)
            self.objects[key] = data

    @rule(key=keys)
    def delete(self, key: str) -> None:
        for storage in self.storages:
            storage.delete(key)
        self.objects.pop(key, None)

    @rule(key=keys, offset=st.integers(0, 20), num_bytes=st.integers(0, 20))
    def read(self, key: str, offset: int, num_bytes: int) -> None:
        data = self.objects.get(key)
        for storage in self.storages:
            if data is None:
                with pytest.raises(ObjectMissingError):
                    storage.read(key)
            else:
                assert storage.read(key) == data
                if offset + num_bytes <= len(data):
                    span = storage.read(key, offset=offset, num_bytes=num_bytes)
                    assert span == data[offset : offset + num_bytes]

    @rule(folder=st.one_of(st.just(""), key_texts))
    def list_folder(self, folder: str) -> None:
        start = len(folder) + 1 if folder else 0
        rest = [key[start:] for key, _ in listed(self.objects, folder)]
        for storage in self.storages:
            assert storage.folders(folder) == sorted(
                {key.split("/")[0] for key in rest if "/" in key}
            )
            found = [(info.key, info.num_bytes) for info in storage.walk(folder)]
            assert found == listed(self.objects, folder)

    @invariant()
    def all_agree(self) -> None:
        for storage in self.storages:
            found = [(info.key, info.num_bytes) for info in storage.walk("")]
            assert found == listed(self.objects, "")


TestStorageIsAMap = StorageIsAMap.TestCase
TestStorageIsAMap.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)


operations = st.lists(
    st.tuples(st.sampled_from(["create", "stream", "replace", "delete"]), key_texts, blobs),
    max_size=8,
)


def act(storage: Storage, script: list[tuple[str, str, bytes]]) -> None:
    for verb, key, data in script:
        with suppress(ConflictError):
            if verb == "create":
                storage.create(key, data)
            elif verb == "stream":
                with storage.create_stream(key) as writer:
                    writer.write(data[:20])
                    writer.write(data[20:])
            elif verb == "replace":
                storage.replace(key, data)
            else:
                storage.delete(key)


def contents(storage: Storage) -> dict[str, bytes]:
    return {info.key: storage.read(info.key) for info in storage.walk("")}


@given(script=operations, data=st.data())
def test_a_crash_at_any_operation_leaves_what_stood_before_or_after_it(
    script: list[tuple[str, str, bytes]], data: st.DataObject
) -> None:
    clean = MemoryStorage()
    states = [contents(clean)]
    for step in script:
        act(clean, [step])
        states.append(contents(clean))
    if not clean.operations:
        return
    number = data.draw(st.integers(1, len(clean.operations)))
    faults = data.draw(st.sampled_from([Faults(crash_before=number), Faults(crash_after=number)]))
    storage = MemoryStorage(faults=faults)
    with pytest.raises(SimulatedCrash):
        act(storage, script)
    assert contents(storage.reopen()) in states
    assert storage.operations == clean.operations[:number]


@given(
    st.builds(
        S3Settings,
        bucket=st.from_regex(r"[a-z0-9][a-z0-9.-]{2,20}", fullmatch=True),
        prefix=st.one_of(st.just(""), key_texts),
        endpoint_url=st.one_of(
            st.none(),
            st.builds(
                "{}://{}:{}{}".format,
                st.sampled_from(["http", "https"]),
                st.sampled_from(["127.0.0.1", "[::1]", "s3.example.org"]),
                st.integers(1, 65535),
                st.sampled_from(["", "/", "/gate way/ş+&=%"]),
            ),
        ),
        region=st.one_of(st.none(), st.from_regex(r"[a-z]+-[0-9]", fullmatch=True)),
        path_style=st.booleans(),
        checksums=st.sampled_from(["when_supported", "when_required"]),
        part_bytes=st.integers(5 << 20, 5 << 30),
        connect_timeout_s=st.floats(0, 3600, exclude_min=True),
        read_timeout_s=st.floats(0, 3600, exclude_min=True),
    )
)
def test_s3_settings_come_back_from_their_url(settings: S3Settings) -> None:
    assert S3Settings.from_url(settings.to_url()) == settings


@given(st.text(max_size=12))
def test_a_key_can_never_lead_out_of_its_folder(text: str) -> None:
    root = Path("/root/store")
    try:
        check_key(text)
    except InputError:
        return
    path = root / text
    assert path.is_relative_to(root)
    assert ".." not in path.parts
    assert path.relative_to(root).as_posix() == text


trees = st.dictionaries(key_texts, blobs, min_size=1, max_size=5).filter(
    lambda files: (
        "tree.json" not in files
        and all(is_new({k: v for k, v in files.items() if k != key}, key) for key in files)
    )
)


@settings(max_examples=40)
@given(files=trees)
def test_a_tree_comes_back_and_its_digest_depends_on_names_and_bytes_alone(
    files: dict[str, bytes],
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, storage = Path(name), MemoryStorage()
        for number, order in enumerate((sorted(files), sorted(files, reverse=True))):
            for key in order:
                path = folder / str(number) / key
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(files[key])
        digest = put_tree(storage, "datasets", folder / "0")
        assert put_tree(storage, "datasets", folder / "1") == digest
        fetched = fetch_tree(storage, "datasets", digest, folder / "cache")
        assert contents(LocalStorage(fetched)) == files
        (folder / "1" / min(files)).write_bytes(files[min(files)] + b"x")
        assert put_tree(storage, "datasets", folder / "1") != digest
