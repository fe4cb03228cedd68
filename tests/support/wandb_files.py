"""What wandb keeps of a run, read back: the transaction log that `wandb sync` would upload.

A `.wandb` file is a header of seven bytes and a LevelDB log: blocks of 32 KiB that hold records, a
long one in pieces; each piece has a header of checksum, length and type. A record is a protocol
buffer, `wandb.proto.wandb_internal_pb2.Record`.
Source: https://github.com/google/leveldb/blob/main/doc/log_format.md
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BLOCK_BYTES = 32 * 1024
PIECE_HEADER = struct.Struct("<IHB")
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


@dataclass(kw_only=True, slots=True)
class WandbRun:
    """One attempt, as far as it was written.

    Attributes:
        history: a row for each call of `log`, without what wandb adds (`_step` and the like).
        step_metrics: by pattern of names, what they are drawn over.
        exit_code: None where the file does not say how the run ended.
    """

    run_id: str = ""
    project: str = ""
    group: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    step_metrics: dict[str, str] = field(default_factory=dict)
    exit_code: int | None = None
    is_preempting: bool = False


def wandb_files(folder: Path) -> list[Path]:
    """Return the runs' files below `folder`, oldest first."""
    return sorted(folder.glob("wandb/*run-*/*.wandb"))


def read_wandb(file: Path) -> WandbRun:
    """Read one run's file, as far as it was written."""
    from wandb.proto import wandb_internal_pb2

    found = WandbRun()
    for data in _records(file.read_bytes()):
        record: Any = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        match record.WhichOneof("record_type"):
            case "run":
                found.run_id = record.run.run_id
                found.project = record.run.project
                found.group = record.run.run_group
                found.config = _values(record.run.config.update)
            case "history":
                row = _values(record.history.item)
                found.history.append({k: v for k, v in row.items() if not k.startswith("_")})
            case "metric":
                found.step_metrics[record.metric.glob_name] = record.metric.step_metric
            case "exit":
                found.exit_code = record.exit.exit_code
            case "preempting":
                found.is_preempting = True
    return found


def _values(items: Any) -> dict[str, Any]:  # noqa: ANN401 -- repeated messages
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def _records(data: bytes) -> list[bytes]:
    records, pieces, at = [], b"", 7
    while at + PIECE_HEADER.size <= len(data):
        left = BLOCK_BYTES - at % BLOCK_BYTES
        if left < PIECE_HEADER.size:  # the rest of a block is empty
            at += left
            continue
        _, length, kind = PIECE_HEADER.unpack_from(data, at)
        start = at + PIECE_HEADER.size
        if kind == 0 or start + length > len(data):
            break  # as far as it was written
        piece = data[start : start + length]
        pieces = piece if kind in {FULL, FIRST} else pieces + piece
        if kind in {FULL, LAST}:
            records.append(pieces)
        at = start + length
    return records
