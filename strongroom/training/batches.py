"""The rows of a run, encoded as they are needed, and each rank's part of a global batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strongroom.data.packing import Batch, collate, encode_row
from strongroom.data.rows import Row
from strongroom.model.build import pad_id_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def rank_part(indices: Sequence[int], *, rank: int, world_size: int) -> Sequence[int]:
    """Return the part of a global batch that `rank` takes: parts are equal and in order.

    Law: the parts of all ranks, joined in the order of ranks, are `indices`.
    """
    size = len(indices) // world_size
    return indices[rank * size : (rank + 1) * size]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingRows:
    """The rows trained on, by index; the order is the cursor's business."""

    rows: Sequence[Row]
    tokenizer: PreTrainedTokenizerBase
    max_tokens: int

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, indices: Sequence[int]) -> Batch:
        """Return the rows of `indices`, padded to the longest of them.

        Raises:
            DataError: a row cannot be rendered, or is too long; the curated set has none such.
        """
        encoded = [
            encode_row(self.tokenizer, self.rows[index], self.max_tokens) for index in indices
        ]
        return collate(encoded, pad_id_of(self.tokenizer))
