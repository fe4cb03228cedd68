"""What a promotion stage asks of a checkpoint: a policy is data with a digest.

Law: `StagePolicy.from_json(p.to_json()) == p`. A changed policy has another digest, so approvals
given under the old one no longer count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType

from strongroom import canonical
from strongroom.canonical import JsonObject
from strongroom.errors import FormatError, InputError, UnknownNameError
from strongroom.ledger.facts import CANDIDATE, PRODUCTION, STAGING
from strongroom.names import Digest

__all__ = [
    "CANDIDATE",
    "DEFAULT_POLICIES",
    "PRODUCTION",
    "STAGING",
    "StagePolicy",
    "policy_of",
]

FORMAT = "strongroom.stage-policy/1"
LOWEST_RUNG, HIGHEST_RUNG = 1, 4


@dataclass(frozen=True, kw_only=True, slots=True)
class StagePolicy:
    """What must be true of a checkpoint before a stage may point to it.

    Attributes:
        required_rung: the rung of the verification ladder its newest verification must have
            climbed to; the rungs below it are implied.
        needs_evaluation: whether its newest evaluation must have passed the run's own rules.
        needs_stage: a stage it must be in, or have been in, before; None for no such rule.
        approvals: how many different persons must approve. The run's author is never one of them.
        max_approval_days: the longest an approval may run, from its ledger entry to its expiry.
    """

    stage: str
    required_rung: int
    needs_evaluation: bool
    needs_stage: str | None = None
    approvals: int = 0
    max_approval_days: int = 30

    def __post_init__(self) -> None:
        if not LOWEST_RUNG <= self.required_rung <= HIGHEST_RUNG:
            raise InputError(
                f"policy of stage {self.stage!r}: required_rung must be {LOWEST_RUNG} to "
                f"{HIGHEST_RUNG}, got {self.required_rung}"
            )
        if self.approvals < 0 or self.max_approval_days < 1:
            raise InputError(
                f"policy of stage {self.stage!r}: approvals must be at least 0 and "
                f"max_approval_days at least 1, got {self.approvals} and {self.max_approval_days}"
            )

    @property
    def digest(self) -> Digest:
        """Digest of the canonical JSON: what an approval binds."""
        return canonical.digest(self.to_json())

    def to_json(self) -> JsonObject:
        """Return it as JSON."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, document: JsonObject) -> StagePolicy:
        """Read it back.

        Raises:
            FormatError: of an unknown format version, or a field is missing, unknown or malformed.
        """
        fields = dict(document)
        if (found := fields.pop("format", None)) != FORMAT:
            raise FormatError(f"stage policy: expected format {FORMAT!r}, got {found!r}")
        try:
            policy = cls(**fields)
        except (TypeError, InputError) as error:
            raise FormatError(f"stage policy: a field is missing or malformed: {error}") from error
        for name, kind in _FIELD_KINDS.items():
            value = getattr(policy, name)
            # bool is an int to Python, never to a policy.
            if type(value) not in kind:
                raise FormatError(f"stage policy: field {name!r} is malformed: got {value!r}")
        return policy


_FIELD_KINDS: Mapping[str, tuple[type, ...]] = {
    "stage": (str,),
    "required_rung": (int,),
    "needs_evaluation": (bool,),
    "needs_stage": (str, type(None)),
    "approvals": (int,),
    "max_approval_days": (int,),
}

DEFAULT_POLICIES: Mapping[str, StagePolicy] = MappingProxyType(
    {
        STAGING: StagePolicy(stage=STAGING, required_rung=3, needs_evaluation=True),
        PRODUCTION: StagePolicy(
            stage=PRODUCTION,
            required_rung=3,
            needs_evaluation=True,
            needs_stage=STAGING,
            approvals=2,
        ),
    }
)
"""Staging is for machines to decide; production takes two people who did not make the run."""


def policy_of(stage: str, policies: Mapping[str, StagePolicy] = DEFAULT_POLICIES) -> StagePolicy:
    """Return the policy of `stage`.

    Raises:
        UnknownNameError: no checkpoint can be promoted to a stage of that name.
    """
    try:
        return policies[stage]
    except KeyError:
        raise UnknownNameError(
            f"stage {stage!r}: expected one of {', '.join(policies)}; "
            f"every committed checkpoint is a {CANDIDATE} already"
        ) from None
