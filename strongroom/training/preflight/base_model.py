"""Read the sizes of a base model from its configuration and the headers of its weights; no torch.

The folder is one that `strongroom.model.sources` has checked: its files are whole.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from strongroom.model.config import AdapterConfig
from strongroom.model.flops import ModelFlops
from strongroom.planning.model_shape import ModelShape
from strongroom.training.preflight.facts import ModelFacts

TRAINING_STATE = (
    "optimizer.pt",
    "optimizer.bin",
    "scheduler.pt",
    "trainer_state.json",
    "rng_state*.pth",
    "random_states_*.pkl",
    "global_step*",
    "optimizer_*",
    "*.distcp",
)
"""Files that a training leaves beside the weights it can be resumed from: those of transformers'
Trainer, Accelerate, DeepSpeed and torch.distributed.checkpoint."""

_SIZES = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
)
_LENGTH_BYTES = 8
_DTYPES = {"F32": "float32", "BF16": "bfloat16"}
"""As safetensors names them, and as `model.dtype` does."""
_LAYER = re.compile(r"\.(\d+)\.")
_MATRIX = 2
_NO_LINEAR = ("embed", "wte", "wpe", "norm")
"""Parts of the names of modules whose weights are matrices, and that are no linear layers."""

Shapes = Mapping[str, tuple[int, ...]]


def read_model(folder: Path, adapter: AdapterConfig) -> ModelFacts:
    """Return what the folder says of its model, trained as `adapter` asks."""
    config = json.loads((folder / "config.json").read_bytes())
    # Models of several kinds of input keep the sizes of their decoder apart.
    text = config.get("text_config", config)
    tensors = _tensors(folder)
    shapes = {name: tuple(entry["shape"]) for name, entry in tensors.items()}
    if text.get("tie_word_embeddings", config.get("tie_word_embeddings")):
        shapes = {name: size for name, size in shapes.items() if name != "lm_head.weight"}
    shape = _shape(text, shapes, adapter)
    return ModelFacts(
        architecture=", ".join(config.get("architectures") or ()) or "unknown",
        shape=shape,
        flops=None
        if shape is None
        else ModelFlops.of(text, trainable=shape.trainable, total=shape.held),
        positions=_count(text.get("max_position_embeddings")),
        # A head that is tied to the embedding is a linear layer without weights of its own.
        linear_names=tuple(
            sorted({"lm_head", *(name.rpartition(".")[2] for name in _linear_modules(shapes))})
        ),
        dtypes=tuple(
            sorted({_DTYPES.get(entry["dtype"], entry["dtype"]) for entry in tensors.values()})
        ),
        left_behind=tuple(
            sorted({path.name for pattern in TRAINING_STATE for path in folder.glob(pattern)})
        ),
    )


def _tensors(folder: Path) -> dict[str, dict[str, Any]]:
    """Return what the headers of the weights say of each tensor: `dtype` and `shape`."""
    tensors: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(_LENGTH_BYTES), "little")))
        tensors |= {name: entry for name, entry in header.items() if name != "__metadata__"}
    return tensors


def _shape(text: Mapping[str, Any], shapes: Shapes, adapter: AdapterConfig) -> ModelShape | None:
    """Return the sizes; None where the configuration is not that of a decoder known here."""
    sizes = {name: size for name in _SIZES if (size := _count(text.get(name))) is not None}
    by_layer: Counter[str] = Counter()
    for name, extent in shapes.items():
        if match := _LAYER.search(name):
            by_layer[match[1]] += math.prod(extent)
    if len(sizes) < len(_SIZES) or not by_layer:
        return None
    heads, hidden = sizes["num_attention_heads"], sizes["hidden_size"]
    parameters = sum(map(math.prod, shapes.values()))
    is_full, targets = adapter.method == "full", _targets(shapes, adapter)
    return ModelShape(
        layers=sizes["num_hidden_layers"],
        hidden=hidden,
        heads=heads,
        kv_heads=_count(text.get("num_key_value_heads")) or heads,
        head_dim=_count(text.get("head_dim")) or hidden // heads,
        intermediate=sizes["intermediate_size"],
        vocabulary=sizes["vocab_size"],
        parameters=parameters,
        layer_parameters=max(by_layer.values()),
        trainable=parameters if is_full else adapter.rank * sum(map(sum, targets)),
        trained_tensors=len(shapes) if is_full else 2 * len(targets),
    )


def _targets(shapes: Shapes, adapter: AdapterConfig) -> list[tuple[int, ...]]:
    """Return the shapes of the weights that LoRA puts two matrices of `rank` beside."""
    return [
        shapes[f"{name}.weight"]
        for name in _linear_modules(shapes)
        if name.rpartition(".")[2] in adapter.targets
    ]


def _linear_modules(shapes: Shapes) -> list[str]:
    """Return the modules whose weight is a matrix, but for embeddings."""
    modules = [
        name.removesuffix(".weight")
        for name, size in shapes.items()
        if name.endswith(".weight") and len(size) == _MATRIX
    ]
    return [
        module
        for module in modules
        if not any(part in module.rpartition(".")[2] for part in _NO_LINEAR)
    ]


def _count(value: object) -> int | None:
    return value if type(value) is int and value > 0 else None
