"""The probe in the middle of training: its loss, and nothing else, comes of it."""

from __future__ import annotations

import torch
from torch import nn

from strongroom.checkpoint.run_record import Probe
from strongroom.verification.load import probe_loss


def undisturbed_probe_loss(model: nn.Module, probe: Probe) -> float:
    """Return the probe's loss in nats per trained token; training goes on as if never asked.

    Collective where the model is sharded. Gradients and random state are not touched, and the model
    is left in the mode it was in.
    """
    was_training = model.training
    model.eval()
    try:
        with torch.random.fork_rng(devices=[]):
            return probe_loss(model, probe)
    finally:
        model.train(was_training)
