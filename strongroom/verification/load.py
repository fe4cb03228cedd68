"""A checkpoint as a model again, in a process that never trained: base, adapter, safe reader."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from strongroom.checkpoint.catalogue import Committed
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
    targets: dict[str, Tensor] = {
        f"model.{name}": parameter.detach()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    CheckpointReader(storage, committed).load_into(targets, prefixes=("model.",))


def probe_loss(model: nn.Module, probe: Probe) -> float:
    """Return the mean loss of the probe's trained tokens, in nats."""
    tokens_1T = torch.tensor([probe.token_ids])
    trained_1T = torch.tensor([probe.trained])
    labels_1T = tokens_1T.masked_fill(~trained_1T, IGNORED)
    with torch.no_grad():
        logits_1TV = model(input_ids=tokens_1T).logits
    nats, count = completion_loss_sum(logits_1TV, labels_1T)
    return float(nats) / int(count)
