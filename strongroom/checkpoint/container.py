"""How one tensor's bytes stand in a shard: the container that `torch.load` reads, and raw bytes.

A container is a header, the tensor's raw little-endian row-major bytes, and a trailer. Header and
trailer depend on shape and dtype alone, so the raw bytes are written as they lie in memory, and
found again by offset without reading the container.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import IO, Any, cast

import torch
from torch import Tensor
from torch.serialization import skip_data

from strongroom.checkpoint.entries import DTYPE_BYTES
from strongroom.errors import FormatError, InputError


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """What stands before and after the `raw_bytes` raw bytes of one tensor."""

    header: bytes
    raw_bytes: int
    trailer: bytes

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole container."""
        return len(self.header) + self.raw_bytes + len(self.trailer)


@dataclass(slots=True)
class _FrameStream:
    """The stream `torch.save` writes into; where it seeks over the data, the trailer begins."""

    header: bytearray = field(default_factory=bytearray)
    trailer: bytearray = field(default_factory=bytearray)
    skipped: int = 0

    def write(self, data: bytes) -> int:
        (self.trailer if self.skipped else self.header).extend(data)
        return len(data)

    def seek(self, offset: int, _whence: int) -> int:
        """Skip forward from where the stream is, which is all that `torch.save` does."""
        self.skipped += offset
        return len(self.header) + self.skipped

    def flush(self) -> None:
        """Nothing is buffered."""


@lru_cache(maxsize=512)
def frame(shape: tuple[int, ...], dtype: torch.dtype) -> Frame:
    """Return the container of a tensor, without its bytes.

    `skip_data` leaves the zip record's CRC-32 at zero; `torch.load` does not check it.
    Source: torch.serialization.skip_data, in torch since 2.6.

    Raises:
        FormatError: this release of torch writes a container this one does not know.
    """
    stream = _FrameStream()
    placeholder = torch.empty(shape, dtype=dtype)  # its pages are never touched
    with skip_data():
        torch.save(placeholder, cast("IO[bytes]", stream))
    num_bytes = math.prod(shape) * dtype.itemsize
    if stream.skipped != num_bytes:
        raise FormatError(
            f"torch {torch.__version__}: expected torch.save to leave out {num_bytes} bytes of a "
            f"{dtype} tensor of shape {shape}, got {stream.skipped}; use a tested release of torch"
        )
    return Frame(header=bytes(stream.header), raw_bytes=num_bytes, trailer=bytes(stream.trailer))


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name a manifest uses: torch's own.

    Raises:
        InputError: a manifest cannot hold tensors of that dtype.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPE_BYTES:
        raise InputError(
            f"dtype {name}: a checkpoint cannot hold it; expected one of {', '.join(DTYPE_BYTES)}"
        )
    return name


def dtype_of(name: str) -> torch.dtype:
    """Return torch's dtype of a name in `DTYPE_BYTES`."""
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def raw_bytes(tensor: Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor in CPU memory, row-major, without a copy.

    Through a view as uint8, since numpy has no bfloat16 and no float8.
    """
    array: Any = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    return memoryview(array)


def from_raw(raw: Tensor, dtype: str, shape: tuple[int, ...]) -> Tensor:
    """Return the uint8 [num_bytes] tensor `raw` as a tensor of `dtype` and `shape`, in place."""
    return raw.view(dtype_of(dtype)).reshape(shape)
