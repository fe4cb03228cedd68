from __future__ import annotations

import pytest

from strongroom.planning.model_shape import ModelShape
from strongroom.planning.offload import efficiency, offload_bytes, pcie_bytes_per_s

SHAPE = ModelShape(
    layers=2,
    hidden=64,
    heads=4,
    kv_heads=2,
    head_dim=16,
    intermediate=128,
    vocabulary=384,
    parameters=1000,
    layer_parameters=400,
    trainable=100,
    trained_tensors=4,
)


def test_a_link_carries_what_its_lanes_carry_and_an_unknown_one_is_not_known() -> None:
    assert pcie_bytes_per_s(4, 16) == pytest.approx(31.5e9, rel=0.01)
    assert pcie_bytes_per_s(5, 8) == pytest.approx(31.5e9, rel=0.01)
    assert pcie_bytes_per_s(2, 16) is None


def test_parameters_go_up_for_each_use_and_gradients_come_down() -> None:
    moved = offload_bytes(SHAPE, shards=4, passes=3, uploads=2, parameter_bytes=2, gradient_bytes=4)
    # An adapter's hundred parameters lie beside the model's thousand.
    assert moved == 3 * (2 * 1100 * 2 + 100 * 4) / 4
    once = offload_bytes(SHAPE, shards=4, passes=3, uploads=1, parameter_bytes=2, gradient_bytes=4)
    assert moved - once == 3 * 1100 * 2 / 4


def test_efficiency_is_the_share_of_computing() -> None:
    assert efficiency(3.0, 1.0) == 0.75
