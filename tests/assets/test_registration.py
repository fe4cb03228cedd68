"""What Dagster is told of a committed checkpoint, and how it is known what it was not told."""

from __future__ import annotations

from dataclasses import replace

import dagster as dg
import pytest

from assets.partitions import CHECKPOINTS, checkpoint_key, checkpoint_of
from assets.registration import exactness, missed, register
from strongroom.checkpoint.attempts import AttemptRecord, claim_attempt
from strongroom.checkpoint.layout import checkpoint_folder, run_record_key
from strongroom.checkpoint.manifest import MANIFEST_FILE
from strongroom.checkpoint.run_record import create_run
from strongroom.errors import InputError, UnknownNameError
from strongroom.names import Attempt
from strongroom.storage.memory import MemoryStorage
from tests.support.checkpoints import checkpoint_name, save_checkpoint
from tests.support.dagster_world import instance
from tests.support.governed import World

__all__ = ["instance"]


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


def test_a_checkpoint_is_told_with_its_digest_and_its_numbers(
    instance: dg.DagsterInstance, storage: MemoryStorage
) -> None:
    committed = save_checkpoint(storage, 10)

    event = register(instance, storage, committed.name, {"durable_s": 2.5, "tokens_per_s": None})

    assert event.partition == "nightly-7@10"
    assert event.partition in instance.get_dynamic_partitions(str(CHECKPOINTS.name))
    assert (event.tags or {})["dagster/data_version"] == str(committed.checkpoint_id)
    numeric = {name: value.value for name, value in event.metadata.items()}
    assert numeric["num_bytes"] == committed.manifest.num_bytes
    assert numeric["train_loss"] == 1.25
    assert numeric["durable_s"] == 2.5
    assert "tokens_per_s" not in numeric
    assert str(numeric["exact"]).startswith("not known: ")  # there is no record of its run


def test_it_is_told_whether_a_checkpoint_is_exact_and_why_not(storage: MemoryStorage) -> None:
    name = checkpoint_name(10)
    assert exactness(storage, name).startswith("not known: ")
    run = replace(World(run=name.run).run_record(), inexact=("compiled layers",))
    create_run(storage, run)
    assert exactness(storage, name).startswith("not known: ")
    claim_attempt(storage, AttemptRecord(run=name.run))
    assert exactness(storage, name) == "no: compiled layers"
    claim_attempt(storage, AttemptRecord(run=name.run, inexact=("world_size 4 -> 2",)))
    assert exactness(storage, replace(name, attempt=Attempt(2))) == (
        "no: compiled layers; world_size 4 -> 2"
    )
    storage.replace(run_record_key(name.run), replace(run, inexact=()).to_bytes())
    assert exactness(storage, name) == "yes"


def test_what_was_told_is_not_missed(instance: dg.DagsterInstance, storage: MemoryStorage) -> None:
    told, untold = save_checkpoint(storage, 10).name, save_checkpoint(storage, 20).name
    instance.report_runless_asset_event(register(instance, storage, told))

    assert missed(instance, [told, untold]) == [untold]


def test_a_newer_attempt_of_a_step_is_missed_until_it_is_told(
    instance: dg.DagsterInstance, storage: MemoryStorage
) -> None:
    first = save_checkpoint(storage, 10).name
    instance.report_runless_asset_event(register(instance, storage, first))
    second = save_checkpoint(storage, 10, attempt=2).name

    assert missed(instance, [first, second]) == [second]

    instance.report_runless_asset_event(register(instance, storage, second))
    assert missed(instance, [first, second]) == []


def test_a_damaged_checkpoint_is_told_too_so_that_verification_meets_it(
    instance: dg.DagsterInstance, storage: MemoryStorage
) -> None:
    name = save_checkpoint(storage, 10).name
    storage.replace(f"{checkpoint_folder(name)}/{MANIFEST_FILE}", b"{}")

    event = register(instance, storage, name)

    assert "damaged" in event.metadata
    assert "dagster/data_version" not in (event.tags or {})


def test_a_partition_means_the_newest_attempt_of_its_step(storage: MemoryStorage) -> None:
    save_checkpoint(storage, 10)
    newer = save_checkpoint(storage, 10, attempt=2).name
    save_checkpoint(storage, 100)

    assert checkpoint_of(storage, "nightly-7@10") == newer
    assert checkpoint_of(storage, checkpoint_key(checkpoint_name(100))) == checkpoint_name(100)


@pytest.mark.parametrize("key", ["nightly-7", "nightly-7@", "nightly-7@ten", "@"])
def test_what_is_no_partition_key_is_refused(storage: MemoryStorage, key: str) -> None:
    with pytest.raises(InputError, match="RUN@STEP"):
        checkpoint_of(storage, key)


def test_an_unknown_checkpoint_is_named(storage: MemoryStorage) -> None:
    save_checkpoint(storage, 10)

    with pytest.raises(UnknownNameError, match="strongroom ls nightly-7"):
        checkpoint_of(storage, "nightly-7@11")
