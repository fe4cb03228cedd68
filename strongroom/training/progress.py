"""How far a run has come: the numbers that, with the tensors, are all of its state.

Law: `Progress.of(manifest_state(p, ...)) == p`. Never imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

from strongroom.canonical import JsonObject
from strongroom.data.cursor import Cursor
from strongroom.errors import FormatError
from strongroom.names import Digest
from strongroom.parsing import to_json
from strongroom.training.config import RunConfig
from strongroom.training.schedule import schedule_state


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """Where a run stands between two steps.

    Attributes:
        step: optimizer steps taken.
        tokens: tokens read, padding not counted, over all ranks.
        samples: rows read, over all ranks.
        cursor: the next row.
        passed_over: the steps whose rows were not learnt from, because their loss or gradient was
            not finite.
    """

    step: int
    tokens: int
    samples: int
    cursor: Cursor
    passed_over: tuple[int, ...] = ()

    @classmethod
    def start(cls, cursor: Cursor) -> Self:
        """Return the progress of a run that has done nothing yet."""
        return cls(step=0, tokens=0, samples=0, cursor=cursor)

    @classmethod
    def of(cls, state: JsonObject, *, start: Cursor | None = None) -> Self:
        """Read a manifest's state.

        Args:
            state: a manifest's.
            start: where the run began; a cursor over other data, or in another order, is refused.

        Raises:
            FormatError: counters or cursor are missing, malformed or of other data.
        """
        try:
            counters = {
                name: int(state["counters"][name]) for name in ("step", "tokens", "samples")
            }
            return cls(
                **counters,
                cursor=Cursor.from_json(state["cursor"], start=start),
                passed_over=tuple(int(step) for step in state.get("passed_over", ())),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(
                f"checkpoint state: counters or cursor are missing or malformed: {error!r}"
            ) from error

    def after_step(self, *, tokens: int, samples: int, cursor: Cursor) -> Self:
        """Return the progress after one more step, which read `tokens` and `samples`."""
        return replace(
            self,
            step=self.step + 1,
            tokens=self.tokens + tokens,
            samples=self.samples + samples,
            cursor=cursor,
        )

    @property
    def num_learnt(self) -> int:
        """How many of the steps taken were learnt from."""
        return self.step - sum(step <= self.step for step in self.passed_over)

    def passing_over(self, steps: Iterable[int]) -> Self:
        """Return it with `steps` among those whose rows are not learnt from."""
        return replace(self, passed_over=tuple(sorted({*self.passed_over, *steps})))


def manifest_state(
    progress: Progress, config: RunConfig, *, base_model: Digest, param_groups: list[JsonObject]
) -> JsonObject:
    """Return the non-tensor state that a manifest records."""
    state: JsonObject = {
        "cursor": progress.cursor.to_json(),
        "counters": {
            "step": progress.step,
            "tokens": progress.tokens,
            "samples": progress.samples,
        },
        "scheduler": schedule_state(config.train, progress.step),
        "optimizer": {"name": "adamw", "param_groups": param_groups},
        "model": {
            "base_model": str(base_model),
            "trainable_only": config.adapter.method != "full",
            "adapter": to_json(config.adapter),
        },
        # A save stands between two optimizer steps, so that nothing is accumulated; bfloat16 and
        # float32 need no scale. Both are said, so that their absence is never taken for loss.
        "accumulation": {"micro_batches_done": 0},
        "scaler": {"kind": "none"},
    }
    if progress.passed_over:
        state["passed_over"] = list(progress.passed_over)
    return state
