"""Damage of every kind is refused by name, on load and by verification.

Stock `torch.distributed.checkpoint` loads 291 of 300 flipped bits as silently wrong values.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

from strongroom.checkpoint.catalogue import Committed, read_checkpoint
from strongroom.checkpoint.reading.reader import CheckpointReader
from strongroom.errors import IntegrityError
from strongroom.names import CheckpointName
from strongroom.storage.local import LocalStorage
from strongroom.verification.ladder import Rung, verify
from tests.support.checkpoints import (
    checkpoint_name,
    same,
    training_state,
    write_checkpoint,
    zeros_like,
)
from tests.support.crafted import craft, whole

NUM_FLIPS = 300
PAGE_BYTES = 4096
KINDS = ["version 1", "full", "delta", "delta, in the lender"]


class Victim:
    """A checkpoint in a folder, and the shard that is to be damaged."""

    def __init__(self, root: Path, kind: str) -> None:
        self.storage = LocalStorage(root)
        self.state = large_state()
        changed = {**self.state, "model.layer.weight": torch.ones(300, 40)}
        self.twin = self._save(20, kind, changed)
        base = self._save(5, kind, changed) if kind.startswith("delta") else None
        self.committed = self._save(10, kind, self.state, base)
        manifest = self.committed.manifest
        assert bool(manifest.lenders) == kind.startswith("delta")
        borrowed = [file.name for file in manifest.files if file.lender is not None]
        file = borrowed[0] if kind.endswith("lender") else "__0_0.distcp"
        self.key = manifest.key_of(file)
        self.path = root / self.key
        # What is read of it: of a borrowed file, the borrowed chunks.
        self.chunks = [
            chunk
            for entry in manifest.tensors
            for chunk in entry.chunks
            if chunk.file == file and chunk.num_bytes
        ]

    def _save(
        self, step: int, kind: str, state: dict[str, Tensor], base: Committed | None = None
    ) -> Committed:
        if kind == "version 1":
            return craft(self.storage, [whole(state)], step, version=1)
        manifest = None if base is None else base.manifest
        return write_checkpoint(self.storage, step, tensors=state, base=manifest)

    @contextmanager
    def damaged(self, damage: Callable[[bytes], bytes]) -> Iterator[None]:
        right = self.path.read_bytes()
        broken = damage(right)
        assert broken != right
        self.path.write_bytes(broken)
        try:
            yield
        finally:
            self.path.write_bytes(right)

    def load_error(self) -> IntegrityError | None:
        """Load it all; return the error, or None where every value is what it was."""
        target = zeros_like(self.state)
        try:
            CheckpointReader(self.storage, self.committed).load_into(target)
        except IntegrityError as error:
            return error
        assert same(target, self.state), "wrong values were loaded in silence"
        return None

    def check_verification(self) -> str:
        """Check that verification refuses it by the file's name; return what it finds first."""
        report = verify(
            self.storage,
            self.committed.name,
            expected_id=self.committed.checkpoint_id,
            up_to=Rung.STRUCTURE,
        )
        assert report.failed_at is Rung.BYTES
        assert self.key in report.findings[0]
        return report.findings[0]


def large_state() -> dict[str, Tensor]:
    """Return a state whose tensors take up most of a shard, of 130 KB."""
    source = torch.Generator().manual_seed(3)
    state = training_state()
    for name in [name for name in state if "layer.weight" in name and state[name].dim()]:
        state[name] = torch.randn(300, 40, generator=source)
    return state


@pytest.fixture(params=KINDS)
def victim(request: pytest.FixtureRequest, tmp_path: Path) -> Victim:
    return Victim(tmp_path, request.param)


def test_of_300_flipped_bits_all_are_refused_by_name_on_load_and_on_verify(victim: Victim) -> None:
    choose = random.Random(20260131)  # noqa: S311 -- places to break, not secrets
    assert victim.load_error() is None
    places = [
        place
        for chunk in victim.chunks
        for place in range(chunk.offset, chunk.offset + chunk.num_bytes)
    ]
    for place in choose.sample(places, NUM_FLIPS):
        bit = 1 << choose.randrange(8)

        def flip(right: bytes, place: int = place, bit: int = bit) -> bytes:
            return right[:place] + bytes([right[place] ^ bit]) + right[place + 1 :]

        with victim.damaged(flip):
            error = victim.load_error()
            assert error is not None, f"byte {place}, bit {bit}"
            assert error.file == victim.key
            assert error.tensor is not None
            assert error.tensor in victim.check_verification()


