from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from strongroom.errors import ModelSourceError
from strongroom.model.safetensors_check import MAX_HEADER_BYTES, check_safetensors


def whole(path: Path) -> bytes:
    tensors = {
        "weight": torch.arange(12, dtype=torch.float32).reshape(3, 4),
        "half": torch.ones(5, dtype=torch.bfloat16),
        "scalar": torch.tensor(3),
        "none": torch.zeros(0, 4),
    }
    save_file(tensors, path, metadata={"format": "pt"})
    return path.read_bytes()


def described(header: Any, data: bytes = b"") -> bytes:  # noqa: ANN401 -- broken on purpose
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def tensor(dtype: str, shape: Any, start: Any, end: Any) -> dict[str, Any]:  # noqa: ANN401 -- as above
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


POINTER = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:1111111111111111111111111111111111111111111111111111111111111111\nsize 77\n"
)
FAULTS = {
    "is empty": b"",
    "is a Git LFS pointer": POINTER,
    "is a pickle under another name": b"PK\x03\x04" + b"\0" * 60,
    "is cut short: 5 bytes in all": b"\x05\0\0\0\0",
    "says that its header has 1099511627776 bytes; the file has 10": b"\0\0\0\0\0\1\0\0{}",
    "says that its header has 3 bytes; the file has 10": b"\3\0\0\0\0\0\0\0{}",
    "has a header that is not JSON": b"\2\0\0\0\0\0\0\0{]",
    "has a header that is not a JSON object": described([1]),
    "describes tensor 'w' in a way": described({"w": tensor("F99", [1], 0, 4)}),
    "describes tensor 'v' in a way": described({"v": {"dtype": "F32", "shape": [1]}}),
    "describes tensor 'u' in a way": described({"u": tensor("F32", [1], 0, "4")}),
    "describes tensor 't' in a way": described({"t": tensor("F32", [-1], 0, 4)}),
    "describes tensor 's' in a way": described({"s": [1]}),
    "describes tensor 'r' in a way": described({"r": tensor("F32", "1", 0, 4)}),
    "gives tensor 'w' 4 bytes; its shape and dtype need 8": described(
        {"w": tensor("F32", [2], 0, 4)}, b"\0" * 4
    ),
    "has a tensor 'b' that overlaps the one before it": described(
        {"a": tensor("U8", [4], 0, 4), "b": tensor("U8", [4], 2, 6)}, b"\0" * 6
    ),
    "has a tensor 'b' that leaves a gap before it": described(
        {"a": tensor("U8", [4], 0, 4), "b": tensor("U8", [4], 6, 10)}, b"\0" * 10
    ),
}


def test_a_whole_file_gives_the_names_of_its_tensors(tmp_path: Path) -> None:
    whole(tmp_path / "a.safetensors")
    assert set(check_safetensors(tmp_path / "a.safetensors")) == {
        "weight",
        "half",
        "scalar",
        "none",
    }


@pytest.mark.parametrize("problem", FAULTS)
def test_each_fault_is_named(tmp_path: Path, problem: str) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(FAULTS[problem])
    with pytest.raises(ModelSourceError) as caught:
        check_safetensors(path)
    assert f"{path}: expected a safetensors file; it {problem}" in str(caught.value)


def test_a_header_beyond_the_limit_is_refused_though_the_file_is_as_large(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    with path.open("wb") as file:
        file.write((MAX_HEADER_BYTES + 1).to_bytes(8, "little"))
        file.truncate(MAX_HEADER_BYTES + 100)
    with pytest.raises(ModelSourceError, match="says that its header has 100000001 bytes"):
        check_safetensors(path)


def test_no_length_but_the_right_one_passes(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    data = whole(path)
    for num_bytes in range(len(data)):
        path.write_bytes(data[:num_bytes])
        with pytest.raises(ModelSourceError):
            check_safetensors(path)
    for extra in (1, 16):
        path.write_bytes(data + b"\0" * extra)
        with pytest.raises(ModelSourceError, match=f"has {extra} bytes after its last tensor"):
            check_safetensors(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelSourceError, match="cannot be read: No such file"):
        check_safetensors(tmp_path / "a.safetensors")
