"""Held-out metrics of a language model: completion loss and bits per byte.

Loss is the mean negative log-likelihood in nats over trained (completion) tokens. Bits per byte
divides the same sum by the UTF-8 bytes of the completions, so it compares across tokenizers, which
loss per token does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from strongroom.errors import DataError

if TYPE_CHECKING:
    import torch

    from strongroom.data.packing import Encoded


class Scorer(Protocol):
    """What a batch of encoded rows scores under a model."""

    def __call__(self, rows: Sequence[Encoded]) -> tuple[float, int]:
        """Return the summed loss in nats and the number of tokens it sums over."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Metrics:
    """What a model scores on held-out rows.

    Attributes:
        loss: mean nats per completion token; not finite where the model has diverged.
        bits_per_byte: bits per UTF-8 byte of the completions.
    """

    num_rows: int
    num_tokens: int
    num_bytes: int
    loss: float
    bits_per_byte: float


def held_out_metrics(
    rows: Sequence[Encoded], completion_bytes: int, score: Scorer, *, batch_rows: int = 8
) -> Metrics:
    """Score `rows` in batches; `completion_bytes` is the UTF-8 size of their completions.

    Raises:
        DataError: there is nothing to score.
    """
    if not rows or completion_bytes == 0:
        raise DataError("held-out set", ["no completion to score; hold out at least one row"])
    # Rows of like length share a batch: less padding, the same sums.
    ordered = sorted(rows, key=lambda row: len(row.token_ids))
    total_nats = 0.0
    num_tokens = 0
    for start in range(0, len(ordered), batch_rows):
        nats, tokens = score(ordered[start : start + batch_rows])
        total_nats += nats
        num_tokens += tokens
    return Metrics(
        num_rows=len(rows),
        num_tokens=num_tokens,
        num_bytes=completion_bytes,
        loss=total_nats / num_tokens,
        bits_per_byte=total_nats / math.log(2) / completion_bytes,
    )


def model_scorer(
    model: torch.nn.Module,
    pad_id: int,
    loss_sum: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
) -> Scorer:
    """Return a scorer over `model`, which is put into evaluation mode."""
    import torch

    from strongroom.data.packing import collate

    model.eval()

    def score(rows: Sequence[Encoded]) -> tuple[float, int]:
        batch = collate(rows, pad_id)
        with torch.no_grad():
            logits_BTV = model(input_ids=batch.tokens_BT, attention_mask=batch.attention_BT).logits
            nats, count = loss_sum(logits_BTV, batch.labels_BT)
        return float(nats), int(count)

    return score
