from __future__ import annotations

import torch

from strongroom.checkpoint.staging import StagingBuffers
from tests.support.checkpoints import mixed_state, same


def test_a_copy_owns_every_byte() -> None:
    state = mixed_state()
    before = {name: tensor.clone() for name, tensor in state.items()}
    staged = StagingBuffers().copy(state)
    for tensor in state.values():
        tensor.zero_()
    assert same(staged, before)
    assert all(tensor.is_contiguous() for tensor in staged.values())


def test_buffers_are_kept_and_follow_the_state() -> None:
    buffers = StagingBuffers()
    first = buffers.copy({"a": torch.ones(4), "b": torch.ones(2)})
    places = {name: tensor.data_ptr() for name, tensor in first.items()}
    second = buffers.copy({"a": torch.zeros(4), "b": torch.zeros(3)})
    assert second["a"].data_ptr() == places["a"]
    assert torch.equal(second["a"], torch.zeros(4))
    assert second["b"].shape == (3,)
    assert buffers.copy({"a": torch.ones(4)}).keys() == {"a"}


def test_parameters_are_copied_without_their_history() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    (staged,) = StagingBuffers().copy({"p": parameter}).values()
    assert not staged.requires_grad
