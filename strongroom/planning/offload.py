"""Whether what lives on the host can be moved while an accelerator computes: arithmetic.

Parameters that live on the host cross PCIe for every pass, and their gradients come back.
Efficiency is the time of computing over the time of computing and moving, as in Rajbhandari et al.
2021 (ZeRO-Infinity, https://arxiv.org/abs/2104.07857, section 4).
"""

from __future__ import annotations

from strongroom.planning.model_shape import ModelShape

PCIE_LANE_BYTES_PER_S = {3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""Bytes a second of one lane in one direction, by generation, after its encoding.
Source: PCI Express base specifications (PCI-SIG)."""


def pcie_bytes_per_s(generation: int, lanes: int) -> float | None:
    """Return what a link carries in one direction; None for a generation not known here."""
    lane = PCIE_LANE_BYTES_PER_S.get(generation)
    return None if lane is None else lane * lanes


def offload_bytes(  # noqa: PLR0913 -- what is moved, how often
    shape: ModelShape,
    *,
    shards: int,
    passes: int,
    uploads: int,
    parameter_bytes: int,
    gradient_bytes: int,
) -> float:
    """Return the bytes that one rank moves between host and accelerator in one step.

    Args:
        shape: the model.
        shards: over how many ranks the model is divided.
        passes: forward and backward passes of a step.
        uploads: how often a parameter goes up in one of them: 2 where its layer is given back
            after the forward pass, else 1.
        parameter_bytes: of one parameter that goes up.
        gradient_bytes: of one gradient that comes down.
    """
    up = uploads * shape.held * parameter_bytes
    down = shape.trainable * gradient_bytes
    return passes * (up + down) / shards


def efficiency(compute_s: float, transfer_s: float) -> float:
    """Return the share of time that is spent computing, where nothing overlaps."""
    return compute_s / (compute_s + transfer_s)
