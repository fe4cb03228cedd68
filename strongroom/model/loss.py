"""The loss of completions: negative log-likelihood in nats, summed, with its count beside it.

Sum and count travel apart so that ranks can add both and divide once: the mean over all trained
tokens of a global batch does not depend on how its rows were dealt out.

Shape suffixes: B rows, T tokens, V vocabulary.
"""

from __future__ import annotations

import torch
from torch.nn import functional

IGNORED = -100
"""The label of a position that is not trained on."""


def completion_loss_sum(
    logits_BTV: torch.Tensor, labels_BT: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the summed loss (0-dim float32) and the number of tokens it sums over (0-dim int64).

    Args:
        logits_BTV: any floating dtype; position t predicts the token at t + 1.
        labels_BT: int64; the token at each position, or `IGNORED` where it is not trained on.
    """
    targets = labels_BT[:, 1:].flatten()
    nats = functional.cross_entropy(
        logits_BTV[:, :-1].flatten(0, 1).float(), targets, ignore_index=IGNORED, reduction="sum"
    )
    return nats, (targets != IGNORED).sum()
