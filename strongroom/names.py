"""One type per kind of name.

Law: for every name type, `T.parse(str(name)) == name`; whatever does not parse is refused
with an `InputError` that says what is allowed.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import ClassVar, NewType, Self

from strongroom.errors import InputError


@dataclass(frozen=True, order=True, slots=True)
class Digest:
    """A SHA-256 digest, written `sha256:<64 hex>`."""

    hex: str

    PREFIX: ClassVar[str] = "sha256:"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[0-9a-f]{64}", self.hex):
            raise InputError(f"digest: expected 64 lowercase hex digits, got {self.hex!r}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `sha256:<64 hex>`."""
        if not text.startswith(cls.PREFIX):
            raise InputError(f"digest: expected 'sha256:<64 hex>', got {text!r}")
        return cls(text.removeprefix(cls.PREFIX))

    @classmethod
    def of(cls, data: bytes | bytearray | memoryview) -> Self:
        """Hash `data`."""
        return cls(hashlib.sha256(data).hexdigest())

    def __str__(self) -> str:
        return self.PREFIX + self.hex

    @property
    def short(self) -> str:
        """The first 12 hex digits: for people, never for look-up."""
        return self.hex[:12]


CheckpointId = NewType("CheckpointId", Digest)
"""Digest of the bytes of a canonical manifest (RFC 8785)."""

StateDigest = NewType("StateDigest", Digest)
"""Digest of what a checkpoint means, whatever its sharding."""


@dataclass(frozen=True, order=True, slots=True)
class RunKey:
    """The key of one logical fine-tuning run: chosen before it starts, kept by every retry."""

    text: str

    PATTERN: ClassVar[re.Pattern[str]] = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")

    def __post_init__(self) -> None:
        if not self.PATTERN.fullmatch(self.text):
            raise InputError(
                f"run key {self.text!r}: expected 1 to 63 of a-z, 0-9, '.', '_', '-', "
                "starting with a letter or digit"
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a run key."""
        return cls(text)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, order=True, slots=True)
class Attempt:
    """One process launch of a run; numbered from 1. A higher number fences off a lower one."""

    number: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= 9999:  # noqa: PLR2004 -- the width of the directory name
            raise InputError(f"attempt: expected 1 to 9999, got {self.number}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `attempt-0001`."""
        match = re.fullmatch(r"attempt-(\d{4})", text)
        if not match:
            raise InputError(f"attempt: expected 'attempt-<4 digits>', got {text!r}")
        return cls(int(match[1]))

    def __str__(self) -> str:
        return f"attempt-{self.number:04d}"


@dataclass(frozen=True, order=True, slots=True)
class Step:
    """How many optimizer steps had been taken."""

    number: int

    def __post_init__(self) -> None:
        if not 0 <= self.number <= 99_999_999:  # noqa: PLR2004 -- the width of the directory name
            raise InputError(f"step: expected 0 to 99999999, got {self.number}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `step-00000010`."""
        match = re.fullmatch(r"step-(\d{8})", text)
        if not match:
            raise InputError(f"step: expected 'step-<8 digits>', got {text!r}")
        return cls(int(match[1]))

    def __str__(self) -> str:
        return f"step-{self.number:08d}"


@dataclass(frozen=True, order=True, slots=True)
class CheckpointName:
    """The place of one checkpoint in a store: run, attempt and step."""

    run: RunKey
    attempt: Attempt
    step: Step

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `<run>/attempt-0001/step-00000010`."""
        parts = text.split("/")
        if len(parts) != 3:  # noqa: PLR2004 -- run, attempt, step
            raise InputError(f"checkpoint name: expected RUN/attempt-N/step-N, got {text!r}")
        return cls(RunKey.parse(parts[0]), Attempt.parse(parts[1]), Step.parse(parts[2]))

    def __str__(self) -> str:
        return f"{self.run}/{self.attempt}/{self.step}"

    @property
    def short(self) -> str:
        """The name people use, `RUN/step`; it means the newest attempt that has the step."""
        return f"{self.run}/{self.step.number}"
