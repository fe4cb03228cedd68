"""DeepSpeed's ZeRO stage 3: every parameter sharded by elements over all ranks.

No rank ever gathers the model for a save: each shows its own range of each parameter, and of the
optimizer's state of it, as boxes of the whole tensor. What is saved of a parameter is its float32
master copy, so that a checkpoint says the same as one of FSDP2.
Source: Rajbhandari et al. 2019, ZeRO, https://arxiv.org/abs/1910.02054
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from strongroom.canonical import JsonObject
from strongroom.checkpoint.flat_range import FlatRange
from strongroom.errors import InputError, TrainingError
from strongroom.training.config import TrainConfig
from strongroom.training.strategies.base import ADAM_MOMENTS
from strongroom.training.strategies.fsdp2 import adamw_groups
from strongroom.training.strategies.layers import checkpoint_activations, trainable

logger = logging.getLogger(__name__)


class Zero3:
    """A model under ZeRO-3; see `Strategy`.

    Args:
        model: the same on every rank, bit for bit; it is sharded in place.
        config: how it is trained.
        device: `cpu` or `cuda`.

    Raises:
        TrainingError: DeepSpeed is not installed, or an option needs an accelerator.
    """

    def __init__(self, model: nn.Module, config: TrainConfig, device: torch.device) -> None:
        deepspeed = _deepspeed(device)
        _check_offload(config)
        if config.activation_checkpointing:
            checkpoint_activations(model)
            if config.zero3.partition_activations:
                _keep_activations_in_parts(deepspeed, model)
        self._names = list(trainable(model))
        self._empty = _without_elements(model)
        wanted = trainable(model)
        # Before DeepSpeed rounds them: the master copies begin as what the base model says.
        masters = {name: own_elements(parameter).clone() for name, parameter in wanted.items()}
        self._optimizer = _HeldAdamW(
            list(wanted.values()), lr=0.0, weight_decay=config.weight_decay, fused=True
        )
        with _aside():
            self._engine, _, _, _ = deepspeed.initialize(
                model=model,
                config=engine_config(config),
                optimizer=self._optimizer,
                model_parameters=list(wanted.values()),
            )
        self._zero = self._engine.optimizer
        self._parameters = trainable(self._engine.module)
        self._steps = [
            torch.zeros((), dtype=torch.float32) for _ in self._zero.fp32_partitioned_groups_flat
        ]
        for flat, step in zip(self._zero.fp32_partitioned_groups_flat, self._steps, strict=True):
            self._optimizer.state[flat] = {
                "step": step,
                **{moment: torch.zeros_like(flat) for moment in ADAM_MOMENTS},
            }
        self._local: dict[str, tuple[nn.Parameter, str | None, Tensor]] = {}
        self._counts: dict[str, Tensor] = {}
        self.state_tensors()
        for name, elements in masters.items():
            _, _, local = self._local[f"model.{name}"]
            local[: elements.numel()].copy_(elements)
        self.loaded()

    @property
    def model(self) -> nn.Module:
        """DeepSpeed's engine around the model."""
        engine: nn.Module = self._engine
        return engine

    def backward(self, loss: Tensor, *, is_last: bool) -> None:
        """Add the gradients of a micro-batch, reduced and sharded at once."""
        self._engine.set_gradient_accumulation_boundary(is_last)
        self._engine.backward(loss, scale_wrt_gas=False)

    def gradient_norm(self) -> float:
        """Return the norm over all ranks' ranges."""
        squares = torch.zeros((), dtype=torch.float64)
        for parameter in self._parameters.values():
            gradient = self._zero.get_local_fp32_grad_for_param(parameter)
            squares += _without_padding(gradient, parameter).double().square().sum().cpu()
        dist.all_reduce(squares)
        return float(squares.sqrt())

    def step(self, learning_rate: float) -> None:
        """Clip, update, drop the gradients, and gather again what stays gathered."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._engine.step()

    def drop_gradients(self) -> None:
        """Let DeepSpeed go through its step with an update that does nothing."""
        with self._optimizer.held():
            self._engine.step()

    def state_tensors(self) -> dict[str, Tensor]:
        """Return this rank's ranges: live memory, or copies of what is offloaded."""
        self._local = {}
        # One count serves all, but each is loaded by itself: they may be several.
        self._counts = {name: self._steps[0].clone() for name in self._names}
        tensors: dict[str, Tensor] = {}
        for name in self._names:
            tensors[f"optim.state.{name}.step"] = self._counts[name]
            tensors[f"model.{name}"] = self._range(f"model.{name}", name, None)
            for moment in ADAM_MOMENTS:
                key = f"optim.state.{name}.{moment}"
                tensors[key] = self._range(key, name, moment)
        return tensors

    def loaded(self) -> None:
        """Round the master copies into what is computed with, and gather what stays gathered."""
        counts = {float(self._counts[name]) for name in self._parameters}
        if len(counts) > 1:
            raise InputError(
                f"optim.state: expected one count of updates for all parameters, got "
                f"{sorted(counts)}; ZeRO-3 keeps no other: go on with train.strategy fsdp2"
            )
        for step in self._steps:
            step.fill_(max(counts))
        for parameter, moment, local in self._local.values():
            self._zero.set_local_hp_param(local, parameter, moment)
        # What DeepSpeed itself does after it has loaded or updated the masters (0.19.8, stage3.py).
        for number in range(len(self._steps)):
            self._zero._reassign_or_swap_out_partitioned_parameters(number)  # noqa: SLF001
        if kept := self._zero.persistent_parameters:
            kept[0].partition(kept)
            kept[0].all_gather(kept)

    def param_groups(self) -> list[JsonObject]:
        """Return the settings of AdamW and the names of all that is trained."""
        return adamw_groups(self._optimizer, self._names)

    def close(self) -> None:
        """Take DeepSpeed's hooks off the model."""
        self._engine.destroy()

    def _range(self, key: str, name: str, moment: str | None) -> FlatRange:
        if name in self._empty:
            return FlatRange(torch.zeros(0), start=0, shape=self._empty[name])
        parameter = self._parameters[name]
        local = self._zero.get_local_fp32_param(parameter, moment).detach()
        self._local[key] = parameter, moment, local
        shape = torch.Size(_whole(parameter).ds_shape)
        return FlatRange(
            _without_padding(local, parameter),
            start=_own(shape.numel()).start,
            shape=shape,
        )


