"""The states that are saved: tensors of the sizes a decoder has, and of one tuned by adapters."""

from __future__ import annotations

import math

import torch
from torch import Tensor

MIB = 2**20
GIB = 2**30

LAYERS = 22
EMBEDDING_SHARE = 0.1
_ITEM_BYTES = 4  # float32


def decoder_state(num_bytes: int, *, seed: int = 0) -> dict[str, Tensor]:
    """Return 200 float32 tensors of together close to `num_bytes` bytes, shaped like a decoder.

    At 1 GiB: one embedding of about 100 MB, matrices of 3 and 11 MB, norms of 3 KB.
    """
    torch.manual_seed(seed)
    layer_items = (1 - EMBEDDING_SHARE) * num_bytes / LAYERS / _ITEM_BYTES
    # Four square matrices and three four times as long: 16 squares a layer.
    hidden = max(8, int(math.sqrt(layer_items / 16)) // 8 * 8)
    shapes: dict[str, tuple[int, ...]] = {"norm.weight": (hidden,)}
    for layer in range(LAYERS):
        above = f"layers.{layer}"
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            shapes[f"{above}.self_attn.{name}.weight"] = (hidden, hidden)
        for name in ("gate_proj", "up_proj"):
            shapes[f"{above}.mlp.{name}.weight"] = (4 * hidden, hidden)
        shapes[f"{above}.mlp.down_proj.weight"] = (hidden, 4 * hidden)
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{above}.{name}.weight"] = (hidden,)
    taken = sum(math.prod(shape) for shape in shapes.values())
    rows = max(1, round((num_bytes / _ITEM_BYTES - taken) / hidden))
    shapes["embed_tokens.weight"] = (rows, hidden)
    return {f"model.{name}": torch.rand(shape) for name, shape in sorted(shapes.items())}


def adapter_state(num_bytes: int, *, trainable_share: float, seed: int = 0) -> dict[str, Tensor]:
    """Return adapters of two matrices a layer, with AdamW's two moments of each.

    They take close to `trainable_share` of `num_bytes` bytes, moments included.
    """
    torch.manual_seed(seed)
    items = trainable_share * num_bytes / _ITEM_BYTES / (LAYERS * 2 * 3)
    rank = max(1, round(math.sqrt(items) / 8))
    hidden = max(1, round(items / rank))
    state = {}
    for layer in range(LAYERS):
        for name, shape in (("lora_A", (rank, hidden)), ("lora_B", (hidden, rank))):
            parameter = f"layers.{layer}.self_attn.q_proj.{name}.weight"
            state[f"model.{parameter}"] = torch.rand(shape)
            state[f"optim.state.{parameter}.exp_avg"] = torch.rand(shape)
            state[f"optim.state.{parameter}.exp_avg_sq"] = torch.rand(shape)
    return state


def num_bytes_of(state: dict[str, Tensor]) -> int:
    """Return the bytes of all tensors together."""
    return sum(tensor.nbytes for tensor in state.values())


def change(state: dict[str, Tensor]) -> None:
    """Change every element, as a step of the optimizer does."""
    for tensor in state.values():
        tensor.add_(1.0)
