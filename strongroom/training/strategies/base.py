"""What training asks of a way to spread a model over ranks."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import nn

from strongroom.canonical import JsonObject
from strongroom.training.config import TrainConfig


class Strategy(Protocol):
    """Shard a model, train it, and show its state as a flat mapping of named tensors."""

    def prepare(self, model: nn.Module) -> nn.Module:
        """Return `model` spread over the ranks.

        Every rank passes the same model, bit for bit; names of parameters stay what they are.
        """
        ...

    def optimizer(self, model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
        """Return the optimizer of the trainable parameters, with all of its state in place."""
        ...

    def clip_gradients(self, model: nn.Module, max_norm: float) -> float:
        """Scale gradients down to a global norm of at most `max_norm`; return the norm before."""
        ...

    def state_tensors(
        self, model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> dict[str, torch.Tensor]:
        """Return what is trained, and the optimizer's state of it, by name.

        The tensors are the live ones: a save must copy them, and writing into them restores them.
        Asking changes nothing: not the weights, the optimizer's state or the gradients.
        """
        ...

    def param_groups(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> list[JsonObject]:
        """Return the optimizer's settings as JSON, each group with the names it applies to."""
        ...