class _HeldAdamW(torch.optim.AdamW):
    """AdamW that can be made to do nothing, so that DeepSpeed drops gradients by its own means."""

    _is_held = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Do nothing at a step while the context lasts."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False

    def step(self, closure: Any = None) -> Any:  # noqa: ANN401 -- the signature of the base class
        """Update, unless held."""
        return None if self._is_held else super().step(closure)


def engine_config(config: TrainConfig) -> JsonObject:
    """Return what DeepSpeed is told. Batches are ours: it only ever sees one micro-batch."""
    zero3 = config.zero3
    document: JsonObject = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": config.max_grad_norm,
        "zero_allow_untested_optimizer": True,  # AdamW of torch, on flat tensors
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": config.compute_dtype == "bfloat16"},
        "communication_data_type": "fp32",
        "data_types": {"grad_accum_dtype": "fp32"},
        "zero_optimization": {
            "stage": 3,
            "stage3_param_persistence_threshold": zero3.persist_below_elements,
            "stage3_prefetch_bucket_size": zero3.prefetch_elements,
            "reduce_bucket_size": zero3.reduce_elements,
        },
    }
    if zero3.offload != "none":
        device: JsonObject = {"device": zero3.offload, "pin_memory": True}
        if zero3.nvme_folder is not None:
            device["nvme_path"] = zero3.nvme_folder
        document["zero_optimization"] |= {
            "offload_param": device,
            "offload_optimizer": dict(device),
        }
    return document


