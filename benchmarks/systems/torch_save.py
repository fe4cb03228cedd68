"""`torch.save` to a file; for S3 the file is then uploaded by boto3's own transfer manager."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import boto3
import torch
from botocore.config import Config
from torch import Tensor

from benchmarks.places import BUCKET, Place
from benchmarks.systems.base import Blocking


class TorchSaveFile(Blocking):
    """One file a step, forced to the disk before it counts as saved."""

    def __init__(self, place: Place) -> None:
        self._folder = Path(place.folder)

    def begin(self, state: dict[str, Tensor], step: int) -> None:
        """Write and fsync."""
        with (self._folder / f"step-{step}.pt").open("xb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())

    def load(self, state: dict[str, Tensor], step: int) -> None:
        """Read the whole file, then copy."""
        _fill(state, self._folder / f"step-{step}.pt")


class TorchSaveBoto3(Blocking):
    """One object a step, by way of a temporary file."""

    def __init__(self, place: Place) -> None:
        config = Config(s3={"addressing_style": "path"})
        session = boto3.session.Session()
        self._client = session.client("s3", endpoint_url=place.endpoint_url, config=config)

    def begin(self, state: dict[str, Tensor], step: int) -> None:
        """Write the file, upload it, delete it."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "state.pt"
            torch.save(state, file)
            self._client.upload_file(str(file), BUCKET, f"step-{step}.pt")

    def load(self, state: dict[str, Tensor], step: int) -> None:
        """Download the file, read it, copy."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "state.pt"
            self._client.download_file(BUCKET, f"step-{step}.pt", str(file))
            _fill(state, file)


def _fill(state: dict[str, Tensor], file: Path) -> None:
    for name, tensor in torch.load(file, weights_only=True).items():
        state[name].copy_(tensor)
