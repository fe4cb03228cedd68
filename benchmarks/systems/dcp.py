"""Stock `torch.distributed.checkpoint`: its own disk writer, through s3fs, by s3torchconnector."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import (
    AsyncCheckpointerType,
    AsyncSaveResponse,
    async_save,
    save,
)
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter

from benchmarks.places import BUCKET, REGION, Place
from benchmarks.systems.base import Blocking


@dataclass(frozen=True, kw_only=True, slots=True)
class Backend:
    """How stock DCP writes and reads the checkpoint of a step."""

    writer: Callable[[int], StorageWriter]
    reader: Callable[[int], StorageReader]


def disk(place: Place) -> Backend:
    """Return DCP's own writer, which forces its files to the disk."""

    def folder(step: int) -> Path:
        return Path(place.folder) / f"step-{step}"

    return Backend(
        writer=lambda step: FileSystemWriter(folder(step)),
        reader=lambda step: FileSystemReader(folder(step)),
    )


def s3fs(place: Place) -> Backend:
    """Return DCP over fsspec; `sync_files` would call `sync` for the whole machine."""
    from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter

    options: dict[str, Any] = {"endpoint_url": place.endpoint_url}
    return Backend(
        writer=lambda step: FsspecWriter(f"s3://{BUCKET}/step-{step}", sync_files=False, **options),
        reader=lambda step: FsspecReader(f"s3://{BUCKET}/step-{step}", **options),
    )


def s3torchconnector(place: Place) -> Backend:
    """Return Amazon's connector; it writes through the proxy that mends rgw, and reads directly."""
    from s3torchconnector import S3ClientConfig
    from s3torchconnector.dcp import S3StorageReader, S3StorageWriter

    config = S3ClientConfig(force_path_style=True)

    def at(endpoint_url: str, make: Callable[..., Any], step: int) -> Any:  # noqa: ANN401 -- untyped
        os.environ["AWS_ENDPOINT_URL"] = endpoint_url  # the one way it takes an endpoint
        return make(REGION, f"s3://{BUCKET}/step-{step}", s3client_config=config)

    return Backend(
        writer=lambda step: cast("StorageWriter", at(place.etag_url, S3StorageWriter, step)),
        reader=lambda step: cast("StorageReader", at(place.endpoint_url, S3StorageReader, step)),
    )


class DcpBlocking(Blocking):
    """`dcp.save` and `dcp.load`."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def begin(self, state: dict[str, Tensor], step: int) -> None:
        """Save."""
        save(state, storage_writer=self._backend.writer(step), no_dist=True)

    def load(self, state: dict[str, Tensor], step: int) -> None:
        """Load."""
        load(state, storage_reader=self._backend.reader(step), no_dist=True)


class DcpAsync:
    """`dcp.async_save`.

    Args:
        backend: where to.
        staging: `fresh` memory for every copy, as is the default; `kept` memory; kept and
            `overlap`ped with what follows; kept and shared with a writing `process`.
    """

    staging_copies = 1

    def __init__(
        self, backend: Backend, *, staging: Literal["fresh", "kept", "overlap", "process"]
    ) -> None:
        self._backend = backend
        self.overlapped = staging == "overlap"
        self._process = staging == "process"
        self._stager = (
            None
            if staging == "fresh"
            else DefaultStager(
                StagingOptions(
                    use_pinned_memory=False,
                    use_shared_memory=self._process,
                    use_async_staging=self.overlapped,
                    use_non_blocking_copy=False,
                )
            )
        )
        if self._process:  # refuses to work without a process group
            self._meeting = tempfile.TemporaryDirectory()
            dist.init_process_group(
                "gloo", init_method=f"file://{self._meeting.name}/point", rank=0, world_size=1
            )
        self._staged: Future[None] | None = None
        self._saved: Future[Any] | None = None

    def begin(self, state: dict[str, Tensor], step: int) -> None:
        """Copy the state, or begin to, and start the save."""
        kind = AsyncCheckpointerType.PROCESS if self._process else AsyncCheckpointerType.THREAD
        answer = async_save(
            state,
            storage_writer=self._backend.writer(step),
            async_checkpointer_type=kind,
            async_stager=self._stager,
            no_dist=not self._process,
        )
        if isinstance(answer, AsyncSaveResponse):
            self._staged, self._saved = answer.staging_completion, answer.upload_completion
        else:
            self._staged, self._saved = None, answer

    def before_update(self) -> None:
        """Wait for the copy."""
        if self._staged is not None:
            self._staged.result()

    def finish(self) -> None:
        """Wait for the save."""
        if self._saved is not None:
            self._saved.result()

    def load(self, state: dict[str, Tensor], step: int) -> None:
        """Load."""
        load(state, storage_reader=self._backend.reader(step), no_dist=True)

    def close(self) -> None:
        """Give back the memory kept, and the process group."""
        if self._stager is not None:
            self._stager.close()
        if self._process:
            dist.destroy_process_group()
            self._meeting.cleanup()
