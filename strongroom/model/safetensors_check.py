"""What can be wrong with a safetensors file, told apart before anything reads its tensors.

Format: 8 bytes little-endian length of the header, the header (JSON), the tensors' raw bytes, back
to back. The length is compared with the file's size before that many bytes are read, so a wild
header costs nothing. Source: the safetensors format document; vllm-project/vllm 57975.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any, BinaryIO

from strongroom.errors import ModelSourceError

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""

_LENGTH_BYTES = 8
_POINTER = b"version https://git-lfs"
_PICKLES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x04")
_ELEMENT_BITS = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "I64": 64,
    "U64": 64,
    "F64": 64,
    "C64": 64,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
}


def check_safetensors(path: Path) -> tuple[str, ...]:
    """Check that a file is a whole safetensors file; tensors are not read.

    Returns:
        The names of its tensors, in the order of the header.

    Raises:
        ModelSourceError: naming which of the known faults it has.
    """
    try:
        with path.open("rb") as file:
            num_bytes = os.fstat(file.fileno()).st_size
            header, data_bytes = _read_header(path, file, num_bytes)
    except OSError as error:
        raise _fault(path, f"cannot be read: {error.strerror}", "check the path") from error
    tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
    end = _check_layout(path, tensors)
    if end > data_bytes:
        raise _fault(
            path,
            f"is cut short: its header promises {end} bytes of tensors, {data_bytes} are there",
            "copy the file anew",
        )
    if end < data_bytes:
        raise _fault(
            path,
            f"has {data_bytes - end} bytes after its last tensor, which no header describes",
            "copy the file anew",
        )
    return tuple(tensors)


def _read_header(path: Path, file: BinaryIO, num_bytes: int) -> tuple[dict[str, Any], int]:
    if num_bytes == 0:
        raise _fault(path, "is empty", "copy the file anew")
    head = file.read(len(_POINTER))
    if head == _POINTER:
        raise _fault(path, "is a Git LFS pointer, not the file itself", "run: git lfs pull")
    if head.startswith(_PICKLES):
        raise _fault(
            path, "is a pickle under another name", "convert it; pickles are never opened here"
        )
    if num_bytes < _LENGTH_BYTES:
        raise _fault(path, f"is cut short: {num_bytes} bytes in all", "copy the file anew")
    header_bytes = int.from_bytes(head[:_LENGTH_BYTES], "little")
    data_bytes = num_bytes - _LENGTH_BYTES - header_bytes
    if header_bytes > MAX_HEADER_BYTES or data_bytes < 0:
        raise _fault(
            path,
            f"says that its header has {header_bytes} bytes; the file has {num_bytes}, and a "
            f"header at most {MAX_HEADER_BYTES}",
            "copy the file anew, or take it from where it was made",
        )
    file.seek(_LENGTH_BYTES)
    try:
        header = json.loads(file.read(header_bytes))
    except (ValueError, RecursionError) as error:
        raise _fault(path, "has a header that is not JSON", "copy the file anew") from error
    if not isinstance(header, dict):
        raise _fault(path, "has a header that is not a JSON object", "copy the file anew")
    return header, data_bytes


def _check_layout(path: Path, tensors: dict[str, Any]) -> int:
    """Return where the last tensor ends; tensors must lie back to back from 0."""
    spans = []
    for name, entry in tensors.items():
        try:
            bits = _ELEMENT_BITS[entry["dtype"]]
            shape = [_whole(size) for size in entry["shape"]]
            start, end = (_whole(offset) for offset in entry["data_offsets"])
        except (KeyError, TypeError, ValueError) as error:
            raise _fault(
                path, f"describes tensor {name!r} in a way the format does not have", "export anew"
            ) from error
        needed = math.prod(shape) * bits // 8
        if end - start != needed:
            raise _fault(
                path,
                f"gives tensor {name!r} {end - start} bytes; its shape and dtype need {needed}",
                "export the model anew",
            )
        spans.append((start, end, name))
    place = 0
    for start, end, name in sorted(spans):
        if start != place:
            what = "overlaps the one before it" if start < place else "leaves a gap before it"
            raise _fault(path, f"has a tensor {name!r} that {what}", "export the model anew")
        place = end
    return place


def _whole(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(value)
    return value


def _fault(path: Path, problem: str, next_step: str) -> ModelSourceError:
    return ModelSourceError(f"{path}: expected a safetensors file; it {problem}; {next_step}")
