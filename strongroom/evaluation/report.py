"""The evaluation report: what was measured of a checkpoint, against its base, and the verdict.

Pure: metrics in, verdict out. A number that is not finite is never a JSON number: it is stored as
text and makes the verdict a failure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from strongroom.canonical import JsonObject
from strongroom.errors import FormatError, InputError
from strongroom.evaluation.config import EvaluationConfig
from strongroom.evaluation.metrics import Metrics
from strongroom.names import CheckpointId, Digest

_NUMBERS = ("loss", "bits_per_byte", "base_loss", "base_bits_per_byte")


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationReport:
    """Held-out metrics of one checkpoint beside those of its base model on the same rows."""

    checkpoint_id: CheckpointId
    dataset: Digest
    base_model: Digest
    num_rows: int
    num_tokens: int
    loss: float
    bits_per_byte: float
    base_loss: float
    base_bits_per_byte: float

    @classmethod
    def of(
        cls,
        checkpoint_id: CheckpointId,
        metrics: Metrics,
        base: Metrics,
        *,
        dataset: Digest,
        base_model: Digest,
    ) -> EvaluationReport:
        """Put a checkpoint's metrics beside its base's."""
        return cls(
            checkpoint_id=checkpoint_id,
            dataset=dataset,
            base_model=base_model,
            num_rows=metrics.num_rows,
            num_tokens=metrics.num_tokens,
            loss=metrics.loss,
            bits_per_byte=metrics.bits_per_byte,
            base_loss=base.loss,
            base_bits_per_byte=base.bits_per_byte,
        )

    @property
    def finite(self) -> bool:
        """Whether every number is finite."""
        return all(math.isfinite(getattr(self, name)) for name in _NUMBERS)

    def to_json(self) -> JsonObject:
        """Return it as JSON."""
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        return {
            "checkpoint_id": str(self.checkpoint_id),
            "dataset": str(self.dataset),
            "base_model": str(self.base_model),
            "num_rows": self.num_rows,
            "num_tokens": self.num_tokens,
            **{
                name: value if math.isfinite(value) else repr(value)
                for name, value in numbers.items()
            },
        }

    @classmethod
    def from_json(cls, document: JsonObject) -> EvaluationReport:
        """Read it back.

        Raises:
            FormatError: a field is missing or malformed.
        """
        try:
            return cls(
                checkpoint_id=CheckpointId(Digest.parse(document["checkpoint_id"])),
                dataset=Digest.parse(document["dataset"]),
                base_model=Digest.parse(document["base_model"]),
                num_rows=document["num_rows"],
                num_tokens=document["num_tokens"],
                **{name: float(document[name]) for name in _NUMBERS},
            )
        except (KeyError, ValueError, TypeError, InputError) as error:
            raise FormatError(
                f"evaluation report: a field is missing or malformed: {error!r}"
            ) from error


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Whether a report passes, with one reason for each rule that was looked at."""

    passed: bool
    reasons: tuple[str, ...]


def judge(report: EvaluationReport, config: EvaluationConfig) -> Verdict:
    """Hold a report against the run's evaluation rules; every rule is named with what it saw."""
    if not report.finite:
        return Verdict(passed=False, reasons=("failed: a metric is not a finite number",))
    improvement = report.base_loss - report.loss
    increase = report.bits_per_byte - report.base_bits_per_byte
    rules = (
        (
            improvement >= config.min_loss_improvement,
            f"held-out loss {report.loss:.4f} against the base's {report.base_loss:.4f}: improved "
            f"by {improvement:.4f}, at least {config.min_loss_improvement:.4f} asked",
        ),
        (
            increase <= config.max_bits_per_byte_increase,
            f"bits per byte {report.bits_per_byte:.4f} against the base's "
            f"{report.base_bits_per_byte:.4f}: changed by {increase:+.4f}, at most "
            f"{config.max_bits_per_byte_increase:+.4f} allowed",
        ),
    )
    return Verdict(
        passed=all(met for met, _ in rules),
        reasons=tuple(("met: " if met else "failed: ") + text for met, text in rules),
    )