@pytest.mark.parametrize("victim", KINDS[:3], indirect=True)  # what else a lender has is its own
def test_a_flip_anywhere_else_is_refused_by_verify_and_loads_right_or_not_at_all(
    victim: Victim,
) -> None:
    """The header, and in version 1 what stands around raw bytes."""
    inside = {
        place
        for chunk in victim.chunks
        for place in range(chunk.offset, chunk.offset + chunk.num_bytes)
    }
    outside = sorted(set(range(victim.path.stat().st_size)) - inside)
    choose = random.Random(20260131)  # noqa: S311 -- as above
    for place in choose.sample(outside, min(60, len(outside))):

        def flip(right: bytes, place: int = place) -> bytes:
            return right[:place] + bytes([right[place] ^ 1]) + right[place + 1 :]

        with victim.damaged(flip):
            error = victim.load_error()
            assert error is None or error.file == victim.key
            victim.check_verification()


def test_a_zeroed_page_is_refused(victim: Victim) -> None:
    largest = max(victim.chunks, key=lambda chunk: chunk.num_bytes)
    page = -(-(largest.offset + PAGE_BYTES) // PAGE_BYTES) * PAGE_BYTES

    def zero(right: bytes) -> bytes:
        return right[:page] + bytes(PAGE_BYTES) + right[page + PAGE_BYTES :]

    with victim.damaged(zero):
        error = victim.load_error()
        assert error is not None
        assert (error.file, error.offset) == (victim.key, largest.offset)
        victim.check_verification()


def test_a_shard_of_another_checkpoint_is_refused(victim: Victim) -> None:
    """One of the same shapes, and so of the same size."""
    other = (victim.storage.root / victim.twin.folder / "__0_0.distcp").read_bytes()
    with victim.damaged(lambda right: (other + right)[: len(right)]):
        error = victim.load_error()
        assert error is not None
        assert error.file == victim.key
        victim.check_verification()


@pytest.mark.parametrize("kept", [0.0, 0.5, 1.0], ids=["empty", "half", "all but one byte"])
def test_a_truncated_file_is_refused(victim: Victim, kept: float) -> None:
    with victim.damaged(lambda right: right[: int((len(right) - 1) * kept)]):
        error = victim.load_error()
        assert error is not None
        assert error.file == victim.key
        victim.check_verification()


@pytest.mark.parametrize(
    "kind",
    ["a pointer", "16 more bytes", "nothing but zeros"],
)
def test_what_is_no_shard_is_refused(victim: Victim, kind: str) -> None:
    """What downloads and copies leave in the place of a file (vllm-project/vllm PR 57975)."""
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 9\n"

    def damage(right: bytes) -> bytes:
        return {
            "a pointer": pointer,
            "16 more bytes": right + bytes(16),
            "nothing but zeros": bytes(len(right)),
        }[kind]

    with victim.damaged(damage):
        error = victim.load_error()
        assert error is not None
        assert error.file == victim.key
        victim.check_verification()


def test_an_overwritten_half_save_is_refused(victim: Victim) -> None:
    """A save into the same name that died half way: its shard under the manifest of another."""
    other = (victim.storage.root / victim.twin.folder / "__0_0.distcp").read_bytes()
    half = len(other) // 2
    with victim.damaged(lambda right: other[:half] + right[half:]):
        error = victim.load_error()
        assert error is not None
        assert error.file == victim.key
        victim.check_verification()


def test_what_is_not_damaged_is_not_refused(victim: Victim) -> None:
    assert victim.load_error() is None
    name: CheckpointName = checkpoint_name(10)
    assert read_checkpoint(victim.storage, name) == victim.committed
    report = verify(victim.storage, name, expected_id=None, up_to=Rung.STRUCTURE)
    assert report.findings == ()
