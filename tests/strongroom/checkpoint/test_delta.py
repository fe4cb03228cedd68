"""What a delta may borrow, and whom retention must keep for whom: pure rules over manifests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from strongroom.checkpoint.delta import (
    ChunkKey,
    delta_base,
    loan_of,
    needed_checkpoints,
)
from strongroom.checkpoint.entries import Chunk, FileEntry, TensorEntry
from strongroom.checkpoint.manifest import MANIFEST_FILE, Manifest
from strongroom.names import CheckpointName, Digest, RunKey
from tests.support.checkpoints import INPUTS, checkpoint_name

GOLDEN = Path(__file__).resolve().parents[2] / "golden"


def manifest_of(
    step: int, *, lenders: tuple[Manifest, ...] = (), own_share: float = 0.5, run: str = "nightly-7"
) -> Manifest:
    """Return a manifest of two chunks' bytes a lender, `own_share` of all of them its own."""
    shards = [FileEntry(name="__0_0.distcp", num_bytes=10_000, sha256=None)]
    for lender in lenders:
        shards += [
            FileEntry(
                name=f"{lender.name.attempt}/{lender.name.step}/__0_0.distcp",
                num_bytes=10_000,
                sha256=None,
                lender=lender.checkpoint_id,
            )
        ]
    own = round(1000 * own_share) if lenders else 1000
    sizes = [own, *((1000 - own) // len(lenders) for _ in lenders)]
    chunks = tuple(
        Chunk(
            at=(index,),
            shape=(1,),
            file=shard.name,
            offset=500,
            num_bytes=num_bytes,
            sha256=Digest.of(shard.name.encode()),
        )
        for index, (shard, num_bytes) in enumerate(zip(shards, sizes, strict=True))
    )
    return Manifest(
        name=checkpoint_name(step, run=RunKey(run)),
        save_id="0" * 32,
        created="2026-01-31T08:15:00.123Z",
        world_size=1,
        parent=None,
        inputs=INPUTS,
        files=tuple(sorted(shards, key=lambda file: file.name)),
        tensors=(TensorEntry(name="w", dtype="uint8", shape=(len(shards),), chunks=chunks),),
        state={},
        metrics={},
        exact_resume=True,
        chain=max((lender.chain + 1 for lender in lenders), default=0),
    )


def test_the_first_save_and_every_full_every_th_are_full() -> None:
    last: Manifest | None = None
    chains = []
    for step in range(7):
        base = delta_base(last, full_every=3, min_share=0.1)
        last = manifest_of(step, lenders=() if base is None else (base,))
        chains.append(last.chain)
    assert chains == [0, 1, 2, 0, 1, 2, 0]
    assert delta_base(manifest_of(1), full_every=1, min_share=0.0) is None


def test_a_delta_that_saved_too_little_is_followed_by_a_full_checkpoint() -> None:
    full = manifest_of(1)
    poor = manifest_of(2, lenders=(full,), own_share=0.95)
    rich = manifest_of(3, lenders=(full,), own_share=0.8)
    assert delta_base(poor, full_every=10, min_share=0.1) is None
    assert delta_base(rich, full_every=10, min_share=0.1) is rich
    assert delta_base(poor, full_every=10, min_share=0.05) is poor
    assert delta_base(full, full_every=10, min_share=1.0) is full  # it had nobody to borrow from


def test_the_first_version_lends_nothing() -> None:
    folder = GOLDEN / "checkpoint-1" / "runs/golden-1/attempt-0001/step-00000002"
    old = Manifest.from_bytes((folder / MANIFEST_FILE).read_bytes(), where="golden")
    assert delta_base(old, full_every=10, min_share=0.0) is None


def test_what_is_lent_names_its_physical_holder() -> None:
    first = manifest_of(1)
    second = manifest_of(2, lenders=(first,))
    loan = loan_of(second, second.checkpoint_id)
    assert loan.files == {
        "attempt-0001/step-00000002/__0_0.distcp": FileEntry(
            name="attempt-0001/step-00000002/__0_0.distcp",
            num_bytes=10_000,
            sha256=None,
            lender=second.checkpoint_id,
        ),
        "attempt-0001/step-00000001/__0_0.distcp": FileEntry(
            name="attempt-0001/step-00000001/__0_0.distcp",
            num_bytes=10_000,
            sha256=None,
            lender=first.checkpoint_id,
        ),
    }
    own, borrowed = second.tensors[0].chunks
    assert loan.chunks == {
        ChunkKey("w", "uint8", (0,), (1,)): replace(
            own, file="attempt-0001/step-00000002/__0_0.distcp"
        ),
        ChunkKey("w", "uint8", (1,), (1,)): borrowed,
    }


@pytest.fixture
def family() -> dict[int, Manifest]:
    """1 and 5 are full; 2 borrows from 1, 3 from 1 and 2, 6 from 5."""
    first, fifth = manifest_of(1), manifest_of(5)
    second = manifest_of(2, lenders=(first,))
    third = manifest_of(3, lenders=(first, second))
    sixth = manifest_of(6, lenders=(fifth,))
    return {1: first, 2: second, 3: third, 5: fifth, 6: sixth}


def steps(needed: dict[CheckpointName, frozenset[CheckpointName]]) -> dict[int, set[int]]:
    return {
        lender.step.number: {name.step.number for name in names} for lender, names in needed.items()
    }


def test_lenders_of_all_checkpoints_are_needed(family: dict[int, Manifest]) -> None:
    assert steps(needed_checkpoints(family.values())) == {1: {2, 3}, 2: {3}, 5: {6}}


@pytest.mark.parametrize(
    ("kept", "needed"),
    [
        ({6}, {5: {6}}),
        ({3}, {1: {2, 3}, 2: {3}}),
        ({2}, {1: {2}}),
        ({1, 5}, {}),
        (set(), {}),
    ],
)
def test_lenders_of_what_is_kept_are_needed_and_theirs_in_turn(
    family: dict[int, Manifest], kept: set[int], needed: dict[int, set[int]]
) -> None:
    names = [family[step].name for step in kept]
    assert steps(needed_checkpoints(family.values(), names)) == needed


def test_a_lender_of_a_lender_is_needed_although_nobody_kept_borrows_from_it() -> None:
    first = manifest_of(1)
    second = manifest_of(2, lenders=(first,))
    third = manifest_of(3, lenders=(second,))
    found = needed_checkpoints([first, second, third], [third.name])
    assert steps(found) == {1: {2}, 2: {3}}


def test_a_lender_that_is_gone_is_still_named() -> None:
    gone = manifest_of(1)
    borrower = manifest_of(2, lenders=(gone,))
    assert steps(needed_checkpoints([borrower])) == {1: {2}}
    assert needed_checkpoints([], [borrower.name]) == {}


def test_runs_are_told_apart() -> None:
    first, other = manifest_of(1), manifest_of(1, run="other")
    borrower = manifest_of(2, lenders=(other,), run="other")
    needed = needed_checkpoints([first, other, borrower])
    assert needed == {other.name: frozenset({borrower.name})}
