"""Choose what is trained: a LoRA adapter on chosen linear layers, or every parameter.

Law: the same base, configuration and seed give the same parameters, bit for bit, in every process.
Source: Hu et al. 2021, LoRA, https://arxiv.org/abs/2106.09685
"""

from __future__ import annotations

import warnings

import torch
from torch import nn

from strongroom.errors import ConfigError
from strongroom.model.config import AdapterConfig


def with_adapter(model: nn.Module, config: AdapterConfig, *, seed: int = 0) -> nn.Module:
    """Return `model` with what `config` trains marked trainable, and all else frozen.

    Adapter parameters keep the dtype of the base. The global random state is left as it was.

    Raises:
        ConfigError: a target names no linear layer of the model.
    """
    if config.method == "full":
        model.requires_grad_(requires_grad=True)
        return model
    if faults := _target_faults(model, config.targets):
        raise ConfigError("adapter", faults)
    from peft import LoraConfig, get_peft_model

    # A fresh LoraConfig each time: PEFT writes into the one it is given.
    lora = LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        lora_dropout=config.dropout,
        target_modules=list(config.targets),
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        torch.manual_seed(seed)
        adapted: nn.Module = get_peft_model(model, lora, autocast_adapter_dtype=False)
    return adapted


def trainable_names(model: nn.Module) -> list[str]:
    """Return the names of the parameters that are trained, in the model's order."""
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def _target_faults(model: nn.Module, targets: tuple[str, ...]) -> list[str]:
    linear = {
        name.rsplit(".", 1)[-1]
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    }
    return [
        f"adapter.targets: {target!r} names no linear layer of the base model; "
        f"it has: {', '.join(sorted(linear))}"
        for target in targets
        if target not in linear
    ]
