"""Whether a model keeps the rows of a block apart, seen and not believed.

A model that does not trains on rows that read one another, and its loss looks better for it: a
recurrent layer, an attention of its own, or a cache that was left on is enough. So before blocks
are trained on, two of them are shown to the model that differ in their first row alone: what it
says about their second row must not differ.

Shape suffixes: B blocks, T tokens, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import nn

from strongroom.data.packing import Batch, Encoded, collate_blocks
from strongroom.errors import TrainingError
from strongroom.training.batches import TrainingRows

MAX_TOKENS = 64
"""Tokens of each row shown; far fewer than a row that is read by another needs to change."""
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 1e-2}
"""Largest difference, as a share of the largest logit. Most models show none at all; where experts
are chosen by token, a sum may be rounded in another order."""


def check_isolation(model: nn.Module, rows: TrainingRows, device: torch.device) -> None:
    """Refuse a model that lets the rows of a block see one another.

    Collective where the model is sharded. Gradients and random state are not touched, and the model
    is left in the mode it was in.

    Args:
        model: as it is trained, spread over the ranks.
        rows: the first of them is shown.
        device: where the model takes its inputs.

    Raises:
        TrainingError: it does, or it cannot be told, its logits not being finite.
    """
    token_ids = rows.batch([(0,)]).tokens_BT[0, :MAX_TOKENS].tolist()
    batch = _two_blocks(token_ids).to(device)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            logits_BTV = model(**batch.inputs()).logits
    finally:
        model.train(was_training)
    one_TV, other_TV = logits_BTV[:, len(token_ids) :]
    difference = float((one_TV - other_TV).abs().max())
    allowed = TOLERANCE[logits_BTV.dtype] * float(one_TV.abs().max())
    if not difference <= allowed:
        raise TrainingError(
            f"{type(model).__name__}: expected logits of a row that differ by at most {allowed:.3g}"
            f" when another row of its block changes, got {difference:.3g}; this model does not "
            "keep the rows of a block apart: set data.packing to rows"
        )


def _two_blocks(token_ids: list[int]) -> Batch:
    """Return two blocks of two rows that differ in their first row."""
    # One token over and over, and not the same tokens turned round: what is read by a sum would be
    # the same.
    flat = token_ids[:1] * len(token_ids)
    first, other, second = (
        Encoded(token_ids=ids, trained=[True] * len(ids)) for ids in (token_ids, flat, token_ids)
    )
    return collate_blocks([[first, second], [other, second]], pad_id=token_ids[0])
