"""What training asks of a way to spread a model and its optimizer over ranks.

Law: gradients are the mean over ranks of what each rank's loss gives, summed over the micro-batches
of a step, and every strategy names the same state the same way; so that a run may go on under
another strategy, or on another number of ranks, from the same checkpoint.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, nn

from strongroom.canonical import JsonObject

ADAM_MOMENTS = ("exp_avg", "exp_avg_sq")


class Strategy(Protocol):
    """One model, spread over the ranks, and the AdamW of what is trained in it.

    Every call but `state_tensors` and `param_groups` is collective.
    """

    @property
    def model(self) -> nn.Module:
        """What a batch is given to; its parameters keep their names."""
        ...

    def backward(self, loss: Tensor, *, is_last: bool) -> None:
        """Add the gradients of a micro-batch's loss; `is_last`: no other follows in this step."""
        ...

    def gradient_norm(self) -> float:
        """Return the global norm of the gradients, before they are scaled down to the maximum."""
        ...

    def step(self, learning_rate: float) -> None:
        """Scale the gradients down to the maximal norm, update what is trained and drop them."""
        ...

    def drop_gradients(self) -> None:
        """Forget the gradients; nothing else changes."""
        ...

    def state_tensors(self) -> dict[str, Tensor]:
        """Return what is trained and the optimizer's state of it, as a checkpoint names them.

        `model.<name>` and `optim.state.<name>.{step,exp_avg,exp_avg_sq}`: plain tensors, DTensors
        or flat ranges of live memory. A save must copy them before the next `step`; whoever writes
        into them calls `loaded` after that. Asking changes nothing (pytorch/pytorch#164929).
        """
        ...

    def loaded(self) -> None:
        """Take over what was written into the tensors that `state_tensors` returned last."""
        ...

    def param_groups(self) -> list[JsonObject]:
        """Return the optimizer's settings as JSON, each group with the names it applies to."""
        ...

    def close(self) -> None:
        """Give back what is held beside memory."""
        ...
