"""FSDP2: every decoder layer, and the rest with the root, sharded over all ranks.

Invariant: gradients are the mean over ranks of what each rank's loss gives, reduced in float32.
Works for a whole model and for a PEFT adapter on a frozen one, on gloo without an accelerator.
Source: torch.distributed.fsdp.fully_shard, https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from strongroom.canonical import JsonObject
from strongroom.errors import TrainingError
from strongroom.training.config import TrainConfig

ADAM_MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, kw_only=True, slots=True)
class Fsdp2:
    """Shard over `world_size` CPU ranks of the default process group."""

    world_size: int

    def prepare(self, model: nn.Module) -> nn.Module:
        """Shard `model` in place and return it."""
        mesh = init_device_mesh("cpu", (self.world_size,))
        precision = MixedPrecisionPolicy(reduce_dtype=torch.float32)
        for layer in _decoder_layers(model):
            fully_shard(layer, mesh=mesh, mp_policy=precision)
        # The root too gives its full parameters back after a forward without a backward, as the
        # probe is: kept, they would be stale after the next update.
        fully_shard(model, mesh=mesh, mp_policy=precision, reshard_after_forward=True)
        return model

    def optimizer(self, model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
        """Return fused AdamW (Loshchilov and Hutter 2017, https://arxiv.org/abs/1711.05101)."""
        optimizer = torch.optim.AdamW(
            list(_trainable(model).values()),
            lr=config.learning_rate,
            weight_decay=config.weight_decay,
            fused=True,
        )
        # AdamW makes its state at the first step; made here, as it would make it, it can be
        # restored without a step, and is whole in every save.
        for parameter in _trainable(model).values():
            optimizer.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32),
                **{moment: torch.zeros_like(parameter) for moment in ADAM_MOMENTS},
            }
        return optimizer

    def clip_gradients(self, model: nn.Module, max_norm: float) -> float:
        """Clip by the norm over all ranks' shards."""
        norm = nn.utils.clip_grad_norm_(_trainable(model).values(), max_norm)
        return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)

    def state_tensors(
        self, model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> dict[str, torch.Tensor]:
        """Return `model.<name>` and `optim.state.<name>.{step,exp_avg,exp_avg_sq}`, detached."""
        tensors: dict[str, torch.Tensor] = {}
        for name, parameter in _trainable(model).items():
            tensors[f"model.{name}"] = parameter.detach()
            for key, value in optimizer.state[parameter].items():
                tensors[f"optim.state.{name}.{key}"] = value
        return tensors

    def param_groups(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> list[JsonObject]:
        """Return the settings of AdamW and the names of all trainable parameters."""
        names = list(_trainable(model))
        return [
            {
                "lr": float(group["lr"]),
                "betas": list(group["betas"]),
                "eps": group["eps"],
                "weight_decay": group["weight_decay"],
                "params": names,
            }
            for group in optimizer.param_groups  # one: every parameter is treated alike
        ]


def _trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def _decoder_layers(model: nn.Module) -> list[nn.Module]:
    """Return the modules of the model's longest list: its repeated layers."""
    lists = [list(module) for module in model.modules() if isinstance(module, nn.ModuleList)]
    if not lists:
        raise TrainingError(
            f"{type(model).__name__}: expected a list of decoder layers to shard, got none; "
            "use a decoder-only model of transformers"
        )
    return max(lists, key=len)
