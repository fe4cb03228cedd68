from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from strongroom import canonical
from strongroom.checkpoint.manifest import FORMAT, Manifest, seal_bytes
from strongroom.errors import FormatError, InputError
from strongroom.storage.memory import MemoryStorage
from tests.support.checkpoints import mixed_state, save_checkpoint, some_id

Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    return save_checkpoint(
        MemoryStorage(), tensors=mixed_state(), parent=some_id("parent")
    ).manifest


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    text = files("strongroom.checkpoint").joinpath("manifest.schema.json").read_text("utf-8")
    document: dict[str, Any] = json.loads(text)
    return document


def read(document: dict[str, Any]) -> Manifest:
    return Manifest.from_bytes(canonical.dumps(document), where="runs/r")


def test_a_manifest_reads_back_as_it_was_written(manifest: Manifest) -> None:
    again = Manifest.from_bytes(manifest.to_bytes(), where="runs/r")
    assert again == manifest
    assert again.checkpoint_id == manifest.checkpoint_id


def test_the_checkpoint_id_is_what_sha256sum_prints(manifest: Manifest) -> None:
    digest = hashlib.sha256(manifest.to_bytes()).hexdigest()
    assert manifest.checkpoint_id.hex == digest
    assert seal_bytes(manifest.checkpoint_id) == f"{digest}  manifest.json\n".encode()


def test_a_manifest_has_the_shape_of_its_schema(manifest: Manifest, schema: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads(manifest.to_bytes()), schema)


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
}


@pytest.mark.parametrize(
    "change", [*BY_SCHEMA_TOO.values(), *BY_US_ALONE.values()], ids=[*BY_SCHEMA_TOO, *BY_US_ALONE]
)
def test_a_malformed_manifest_is_refused(manifest: Manifest, change: Change) -> None:
    document = json.loads(manifest.to_bytes())
    change(document)
    with pytest.raises(FormatError, match=r"runs/r/manifest\.json"):
        read(document)


@pytest.mark.parametrize("change", BY_SCHEMA_TOO.values(), ids=BY_SCHEMA_TOO)
def test_the_schema_refuses_it_too(
    manifest: Manifest, schema: dict[str, Any], change: Change
) -> None:
    document = json.loads(manifest.to_bytes())
    change(document)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema)


def test_an_unknown_version_is_refused_with_the_next_step(manifest: Manifest) -> None:
    document = json.loads(manifest.to_bytes())
    document["format"] = "strongroom.manifest/9"
    with pytest.raises(FormatError, match="use a release of strongroom that knows it"):
        read(document)
    assert json.loads(manifest.to_bytes())["format"] == FORMAT
