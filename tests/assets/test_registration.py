"""What Dagster is told of a committed checkpoint, and how it is known what it was not told."""

from __future__ import annotations

import dagster as dg
import pytest

from assets.partitions import CHECKPOINTS, checkpoint_key, checkpoint_of
from assets.registration import missed, register
from strongroom.checkpoint.layout import checkpoint_folder
from strongroom.checkpoint.manifest import MANIFEST_FILE
from strongroom.errors import InputError, UnknownNameError
from strongroom.storage.memory import MemoryStorage
from tests.support.checkpoints import checkpoint_name, save_checkpoint
from tests.support.dagster_world import instance

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
