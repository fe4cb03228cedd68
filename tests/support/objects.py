"""Objects of several parts: their bytes, and how they are written."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from strongroom.names import Digest
from strongroom.storage.base import Part, Storage

PART = 5 << 20
SIX_PARTS = b"".join(hashlib.sha256(bytes([n])).digest() * (PART // 32) for n in range(5)) + b"end"


def keys(storage: Storage, folder: str = "") -> list[str]:
    return [info.key for info in storage.walk(folder)]


def parts_of(data: bytes) -> list[Part]:
    """Cut into parts, each in two buffers and with its digest, as shards are."""
    parts = []
    for number, offset in enumerate(range(0, len(data), PART), 1):
        part = memoryview(data)[offset : offset + PART]
        parts.append(
            Part(
                number=number,
                offset=offset,
                buffers=(part[:1000], part[1000:]),
                sha256=Digest.of(part),
            )
        )
    return parts


def put_parts(
    storage: Storage,
    key: str,
    data: bytes = SIX_PARTS,
    *,
    before: Callable[[Part], object] = lambda _: None,
) -> None:
    """Write an object by four threads; `before` is called before each part is sent."""

    def put(part: Part) -> None:
        before(part)
        writer.put(part)

    with storage.create_parts(key, num_bytes=len(data)) as writer, ThreadPoolExecutor(4) as pool:
        list(pool.map(put, parts_of(data)))


def put_stream(storage: Storage, key: str, data: bytes = SIX_PARTS) -> None:
    with storage.create_stream(key) as writer:
        writer.write(data)
