"""The systems compared, by the names that tables and `--systems` use."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks.places import Place
from benchmarks.systems.base import System
from benchmarks.systems.dcp import Backend, DcpAsync, DcpBlocking, disk, s3fs, s3torchconnector
from benchmarks.systems.strongroom import Strongroom
from benchmarks.systems.torch_save import TorchSaveBoto3, TorchSaveFile

__all__ = ["OURS", "SYSTEMS", "System"]


def _stock(
    make: Callable[..., System], backend: Callable[[Place], Backend], **options: str
) -> Callable[[Place], System]:
    return lambda place: make(backend(place), **options)


OURS: dict[str, Callable[[Place], System]] = {
    "strongroom": Strongroom,
    "strongroom, overlapped": partial(Strongroom, staging="overlap"),
    "strongroom, process": partial(Strongroom, writer="process"),
}

SYSTEMS: dict[str, dict[str, Callable[[Place], System]]] = {
    "gateway": OURS
    | {
        "torch.save + boto3": TorchSaveBoto3,
        "DCP s3fs": _stock(DcpBlocking, s3fs),
        "DCP s3torchconnector": _stock(DcpBlocking, s3torchconnector),
        "DCP s3fs, async": _stock(DcpAsync, s3fs, staging="fresh"),
        "DCP s3fs, async kept": _stock(DcpAsync, s3fs, staging="kept"),
    },
    "disk": OURS
    | {
        "torch.save": TorchSaveFile,
        "DCP disk": _stock(DcpBlocking, disk),
        "DCP disk, async": _stock(DcpAsync, disk, staging="fresh"),
        "DCP disk, async kept": _stock(DcpAsync, disk, staging="kept"),
        "DCP disk, async overlapped": _stock(DcpAsync, disk, staging="overlap"),
        "DCP disk, async process": _stock(DcpAsync, disk, staging="process"),
    },
}
"""How to make each system, by the kind of place it stores at."""
