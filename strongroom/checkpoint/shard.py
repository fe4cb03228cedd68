"""The first line of a shard file: which save of which checkpoint it belongs to.

A shard is `__<rank>_0.distcp`: this line, padded to `ALIGNMENT`, then one container a chunk, each
at a multiple of `ALIGNMENT`. Stock readers of `torch.distributed.checkpoint` go by `.metadata`
straight to the containers and never see the line. This module never imports torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from strongroom import canonical
from strongroom.errors import FormatError, InputError
from strongroom.names import Attempt, CheckpointName, RunKey, Step
from strongroom.storage.base import Storage

FORMAT = "strongroom.shard/1"
ALIGNMENT = 64
"""Bytes; what torch.save aligns a storage to, so that raw bytes are aligned in the file too."""
HEADER_MAX_BYTES = 512
READ_BYTES = 8 * 2**20
"""Bytes asked of the storage at a time, whatever the size of what is read."""
METADATA_FILE = ".metadata"
"""The index of stock readers, a pickle: written and hashed, never opened here."""
SHARD_NAME = re.compile(r"__(\d+)_0\.distcp")


def shard_name(rank: int) -> str:
    """`__<rank>_0.distcp`, the name stock writers use."""
    return f"__{rank}_0.distcp"


def padding(position: int) -> bytes:
    """Return the zero bytes that lead from `position` to the next multiple of `ALIGNMENT`."""
    return bytes(-position % ALIGNMENT)


def read_parts(storage: Storage, key: str, *, offset: int, num_bytes: int) -> Iterator[bytes]:
    """Yield `num_bytes` bytes of an object from `offset`, at most `READ_BYTES` at a time."""
    end = offset + num_bytes
    for start in range(offset, end, READ_BYTES):
        yield storage.read(key, offset=start, num_bytes=min(READ_BYTES, end - start))


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardHeader:
    """What every shard says of itself; `save_id` differs for any two saves."""

    name: CheckpointName
    save_id: str
    rank: int

    def to_bytes(self) -> bytes:
        """Return the line with its padding."""
        line = canonical.dumps(
            {
                "format": FORMAT,
                "run": str(self.name.run),
                "attempt": self.name.attempt.number,
                "step": self.name.step.number,
                "save_id": self.save_id,
                "rank": self.rank,
            }
        )
        line += b"\n"
        return line + padding(len(line))

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str) -> ShardHeader:
        """Read the header from the first bytes of a shard; what follows the line is not looked at.

        Raises:
            FormatError: they do not start with one.
        """
        line, newline, _ = data[:HEADER_MAX_BYTES].partition(b"\n")
        if not newline:
            raise FormatError(
                f"{where}: expected a {FORMAT} line in the first {HEADER_MAX_BYTES} bytes, got none"
            )
        document = canonical.loads(line, what=f"{where}, first line")
        try:
            header = cls(
                name=CheckpointName(
                    RunKey(document["run"]), Attempt(document["attempt"]), Step(document["step"])
                ),
                save_id=document["save_id"],
                rank=document["rank"],
            )
        except (KeyError, TypeError, InputError) as error:
            raise FormatError(f"{where}, first line: a field is missing: {error!r}") from error
        if not data.startswith(header.to_bytes()[: len(line)]):
            raise FormatError(f"{where}, first line: expected format {FORMAT!r}, got {line!r}")
        return header
