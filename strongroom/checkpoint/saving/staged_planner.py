"""What `dcp.save` sees of a staged state: its items as they were found when it was copied.

The state itself is not there any more: training has changed it, or it is in another process.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan

from strongroom.checkpoint.saving.staging import Staged


class StagedPlanner(DefaultSavePlanner):
    """Plans the save of what `staged` returns; ranks share the work as in any save of DCP.

    Args:
        staged: waits for the copy. What it raises reaches every rank, because DCP hands on whatever
            a planner raises here.
    """

    def __init__(self, staged: Callable[[], Staged]) -> None:
        super().__init__()
        self._wait = staged
        self._staged: Staged | None = None
        self._tensors: dict[MetadataIndex, Tensor] = {}

    def set_up_planner(
        self,
        state_dict: dict[str, object],
        storage_meta: StorageMeta | None = None,
        is_coordinator: bool = False,  # noqa: FBT002 -- the signature of the base class
    ) -> None:
        """Wait for the copy; `state_dict` is empty."""
        super().set_up_planner(state_dict, storage_meta, is_coordinator)
        self._staged = self._wait()
        self._tensors = {
            item.index: tensor
            for item, tensor in zip(self._staged.items, self._staged.tensors, strict=True)
        }

    def create_local_plan(self) -> SavePlan:
        """Return the items of this rank's copy."""
        items = [] if self._staged is None else list(self._staged.items)
        # For readers that have no state of their own to fill: the names are flat, and stay so.
        self.mappings = {item.index.fqn: (item.index.fqn,) for item in items}
        self.plan = SavePlan(items, planner_data=self.mappings)
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Tensor:
        """Return the copy of one item."""
        return self._tensors[index]
