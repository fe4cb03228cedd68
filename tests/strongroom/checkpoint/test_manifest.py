from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import torch

from strongroom import canonical
from strongroom.checkpoint.manifest import FORMATS, MANIFEST_FILE, Manifest, seal_bytes
from strongroom.errors import FormatError, InputError
from strongroom.storage.memory import MemoryStorage
from tests.support.checkpoints import INPUTS, mixed_state, some_id, write_checkpoint

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def storage() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture(scope="module")
def manifest(storage: MemoryStorage) -> Manifest:
    return write_checkpoint(storage, 10, tensors=mixed_state(), parent=some_id("parent")).manifest


@pytest.fixture(scope="module")
def delta(storage: MemoryStorage, manifest: Manifest) -> Manifest:
    changed = {**mixed_state(), "float32": torch.zeros(7, 3)}
    return write_checkpoint(storage, 20, tensors=changed, base=manifest).manifest


@pytest.fixture(scope="module")
def first_version() -> Manifest:
    folder = GOLDEN / "checkpoint-1" / "runs/golden-1/attempt-0001/step-00000002"
    return Manifest.from_bytes((folder / MANIFEST_FILE).read_bytes(), where="golden")


def schema(version: int) -> dict[str, Any]:
    name = f"manifest-{version}.schema.json"
    text = files("strongroom.checkpoint").joinpath(name).read_text("utf-8")
    document: dict[str, Any] = json.loads(text)
    return document


def read(document: dict[str, Any]) -> Manifest:
    return Manifest.from_bytes(canonical.dumps(document), where="runs/r")


@pytest.mark.parametrize("kind", ["manifest", "delta", "first_version"])
def test_a_manifest_reads_back_as_it_was_written(kind: str, request: pytest.FixtureRequest) -> None:
    manifest: Manifest = request.getfixturevalue(kind)
    again = Manifest.from_bytes(manifest.to_bytes(), where="runs/r")
    assert again == manifest
    assert again.checkpoint_id == manifest.checkpoint_id


def test_the_inputs_survive(manifest: Manifest) -> None:
    assert Manifest.from_bytes(manifest.to_bytes(), where="runs/r").inputs == INPUTS


def test_the_checkpoint_id_is_what_sha256sum_prints(manifest: Manifest) -> None:
    digest = hashlib.sha256(manifest.to_bytes()).hexdigest()
    assert manifest.checkpoint_id.hex == digest
    assert seal_bytes(manifest.checkpoint_id) == f"{digest}  manifest.json\n".encode()


@pytest.mark.parametrize("kind", ["manifest", "delta", "first_version"])
def test_a_manifest_has_the_shape_of_its_schema(kind: str, request: pytest.FixtureRequest) -> None:
    manifest: Manifest = request.getfixturevalue(kind)
    document = json.loads(manifest.to_bytes())
    for version in FORMATS:
        jsonschema.Draft202012Validator.check_schema(schema(version))
        valid = jsonschema.Draft202012Validator(schema(version)).is_valid(document)
        assert valid == (version == manifest.version)


def test_a_new_manifest_is_of_the_newest_version(
    manifest: Manifest, delta: Manifest, first_version: Manifest
) -> None:
    assert manifest.version == delta.version == max(FORMATS)
    assert first_version.version == 1


def test_a_span_holds_the_container_and_in_the_first_version_the_raw_bytes_alone(
    manifest: Manifest, first_version: Manifest
) -> None:
    for entry in manifest.tensors:
        (chunk,) = entry.chunks
        assert entry.raw_bytes(chunk) < chunk.data_offset + entry.raw_bytes(chunk)
        assert chunk.data_offset + entry.raw_bytes(chunk) <= chunk.num_bytes
    for entry in first_version.tensors:
        assert all(chunk.num_bytes == entry.raw_bytes(chunk) for chunk in entry.chunks)


def test_a_delta_says_what_it_borrows_and_from_whom(manifest: Manifest, delta: Manifest) -> None:
    assert (manifest.chain, manifest.lenders, manifest.borrowed_share) == (0, {}, 0)
    assert manifest.own_files == manifest.files
    assert delta.chain == 1
    assert delta.lenders == {manifest.name: manifest.checkpoint_id}
    assert [file.name for file in delta.own_files] == [".metadata", "__0_0.distcp"]
    (borrowed,) = set(delta.files) - set(delta.own_files)
    assert borrowed.name == "attempt-0001/step-00000010/__0_0.distcp"
    assert delta.key_of(borrowed.name) == manifest.key_of("__0_0.distcp")
    assert delta.num_bytes == sum(file.num_bytes for file in delta.own_files)
    written = delta.tensor("float32").chunks[0].num_bytes
    whole = sum(chunk.num_bytes for entry in delta.tensors for chunk in entry.chunks)
    assert delta.borrowed_share == pytest.approx(1 - written / whole)


