"""Spread a model as a placement says."""

from __future__ import annotations

import torch
from torch import nn

from strongroom.training.config import TrainConfig
from strongroom.training.placement import Placement
from strongroom.training.strategies.base import Strategy


def spread(
    model: nn.Module, config: TrainConfig, placement: Placement, device: torch.device
) -> Strategy:
    """Return `model` under the strategy of `placement`, with the optimizer of what is trained.

    Collective. Every rank passes the same model, bit for bit.

    Raises:
        TrainingError: the strategy's package is missing, or an option needs an accelerator.
    """
    if placement.strategy == "zero3":
        # DeepSpeed takes seconds to import: only who uses it pays that.
        from strongroom.training.strategies.zero3 import Zero3

        return Zero3(model.to(device), config, device)
    from strongroom.training.strategies.fsdp2 import Fsdp2

    return Fsdp2(model, config, placement, device)