def _keep_activations_in_parts(deepspeed: Any, model: nn.Module) -> None:  # noqa: ANN401 -- a module
    """Have DeepSpeed keep what is checkpointed, its own way."""
    deepspeed.checkpointing.configure(mpu_=None, partition_activations=True)
    for module in model.modules():
        if hasattr(module, "_gradient_checkpointing_func"):  # transformers' name for it
            module._gradient_checkpointing_func = deepspeed.checkpointing.checkpoint  # noqa: SLF001


def _without_elements(model: nn.Module) -> dict[str, torch.Size]:
    """Make buffers of parameters that have no elements; return the shapes of the trained ones.

    DeepSpeed (0.19.8) never gathers them again once they are sharded, and then misses them.
    """
    empty = {name: p for name, p in model.named_parameters() if p.numel() == 0}
    for name, parameter in empty.items():
        module, _, own = name.rpartition(".")
        delattr(model.get_submodule(module), own)
        model.get_submodule(module).register_buffer(own, parameter.detach(), persistent=False)
    return {name: parameter.shape for name, parameter in empty.items() if parameter.requires_grad}


def own_elements(tensor: Tensor) -> Tensor:
    """Return this rank's range of a whole tensor, [n]."""
    return tensor.detach().flatten()[_own(tensor.numel())]


def _own(numel: int) -> slice:
    """Return the range of a tensor of `numel` elements that DeepSpeed gives this rank.

    All are of one size; the last ones end early, where DeepSpeed pads them.
    """
    each = -(-numel // dist.get_world_size())
    start = min(dist.get_rank() * each, numel)
    return slice(start, min(start + each, numel))


def _without_padding(local: Tensor, parameter: nn.Parameter) -> Tensor:
    own = _own(_whole(parameter).ds_numel)
    return local[: own.stop - own.start]


def _whole(parameter: nn.Parameter) -> Any:  # noqa: ANN401 -- DeepSpeed adds ds_shape and ds_numel
    return parameter


def _check_offload(config: TrainConfig) -> None:
    if config.zero3.offload != "none" and not torch.accelerator.is_available():
        raise TrainingError(
            f"train.zero3.offload {config.zero3.offload}: expected an accelerator to offload from, "
            "got none; leave it out on this machine: state is in the memory of the host already"
        )


def _deepspeed(device: torch.device) -> Any:  # noqa: ANN401 -- a module without types
    """Return DeepSpeed, joined to the ranks there are.

    Raises:
        TrainingError: it is not installed.
    """
    os.environ["DS_ACCELERATOR"] = device.type
    warnings.filterwarnings("ignore", ".*is deprecated.*", FutureWarning, "torch.distributed")
    try:
        with _aside():
            import deepspeed
    except ImportError as error:
        raise TrainingError(
            "train.strategy zero3: expected the package deepspeed, got none; install it with "
            "strongroom's extra `zero3` (pip install 'strongroom[zero3]')"
        ) from error
    own = logging.getLogger("DeepSpeed")
    own.handlers.clear()  # it writes to standard output, which is for results; ours does not
    own.propagate = True
    own.setLevel(logging.WARNING)
    own.addFilter(lambda record: "untested optimizer" not in record.getMessage())  # as it is told
    # An all-reduce in shared memory that would be compiled at the first start; gloo serves.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(
        dist_backend=dist.get_backend(), auto_mpi_discovery=False, verbose=False
    )
    return deepspeed


@contextmanager
def _aside() -> Iterator[None]:
    """Log what is written to standard error, at DEBUG level, while the context lasts.

    DeepSpeed tries the compiler out for kernels none of which is used here, and the compiler says
    what it lacks.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            said.seek(0)
            logger.debug("starting DeepSpeed: %s", said.read().decode(errors="replace"))