def test_a_tensor_is_found_by_name(manifest: Manifest) -> None:
    assert manifest.tensor("bfloat16").num_bytes == 7 * 3 * 2
    with pytest.raises(InputError, match="has no tensor 'absent'"):
        manifest.tensor("absent")


def first_tensor(document: dict[str, Any]) -> Any:  # noqa: ANN401 -- JSON
    return next(tensor for tensor in document["tensors"] if tensor["name"] == "float32")


BY_SCHEMA_TOO: dict[str, Change] = {
    "no save id": lambda d: d.pop("save_id"),
    "another field": lambda d: d.update(colour="red"),
    "another field of a file": lambda d: d["files"][0].update(colour="red"),
    "another field of a tensor": lambda d: d["tensors"][0].update(colour="red"),
    "another field of a chunk": lambda d: first_tensor(d)["chunks"][0].update(colour="red"),
    "another input": lambda d: d["inputs"].update(colour="sha256:" + "0" * 64),
    "an input too few": lambda d: d["inputs"].pop("dataset"),
    "short save id": lambda d: d.update(save_id="abc"),
    "world of none": lambda d: d.update(world_size=0),
    "world as text": lambda d: d.update(world_size="2"),
    "attempt 0": lambda d: d.update(attempt=0),
    "negative step": lambda d: d.update(step=-1),
    "step as truth": lambda d: d.update(step=True),
    "run key with a slash": lambda d: d.update(run="a/b"),
    "parent as a number": lambda d: d.update(parent=7),
    "parent without prefix": lambda d: d.update(parent="0" * 64),
    "unknown dtype": lambda d: first_tensor(d).update(dtype="complex64"),
    "negative offset": lambda d: first_tensor(d)["chunks"][0].update(offset=-1),
    "file above": lambda d: d["files"][0].update(name="../.metadata"),
    "file in a folder": lambda d: d["files"][0].update(name="a/b"),
    "file called ..": lambda d: d["files"][0].update(name=".."),
    "file called as the manifest": lambda d: d["files"][0].update(name="manifest.json"),
    "state as a list": lambda d: d.update(state=[]),
    "metric as text": lambda d: d["metrics"].update(train_loss="low"),
    "metric as truth": lambda d: d["metrics"].update(train_loss=True),
    "exact_resume as text": lambda d: d.update(exact_resume="yes"),
    "negative chain": lambda d: d.update(chain=-1),
    "no chain": lambda d: d.pop("chain"),
    "no lender": lambda d: d["files"][0].pop("lender"),
    "lender as text": lambda d: borrowed(d).update(lender="the base"),
    "lender of an own file": lambda d: own_shard(d).update(lender="sha256:" + "0" * 64),
    "borrowed without lender": lambda d: borrowed(d).update(lender=None),
    "borrowed of another run": lambda d: rename(
        d, borrowed(d), "../other/attempt-0001/step-00000010/__0_0.distcp"
    ),
    "borrowed from above": lambda d: rename(
        d, borrowed(d), "attempt-0001/step-00000010/../../../other/__0_0.distcp"
    ),
    "borrowed index": lambda d: rename(d, borrowed(d), "attempt-0001/step-00000010/.metadata"),
    "borrowed of no step": lambda d: rename(d, borrowed(d), "attempt-0001/x/__0_0.distcp"),
    "a shard with a digest": lambda d: own_shard(d).update(sha256="sha256:" + "0" * 64),
    "a borrowed shard with a digest": lambda d: borrowed(d).update(sha256="sha256:" + "0" * 64),
    "an index without a digest": lambda d: d["files"][0].update(sha256=None),
    "a shard by another spelling": lambda d: rename(d, own_shard(d), "__00_0.distcp"),
    "no data offset": lambda d: first_tensor(d)["chunks"][0].pop("data_offset"),
    "negative data offset": lambda d: first_tensor(d)["chunks"][0].update(data_offset=-1),
    "a chunk in the index": lambda d: first_tensor(d)["chunks"][0].update(
        file=resized(d["files"][0], 2**20)
    ),
}
BY_US_ALONE: dict[str, Change] = {
    "files out of order": lambda d: d["files"].reverse(),
    "a file twice": lambda d: d["files"].append(d["files"][-1]),
    "tensors out of order": lambda d: d["tensors"].reverse(),
    "a tensor twice": lambda d: d["tensors"].append(d["tensors"][-1]),
    "a chunk in an unknown file": lambda d: first_tensor(d)["chunks"][0].update(file="x"),
    "a chunk beyond its file": lambda d: first_tensor(d)["chunks"][0].update(offset=2**40),
    "a chunk of another size": lambda d: first_tensor(d)["chunks"][0].update(num_bytes=1),
    "a chunk of other dimensions": lambda d: first_tensor(d)["chunks"][0].update(at=[0]),
    "raw bytes beyond the chunk": lambda d: first_tensor(d)["chunks"][0].update(data_offset=2000),
    "a frame out of all proportion": lambda d: first_tensor(d)["chunks"][0].update(
        num_bytes=2**16 + 1 + 7 * 3 * 4, offset=0, file=resized(own_shard(d), 2**20)
    ),
    "borrowed from itself": lambda d: rename(
        d, borrowed(d), "attempt-0001/step-00000020/__0_0.distcp"
    ),
    "borrowed of attempt 0": lambda d: rename(
        d, borrowed(d), "attempt-0000/step-00000010/__0_0.distcp"
    ),
    "a lender without a chain": lambda d: d.update(chain=0),
    "a lender of two ids": lambda d: d["files"].append(
        {
            **borrowed(d),
            "name": "attempt-0001/step-00000010/__1_0.distcp",
            "lender": "sha256:" + "0" * 64,
        }
    ),
}


