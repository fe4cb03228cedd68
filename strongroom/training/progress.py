"""How far a run has come: the numbers that, with the tensors, are all of its state.

Law: `Progress.of(manifest_state(p, ...)) == p`. Never imports torch.
"""

from __future__ import annotations

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
    """

    step: int
    tokens: int
    samples: int
    cursor: Cursor

    @classmethod
    def start(cls, *, seed: int, num_rows: int) -> Self:
        """Return the progress of a run that has done nothing yet."""
        return cls(step=0, tokens=0, samples=0, cursor=Cursor(seed=seed, num_rows=num_rows))

    @classmethod
    def of(cls, state: JsonObject) -> Self:
        """Read a manifest's state.

        Raises:
            FormatError: counters or cursor are missing or malformed.
        """
        try:
            counters = {
                name: int(state["counters"][name]) for name in ("step", "tokens", "samples")
            }
            return cls(**counters, cursor=Cursor.from_json(state["cursor"]))
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


def manifest_state(
    progress: Progress, config: RunConfig, *, base_model: Digest, param_groups: list[JsonObject]
) -> JsonObject:
    """Return the non-tensor state that a manifest records."""
    return {
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
    }
