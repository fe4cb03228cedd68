"""A checkpoint as a model again, in a process that never trained: base, adapter, safe reader."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from strongroom.checkpoint.catalogue import Committed
from strongroom.checkpoint.container import dtype_name
from strongroom.checkpoint.manifest import Manifest
from strongroom.checkpoint.reading.reader import CheckpointReader
from strongroom.checkpoint.run_record import Probe, RunRecord
from strongroom.model.adapters import with_adapter
from strongroom.model.build import build_base
from strongroom.model.config import AdapterConfig, ModelConfig
from strongroom.model.loss import IGNORED, completion_loss_sum
from strongroom.parsing import parse
from strongroom.storage.base import Storage
from strongroom.storage.trees import fetch_tree


def load_model(storage: Storage, committed: Committed, record: RunRecord, cache: Path) -> nn.Module:
    """Return the model of a checkpoint, in evaluation mode, on the CPU.

    Args:
        storage: what holds the checkpoint and its base model.
        committed: which checkpoint.
        record: the record of its run, which says how the model is built.
        cache: a folder for a verified copy of the base model.

    Raises:
        InputError: the checkpoint does not hold exactly what the model takes.
        IntegrityError: a chunk, or a file of the base model, is not as it was written.
        ModelSourceError: the base model cannot be built.
    """
    model = fresh_model(storage, record, cache)
    fill_model(model, storage, committed)
    return model


def fresh_model(storage: Storage, record: RunRecord, cache: Path) -> nn.Module:
    """Return the run's model as it is before training, in evaluation mode."""
    where = f"run {record.run}"
    model_config = parse(ModelConfig, record.config["model"], source=where)
    adapter_config = parse(AdapterConfig, record.config["adapter"], source=where)
    folder = fetch_tree(storage, "models", record.inputs.base_model, cache)
    return with_adapter(build_base(folder, model_config.dtype), adapter_config).eval()


def fill_model(model: nn.Module, storage: Storage, committed: Committed) -> None:
    """Load what was trained into `model`: exactly the checkpoint's tensors under `model.`."""
    targets = {f"model.{name}": tensor for name, tensor in trained(model).items()}
    reader = CheckpointReader(storage, committed)
    reader.load_into(targets, prefixes=("model.",), cast=kept_otherwise(reader.manifest, targets))


def trained(model: nn.Module) -> dict[str, Tensor]:
    """Return what is trained in a model, by name; live memory."""
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


def kept_otherwise(manifest: Manifest, targets: Mapping[str, Tensor]) -> list[str]:
    """Return the names of what one of bfloat16 and float32 is held in, and the other stored.

    Of a model in bfloat16, ZeRO-3 keeps and saves float32 copies, and FSDP2 none; what is loaded
    from one into the other is rounded, or is the same.
    """
    either = {"bfloat16", "float32"}
    return [
        entry.name
        for entry in manifest.tensors
        if entry.name in targets and {entry.dtype, dtype_name(targets[entry.name].dtype)} == either
    ]


def probe_loss(model: nn.Module, probe: Probe) -> float:
    """Return the mean loss of the probe's trained tokens, in nats."""
    tokens_1T = torch.tensor([probe.token_ids])
    trained_1T = torch.tensor([probe.trained])
    labels_1T = tokens_1T.masked_fill(~trained_1T, IGNORED)
    with torch.no_grad():
        logits_1TV = model(input_ids=tokens_1T).logits
    nats, count = completion_loss_sum(logits_1TV, labels_1T)
    return float(nats) / int(count)
