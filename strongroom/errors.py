"""One tree of errors, by whose fault; every error owns an exit code.

A message says what happened, where, what was expected, what was found and what to do next.
Errors carry their facts as attributes too, so that callers never parse text.
"""

from __future__ import annotations

import errno
from typing import Any, ClassVar


class StrongroomError(Exception):
    """Root of every error strongroom raises on purpose.

    Law: pickling keeps class, message and facts, so that an error of one rank reaches all.
    """

    exit_code: ClassVar[int] = 1

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.args, self.__dict__)


def _rebuilt(
    kind: type[StrongroomError], args: tuple[Any, ...], facts: dict[str, Any]
) -> StrongroomError:
    """Make the error again without its constructor, which would write the message anew."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(facts)
    return error


# --- the caller's fault ---------------------------------------------------------------


class InputError(StrongroomError):
    """What the caller gave cannot be used."""

    exit_code = 10


class ConfigError(InputError):
    """A configuration is wrong; `faults` lists every fault found, not only the first."""

    exit_code = 11

    def __init__(self, source: str, faults: list[str]) -> None:
        self.source = source
        self.faults = faults
        lines = "\n".join(f"  - {fault}" for fault in faults)
        super().__init__(f"{source}: {len(faults)} fault(s) in the configuration:\n{lines}")


class DataError(InputError):
    """A dataset is empty or broken; `faults` names rows and reasons."""

    exit_code = 12

    def __init__(self, source: str, faults: list[str]) -> None:
        self.source = source
        self.faults = faults
        lines = "\n".join(f"  - {fault}" for fault in faults)
        super().__init__(f"{source}: the dataset cannot be used:\n{lines}")


class UnknownNameError(InputError):
    """A run, checkpoint, stage or person of that name does not exist."""

    exit_code = 13


class AmbiguousNameError(InputError):
    """A short name or id prefix matches more than one thing; the message lists them."""

    exit_code = 14


class ModelSourceError(InputError):
    """A base model cannot be found or read."""

    exit_code = 15


# --- the bytes' fault: they are not what was promised ---------------------------------


class IntegrityError(StrongroomError):
    """Stored bytes differ from what their manifest promises."""

    exit_code = 20

    def __init__(  # noqa: PLR0913 -- every fact of the place is named
        self,
        problem: str,
        *,
        file: str,
        tensor: str | None = None,
        offset: int | None = None,
        expected: str,
        got: str,
    ) -> None:
        self.file = file
        self.tensor = tensor
        self.offset = offset
        self.expected = expected
        self.got = got
        place = file if tensor is None else f"{file}, tensor {tensor}"
        if offset is not None:
            place += f", byte offset {offset}"
        super().__init__(
            f"{problem} in {place}: expected {expected}, got {got}; "
            "quarantine this checkpoint and resume from an earlier one"
        )


class VerificationError(StrongroomError):
    """A checkpoint failed a rung of the verification ladder."""

    exit_code = 21


class SignatureError(StrongroomError):
    """A signature is missing, malformed or does not verify under a trusted key."""

    exit_code = 22


class LedgerError(StrongroomError):
    """The ledger contradicts itself or its signed tree head."""

    exit_code = 23


class FormatError(StrongroomError):
    """A stored document is malformed or of a format version this release does not know."""

    exit_code = 24


# --- somebody else moved first --------------------------------------------------------


class ConflictError(StrongroomError):
    """A thing that may be created once exists already."""

    exit_code = 30


class FencedError(ConflictError):
    """A newer attempt owns this run; this one may no longer commit."""

    exit_code = 31


# --- a rule said no -------------------------------------------------------------------


class PolicyError(StrongroomError):
    """A policy refused; `reasons` lists every rule that was not met."""

    exit_code = 40

    def __init__(self, what: str, reasons: list[str]) -> None:
        self.what = what
        self.reasons = reasons
        lines = "\n".join(f"  - {reason}" for reason in reasons)
        super().__init__(f"{what}: refused by policy:\n{lines}")


class QuarantinedError(PolicyError):
    """The checkpoint is quarantined: present, but not loadable."""

    exit_code = 41


# --- the world's fault ----------------------------------------------------------------


class StorageError(StrongroomError):
    """The storage failed; `retryable` says whether trying again may help."""

    exit_code = 50
    retryable: ClassVar[bool] = False


class StoreUnreachableError(StorageError):
    """The storage endpoint does not answer."""

    exit_code = 51
    retryable = True


class StorageFullError(StorageError):
    """No space is left in the storage."""

    exit_code = 52


class StorageDeniedError(StorageError):
    """The storage refused these credentials; the message names the missing right."""

    exit_code = 53


class StoreMissingError(StorageError):
    """There is no store at this URL, or it is not a strongroom store."""

    exit_code = 54


class ObjectMissingError(StorageError):
    """The storage holds no object of that key."""

    exit_code = 55


def os_error(error: OSError, what: str) -> StorageError:
    """Return what the operating system said of `what` as the storage error it means."""
    message = f"{what}: {error.strerror or error}"
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return StorageFullError(f"{message}; free space or raise the quota, then try again")
    if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        return StorageDeniedError(f"{message}; give this user the right, or use another folder")
    return StorageError(f"{message} (errno {error.errno}); check the disk and the path")


# --- training -------------------------------------------------------------------------


class TrainingError(StrongroomError):
    """A training process failed."""

    exit_code = 60


class SaveError(TrainingError):
    """An asynchronous save failed after the call that started it had returned."""

    exit_code = 61


class NothingToResumeError(TrainingError):
    """The run has checkpoints, yet none of them can be used; a fresh start must be asked for."""

    exit_code = 62


class PeerError(TrainingError):
    """Another rank failed; that rank says why."""

    exit_code = 63


class PreflightError(StrongroomError):
    """A check before the launch found what cannot work; `findings` says what, why and the mend."""

    exit_code = 64

    def __init__(self, findings: list[dict[str, Any]]) -> None:
        self.findings = findings
        lines = "\n".join(
            f"  - {found['check']}: {found['saw']}; {found['mend']}" for found in findings
        )
        super().__init__(
            f"preflight: {len(findings)} finding(s) stop the launch:\n{lines}\n"
            "a check that is wrong about this run is named in preflight.ignore"
        )


class HungError(TrainingError):
    """Training took no step for longer than is allowed, and was ended."""

    exit_code = 65


class RankLostError(TrainingError):
    """A rank died without a word: killed, or out of memory."""

    exit_code = 66


class PreemptedError(TrainingError):
    """Training was asked to stop, committed a last checkpoint and left (EX_TEMPFAIL)."""

    exit_code = 75
