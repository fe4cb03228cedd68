"""The copy off the device: what a save writes is what the state was when the save was called.

Must: the buffers own every byte, 0-dim CPU tensors such as an optimizer's `step` included, before
`copy` returns (docs/checkpoint-format.md, write order 1; pytorch/pytorch#144657). Buffers are kept
between saves, because a copy into fresh pages takes seven times as long; so a copy may only be
taken when the save of the one before it has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


class StagingBuffers:
    """CPU memory for one copy of a state, kept from save to save."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def copy(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return `state` with every tensor replaced by a contiguous copy in CPU memory.

        DTensors come back as DTensors of the same mesh and placements over the copied local part.
        The result is valid until the next call.
        """
        staged: dict[str, Tensor] = {}
        for name, tensor in state.items():
            if isinstance(tensor, DTensor):
                local = self._copied(name, tensor.to_local())
                # Not from_local: that would move the copy back to the device of the mesh.
                staged[name] = _over(local, tensor)
            else:
                staged[name] = self._copied(name, tensor)
        if any(tensor.is_cuda for tensor in state.values()):
            torch.cuda.synchronize()  # copies to pinned memory return before they are done
        self._buffers = {name: self._buffers[name] for name in state}
        return staged

    def _copied(self, name: str, tensor: Tensor) -> Tensor:
        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            self._buffers[name] = buffer
        return buffer.copy_(tensor.detach(), non_blocking=True)


def _over(local: Tensor, like: DTensor) -> DTensor:
    """Return a DTensor of the mesh, placements and shape of `like` over another local part."""
    make: Any = DTensor
    over: DTensor = make(local, like._spec, requires_grad=False)  # noqa: SLF001 -- no public way
    return over
