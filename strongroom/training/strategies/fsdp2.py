"""FSDP2: every decoder layer, and the rest with the root, sharded over all ranks.

With replicas (HSDP) the ranks form a 2-D mesh, `dp_replicate` x `dp_shard`: sharded inside a row,
the same in every row. Works for a whole model and for a PEFT adapter on a frozen one, on gloo
without an accelerator. Gradients are reduced in float32.
Source: torch.distributed.fsdp.fully_shard, https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor

from strongroom.canonical import JsonObject
from strongroom.errors import TrainingError
from strongroom.training.config import TrainConfig
from strongroom.training.placement import Placement
from strongroom.training.strategies.base import ADAM_MOMENTS
from strongroom.training.strategies.layers import (
    checkpoint_activations,
    decoder_layers,
    in_float8,
    trainable,
)


class Fsdp2:
    """A model under FSDP2; see `Strategy`.

    Args:
        model: the same on every rank, bit for bit; it is sharded in place, and moved to `device`
            layer by layer, so that a whole one need not fit there.
        config: how it is trained.
        placement: over how many ranks and replicas.
        device: `cpu` or `cuda`.

    Raises:
        TrainingError: it has no layers to shard, or an option needs an accelerator.
    """

    def __init__(
        self, model: nn.Module, config: TrainConfig, placement: Placement, device: torch.device
    ) -> None:
        if config.activation_checkpointing:
            checkpoint_activations(model)
        if config.fsdp2.float8 != "off":
            in_float8(model, is_emulated=config.fsdp2.float8 == "emulated")
        self._model = _sharded(model, config, _mesh(placement, device))
        self._max_grad_norm = config.max_grad_norm
        self._norm: Tensor | None = None
        self._parameters = trainable(self._model)
        self._optimizer = _adamw(list(self._parameters.values()), config)

    @property
    def model(self) -> nn.Module:
        """The sharded model."""
        return self._model

    def backward(self, loss: Tensor, *, is_last: bool) -> None:
        """Add the gradients of a micro-batch; replicas are reduced once a step."""
        root = cast("FSDPModule", self._model)
        root.set_is_last_backward(is_last)
        root.set_requires_all_reduce(is_last)
        loss.backward()  # type: ignore[no-untyped-call]

    def gradient_norm(self) -> float:
        """Return the norm over all ranks' shards."""
        gradients = [p.grad for p in self._parameters.values() if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        self._norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        return float(self._norm)

    def step(self, learning_rate: float) -> None:
        """Clip by the norm found last, update, drop the gradients."""
        if self._norm is None:
            raise AssertionError("the gradients' norm is asked for before each step")
        nn.utils.clip_grads_with_norm_(self._parameters.values(), self._max_grad_norm, self._norm)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        self.drop_gradients()

    def drop_gradients(self) -> None:
        """Forget the gradients."""
        self._norm = None
        self._optimizer.zero_grad()

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the live tensors, detached."""
        tensors: dict[str, Tensor] = {}
        for name, parameter in self._parameters.items():
            tensors[f"model.{name}"] = parameter.detach()
            for key, value in self._optimizer.state[parameter].items():
                tensors[f"optim.state.{name}.{key}"] = value
        return tensors

    def loaded(self) -> None:
        """Nothing to do: the tensors are the parameters themselves."""

    def param_groups(self) -> list[JsonObject]:
        """Return the settings of AdamW and the names of all that is trained."""
        return adamw_groups(self._optimizer, list(self._parameters))

    def close(self) -> None:
        """Nothing is held."""


def adamw_groups(optimizer: torch.optim.Optimizer, names: list[str]) -> list[JsonObject]:
    """Return what a checkpoint records of AdamW's groups: one, every parameter is treated alike."""
    return [
        {
            "lr": float(group["lr"]),
            "betas": list(group["betas"]),
            "eps": group["eps"],
            "weight_decay": group["weight_decay"],
            "params": names,
        }
        for group in optimizer.param_groups
    ]


def _mesh(placement: Placement, device: torch.device) -> DeviceMesh:
    if placement.replicas == 1:
        return init_device_mesh(device.type, (placement.world_size,), mesh_dim_names=("dp_shard",))
    return init_device_mesh(
        device.type,
        (placement.replicas, placement.world_size // placement.replicas),
        mesh_dim_names=("dp_replicate", "dp_shard"),
    )


def _sharded(model: nn.Module, config: TrainConfig, mesh: DeviceMesh) -> nn.Module:
    compute = None if config.compute_dtype is None else getattr(torch, config.compute_dtype)
    precision = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)
    layers = decoder_layers(model)
    for layer in layers:
        if config.fsdp2.compile_layers:
            layer.compile()
        fully_shard(
            layer,
            mesh=mesh,
            mp_policy=precision,
            reshard_after_forward=config.fsdp2.reshard_after_forward,
            offload_policy=_offload(config),
        )
    # The root too gives its full parameters back after a forward without a backward, as the
    # probe is: kept, they would be stale after the next update.
    fully_shard(
        model,
        mesh=mesh,
        mp_policy=precision,
        reshard_after_forward=True,
        offload_policy=_offload(config),
    )
    _prefetch(layers, config.fsdp2.prefetch_layers)
    return model


def _offload(config: TrainConfig) -> OffloadPolicy:
    if not config.fsdp2.cpu_offload:
        return OffloadPolicy()
    if not torch.accelerator.is_available():
        raise TrainingError(
            "train.fsdp2.cpu_offload: expected an accelerator to offload from, got none; leave it "
            "out on this machine: parameters are in the memory of the host already"
        )
    return CPUOffloadPolicy()


def _prefetch(layers: list[nn.Module], ahead: int) -> None:
    """Have each layer gather those after it, in the order in which they are used."""
    if ahead == 0:
        return
    for number, layer in enumerate(layers):
        sharded = cast("FSDPModule", layer)
        following = cast("list[FSDPModule]", layers[number + 1 : number + 1 + ahead])
        preceding = cast("list[FSDPModule]", layers[max(number - ahead, 0) : number][::-1])
        sharded.set_modules_to_forward_prefetch(following)
        sharded.set_modules_to_backward_prefetch(preceding)


def _adamw(parameters: list[nn.Parameter], config: TrainConfig) -> torch.optim.AdamW:
    """Return fused AdamW (Loshchilov and Hutter 2017, https://arxiv.org/abs/1711.05101)."""
    optimizer = torch.optim.AdamW(
        parameters, lr=config.learning_rate, weight_decay=config.weight_decay, fused=True
    )
    # AdamW makes its state at the first step; made here, as it would make it, it can be
    # restored without a step, and is whole in every save.
    for parameter in parameters:
        optimizer.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            **{moment: torch.zeros_like(parameter) for moment in ADAM_MOMENTS},
        }
    return optimizer
