"""What is done to a model before it is spread, whatever spreads it."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn

from strongroom.errors import TrainingError

FLOAT8_MULTIPLE = 16
"""Both dimensions of a weight that is multiplied in float8 are multiples of it (torchao)."""


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return what is trained, by name; a parameter that is tied has one name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """Return the modules of the model's longest list: its repeated layers.

    Raises:
        TrainingError: there is none.
    """
    lists = [list(module) for module in model.modules() if isinstance(module, nn.ModuleList)]
    if not lists:
        raise TrainingError(
            f"{type(model).__name__}: expected a list of decoder layers to shard, got none; "
            "use a decoder-only model of transformers"
        )
    return max(lists, key=len)


def checkpoint_activations(model: nn.Module) -> None:
    """Have each decoder layer computed again for its backward pass, with the same random numbers.

    Source: Chen et al. 2016, https://arxiv.org/abs/1604.06174
    """
    cast("Any", model).activation_checkpointing_enable(
        activation_checkpointing_kwargs={"use_reentrant": False}
    )


def in_float8(model: nn.Module, *, is_emulated: bool) -> None:
    """Have linear layers of the decoder multiply in float8, scaled anew each time, by torchao.

    Parameters keep their names and dtypes. Layers whose sizes the hardware cannot take stay.

    Raises:
        TrainingError: the hardware has no float8 and `is_emulated` is false, or no layer fits.
    """
    if not is_emulated and not has_float8():
        raise TrainingError(
            "train.fsdp2.float8: expected hardware with float8 (compute capability 8.9 or more), "
            "got none; use `emulated` to try it out, or `off`"
        )
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    fitting = {
        id(module)
        for layer in decoder_layers(model)
        for module in layer.modules()
        if isinstance(module, nn.Linear)
        and module.in_features % FLOAT8_MULTIPLE == 0
        and module.out_features % FLOAT8_MULTIPLE == 0
    }
    if not fitting:
        raise TrainingError(
            f"train.fsdp2.float8: expected linear layers of sizes that are multiples of "
            f"{FLOAT8_MULTIPLE}, got none; use `off`"
        )
    convert_to_float8_training(
        model,
        config=Float8LinearConfig(emulate=is_emulated),
        module_filter_fn=lambda module, _name: id(module) in fitting,
    )


def has_float8() -> bool:
    """Return whether an accelerator of this process multiplies in float8."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 9)
