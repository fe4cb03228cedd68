"""Reads a checkpoint by its manifest alone: nothing is unpickled, every chunk is checked.

Invariant: what a call returns, or has filled when it returns, has the SHA-256 that the manifest
gives for every chunk it came from. Bytes go straight into the tensors they are for where a chunk
lies there in one run; memory beside that is a few MiB a thread, whatever the size of a chunk. No
memory is taken for a tensor that the files at hand cannot hold. `.metadata` is never opened.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from strongroom.checkpoint.boxes import Box
from strongroom.checkpoint.catalogue import Committed
from strongroom.checkpoint.container import dtype_of
from strongroom.checkpoint.entries import Chunk, TensorEntry
from strongroom.checkpoint.manifest import MANIFEST_FILE, Manifest
from strongroom.checkpoint.parallel import run_parallel
from strongroom.checkpoint.reading.files import CheckpointFiles
from strongroom.checkpoint.reading.filling import Destination, Wanted, fill_range, stream
from strongroom.checkpoint.reading.loading import Exceptions, ManifestReader, check_targets, load
from strongroom.checkpoint.reading.ranged import RangedReads, reading_threads
from strongroom.checkpoint.reading.spans import Span, coalesced
from strongroom.checkpoint.tiling import row_major_bands, tile_faults
from strongroom.errors import IntegrityError
from strongroom.storage.base import Storage


class CheckpointReader:
    """Reads tensors of one committed checkpoint; threads may share it.

    Args:
        storage: what holds it.
        committed: which checkpoint.
        threads: how many read and hash at the same time; None: as many as suit the storage.
    """

    def __init__(
        self, storage: Storage, committed: Committed, *, threads: int | None = None
    ) -> None:
        self._committed = committed
        self._files = CheckpointFiles(storage, committed)
        self._reads = RangedReads(storage, self._files.key_of)
        self.threads = reading_threads(storage) if threads is None else threads

    @property
    def manifest(self) -> Manifest:
        """What the checkpoint consists of."""
        return self._committed.manifest

    @property
    def tensor_names(self) -> tuple[str, ...]:
        """The names of all tensors, sorted."""
        return tuple(tensor.name for tensor in self.manifest.tensors)

    def read(self, name: str) -> Tensor:
        """Return one whole tensor, in CPU memory, whatever its sharding was.

        Raises:
            InputError: there is no tensor of that name.
            IntegrityError: a file or chunk is not what the manifest says, or chunks do not tile.
            FormatError: this release cannot read a checkpoint that lends files to this one.
        """
        return self.read_all([self.manifest.tensor(name)], threads=self.threads)[name]

    def read_all(self, entries: Sequence[TensorEntry], *, threads: int) -> dict[str, Tensor]:
        """Return whole tensors by name; small ones that lie side by side are read together.

        Raises:
            IntegrityError, FormatError: as `read`.
        """
        self._check_whole(entries)
        tensors = {}
        wanted: dict[Span, list[Destination]] = {}
        for entry in entries:
            tensors[entry.name], parts = self._room(
                entry, Box((0,) * len(entry.shape), entry.shape), entry.chunks, threads=threads
            )
            wanted |= parts
        self._fill(wanted, threads=threads)
        return tensors

    def read_chunk(self, entry: TensorEntry, chunk: Chunk) -> Tensor:
        """Return one chunk, of its own shape.

        Raises:
            IntegrityError, FormatError: as `read`.
        """
        return self._read_box(entry, Box(chunk.at, chunk.shape), [chunk])

    def row_major(self, name: str) -> Iterator[Tensor]:
        """Yield tensors whose bytes, joined, are those of the whole tensor, row-major.

        A few MiB at a time where the sharding allows it; of a tensor that is cut by columns, as
        many rows as it takes to put chunks together. A part is proved only when the next is
        yielded, or the end is reached.

        Raises:
            InputError, IntegrityError, FormatError: as `read`.
        """
        entry = self.manifest.tensor(name)
        self._check_whole([entry])
        for band in row_major_bands(entry):
            if len(band.chunks) == 1:
                self._files.check([band.chunks[0].file], threads=1)
                yield from stream(self._reads, Span(tensor=entry, chunk=band.chunks[0]))
            else:
                yield self._read_box(entry, Box(band.at, band.shape), band.chunks)

    def load_into(  # noqa: PLR0913 -- what is loaded into what, and each exception by its name
        self,
        state: Mapping[str, Tensor],
        *,
        prefixes: tuple[str, ...] = ("",),
        ignore: Collection[str] = (),
        keep: Collection[str] = (),
        cast: Collection[str] = (),
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        """Fill the tensors of `state` from the checkpoint, whatever the sharding of either.

        Collective where torch.distributed is initialised: an error of one rank is raised on all.
        Names, shapes and dtypes are compared before anything is read. After an error the targets
        hold old, new and damaged values and are of no more use.

        Args:
            state: plain tensors or DTensors by name; the same names on every rank.
            prefixes: the checkpoint's tensors whose names start with one of these must be exactly
                those of `state`. Other tensors are left alone, e.g. the RNG of other ranks.
            ignore: names of the checkpoint's tensors, under `prefixes`, that nothing takes.
            keep: names of targets that the checkpoint lacks; they are left as they are.
            cast: names of targets that take their values in another dtype.
            process_group: the default group where None.

        Raises:
            InputError: names are missing or too many, a shape or dtype differs, or a name in
                `ignore`, `keep` or `cast` has no need to be there; all are listed.
            IntegrityError, FormatError: as `read`.
        """
        offered = {
            entry.name: entry for entry in self.manifest.tensors if entry.name.startswith(prefixes)
        }
        exceptions = Exceptions(ignore=ignore, keep=keep, cast=cast)
        check_targets(self._committed.name, offered, state, exceptions)
        entries = [entry for name, entry in offered.items() if name in state]
        self._check_whole(entries)
        load(
            {entry.name: state[entry.name] for entry in entries},
            ManifestReader(entries, partial(self._fill, threads=self.threads)),
            process_group=process_group,
        )

    def _check_whole(self, entries: Iterable[TensorEntry]) -> None:
        """Return if these tensors are whole, and not larger than the files they are said to be in.

        So no memory is taken for what a forged manifest makes up.
        """
        file_sizes = {file.name: file.num_bytes for file in self.manifest.files}
        for entry in entries:
            held = sum(file_sizes[file] for file in {chunk.file for chunk in entry.chunks})
            faults = tile_faults(entry)
            if entry.num_bytes > held:
                faults.append(f"{entry.num_bytes} bytes, in files of {held} bytes")
            if faults:
                raise IntegrityError(
                    "chunks do not tile a tensor",
                    file=f"{self._committed.folder}/{MANIFEST_FILE}",
                    tensor=entry.name,
                    expected="every element in exactly one chunk",
                    got="; ".join(faults),
                )

    def _fill(self, wanted: Wanted, *, threads: int) -> None:
        """Read spans and put their elements where they are wanted."""
        self._files.check({span.chunk.file for span in wanted}, threads=threads)
        ranges = coalesced(wanted)
        run_parallel(
            (partial(fill_range, self._reads, part, wanted) for part in ranges), threads=threads
        )

    def _read_box(self, entry: TensorEntry, box: Box, chunks: Sequence[Chunk]) -> Tensor:
        """Return a box of a tensor that these of its chunks tile; in this thread alone."""
        tensor, wanted = self._room(entry, box, chunks, threads=1)
        self._fill(wanted, threads=1)
        return tensor

    def _room(
        self, entry: TensorEntry, box: Box, chunks: Sequence[Chunk], *, threads: int
    ) -> tuple[Tensor, dict[Span, list[Destination]]]:
        """Return memory for a box of a tensor, and where in it each of these chunks goes.

        Its files are looked at first: memory is taken for what is there.
        """
        self._files.check({chunk.file for chunk in chunks}, threads=threads)
        tensor = torch.empty(box.shape, dtype=dtype_of(entry.dtype))
        wanted = {}
        for chunk in chunks:
            place = Box(chunk.at, chunk.shape).moved(tuple(-at for at in box.at))
            whole = Box((0,) * len(chunk.shape), chunk.shape)
            wanted[Span(tensor=entry, chunk=chunk)] = [
                Destination(box=whole, target=tensor[place.slices])
            ]
        return tensor, wanted