def own_shard(document: dict[str, Any]) -> Any:  # noqa: ANN401 -- JSON
    return next(file for file in document["files"] if file["name"] == "__0_0.distcp")


def borrowed(document: dict[str, Any]) -> Any:  # noqa: ANN401 -- JSON
    return next(file for file in document["files"] if file["name"].startswith("attempt-"))


def resized(file: dict[str, Any], num_bytes: int) -> str:
    """Let a file be of another size, and return its name."""
    file["num_bytes"] = num_bytes
    return str(file["name"])


def rename(document: dict[str, Any], file: dict[str, Any], name: str) -> None:
    """Give a file another name, for its chunks as well."""
    for tensor in document["tensors"]:
        for chunk in tensor["chunks"]:
            if chunk["file"] == file["name"]:
                chunk["file"] = name
    file["name"] = name
    document["files"].sort(key=lambda file: file["name"])


@pytest.mark.parametrize(
    "change", [*BY_SCHEMA_TOO.values(), *BY_US_ALONE.values()], ids=[*BY_SCHEMA_TOO, *BY_US_ALONE]
)
def test_a_malformed_manifest_is_refused(delta: Manifest, change: Change) -> None:
    document = json.loads(delta.to_bytes())
    change(document)
    with pytest.raises(FormatError, match=r"runs/r/manifest\.json"):
        read(document)


def test_a_full_checkpoint_is_in_no_chain(manifest: Manifest) -> None:
    document = json.loads(manifest.to_bytes())
    document["chain"] = 1
    with pytest.raises(FormatError, match="chain: got 1, with 0 lenders"):
        read(document)


@pytest.mark.parametrize("change", BY_SCHEMA_TOO.values(), ids=BY_SCHEMA_TOO)
def test_the_schema_refuses_it_too(delta: Manifest, change: Change) -> None:
    document = json.loads(delta.to_bytes())
    change(document)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema(2))


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(chain=0),
        lambda d: d["files"][0].update(lender=None),
        lambda d: d["files"][1].update(sha256=None),
        lambda d: d["tensors"][0]["chunks"][0].update(data_offset=0),
    ],
    ids=["chain", "lender", "shard without digest", "data offset"],
)
def test_the_first_version_has_no_field_of_the_second(
    first_version: Manifest, change: Change
) -> None:
    document = json.loads(first_version.to_bytes())
    change(document)
    with pytest.raises(FormatError, match=r"runs/r/manifest\.json"):
        read(document)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema(1))


def test_an_unknown_version_is_refused_with_the_next_step(manifest: Manifest) -> None:
    document = json.loads(manifest.to_bytes())
    document["format"] = "strongroom.manifest/9"
    with pytest.raises(FormatError, match="use a release of strongroom that knows it"):
        read(document)
    assert json.loads(manifest.to_bytes())["format"] == "strongroom.manifest/2"
