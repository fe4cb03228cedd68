"""The rows of a run as the sequences of its steps, and each rank's part of them.

A sequence is one row, or a block of rows. Law: which sequences a step has, and their order, follows
from the cursor alone, and not from the number of ranks or the size of micro-batches; every row
comes exactly once per epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from strongroom.data.blocks import EncodedRows, take_blocks
from strongroom.data.config import DataConfig
from strongroom.data.curate import TRAIN_FILE
from strongroom.data.cursor import Cursor, take
from strongroom.data.packing import Batch, collate, collate_blocks, encode_row
from strongroom.data.rows import Row, read_curated
from strongroom.data.streaming import RowsOnDisk
from strongroom.model.build import pad_id_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

T = TypeVar("T")


def rank_part(sequences: Sequence[T], *, rank: int, world_size: int) -> Sequence[T]:
    """Return the part of a global batch that `rank` takes: parts are equal and in order.

    Law: the parts of all ranks, joined in the order of ranks, are `sequences`.
    """
    size = len(sequences) // world_size
    return sequences[rank * size : (rank + 1) * size]


def micro_parts(sequences: Sequence[T], micro_batch_rows: int | None) -> list[Sequence[T]]:
    """Cut a rank's part into micro-batches of at most so many sequences; None: into one.

    Law: joined they are `sequences`. Parts being equal, every rank has as many micro-batches.
    """
    size = micro_batch_rows or len(sequences)
    return [sequences[start : start + size] for start in range(0, len(sequences), size)]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingRows:
    """The rows trained on, by index, and how they become sequences.

    Attributes:
        rows: in memory, or on disk.
        max_tokens: the most tokens of a sequence.
        packing: whether a sequence is one row, or a block of them.
        window_rows: rows are shuffled in windows of so many; None: all at once.
    """

    rows: Sequence[Row]
    tokenizer: PreTrainedTokenizerBase
    max_tokens: int
    packing: Literal["rows", "blocks"] = "rows"
    window_rows: int | None = None
    _encoded: EncodedRows = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        encoded = EncodedRows(
            lambda index: encode_row(self.tokenizer, self.rows[index], self.max_tokens),
            len(self.rows),
        )
        object.__setattr__(self, "_encoded", encoded)

    @classmethod
    def open(
        cls, folder_or_file: Path, *, tokenizer: PreTrainedTokenizerBase, config: DataConfig
    ) -> TrainingRows:
        """Return the rows of a curated dataset; from disk where they are shuffled in windows.

        Raises:
            DataError: the file is missing or unreadable, or a row is broken; of rows that stay on
                disk, that is found out when the row is needed.
        """
        path = folder_or_file / TRAIN_FILE if folder_or_file.is_dir() else folder_or_file
        window_rows = config.shuffle_window_rows
        return cls(
            rows=read_curated(path) if window_rows is None else RowsOnDisk(path),
            tokenizer=tokenizer,
            max_tokens=config.max_tokens,
            packing=config.packing,
            window_rows=window_rows,
        )

    def __len__(self) -> int:
        return len(self.rows)

    def first_cursor(self, seed: int) -> Cursor:
        """Return where a run begins."""
        return Cursor(seed=seed, num_rows=len(self), window_rows=self.window_rows)

    def take(self, cursor: Cursor, count: int) -> tuple[list[tuple[int, ...]], Cursor]:
        """Take the next `count` sequences, each as the indices of the rows it holds.

        Returns:
            The sequences, in order, and the cursor after them.

        Raises:
            DataError: as `batch`.
        """
        self._encoded.let_go()
        if self.packing == "blocks":
            return take_blocks(cursor, count, self._encoded.length_of, self.max_tokens)
        indices, cursor = take(cursor, count)
        return [(index,) for index in indices], cursor

    def batch(self, sequences: Sequence[tuple[int, ...]]) -> Batch:
        """Return sequences side by side, padded to the longest of them.

        Raises:
            DataError: a row cannot be rendered, or is too long; the curated set has none such. Or
                a row on disk is broken.
        """
        pad_id = pad_id_of(self.tokenizer)
        blocks = [[self._encoded[index] for index in sequence] for sequence in sequences]
        if self.packing == "blocks":
            return collate_blocks(blocks, pad_id)
        return collate([row for block in blocks for row in block], pad_id)
