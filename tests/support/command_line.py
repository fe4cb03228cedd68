"""Run the `strongroom` command inside the test's process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from strongroom.cli.main import run


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What one command line did."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document on standard output."""
        found: dict[str, Any] = json.loads(self.out)
        return found


@dataclass(frozen=True)
class CommandLine:
    """Runs command lines; options added to each of them come first in `defaults`."""

    capture: pytest.CaptureFixture[str]
    defaults: tuple[str, ...] = ()

    def __call__(self, *arguments: str) -> Ran:
        self.capture.readouterr()
        code = run([*arguments, *self.defaults])
        out, err = self.capture.readouterr()
        return Ran(code=code, out=out, err=err)
