"""Checkpoints saved to and loaded from a real Ceph gateway while things go wrong.

After every fault the save is durable and verifies, or it failed with an error that names the cause:
then there is no manifest, and no part of an upload once the sweep has run. Either way the
checkpoint saved before stands and verifies, and the next save succeeds.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from strongroom.checkpoint.catalogue import list_checkpoints, read_checkpoint
from strongroom.checkpoint.reading.reader import CheckpointReader
from strongroom.checkpoint.saving.saver import AsyncSaver, SaveOptions
from strongroom.custody.context import Custody
from strongroom.custody.evaluate import evaluate_checkpoint
from strongroom.custody.promote import promote_checkpoint
from strongroom.custody.resolve import resolve
from strongroom.custody.verify import verify_checkpoint
from strongroom.errors import SaveError, StorageError, StoreUnreachableError
from strongroom.storage.base import Storage
from strongroom.storage.local import LocalStorage
from strongroom.storage.s3 import S3Settings, S3Storage
from strongroom.verification.ladder import Rung, verify
from tests.support.buckets import uploads_in
from tests.support.ceph import CephGateway
from tests.support.checkpoints import (
    checkpoint_name,
    ignore_commit,
    same,
    save_checkpoint,
    save_facts,
    training_state,
)
from tests.support.fault_proxy import FaultProxy
from tests.support.ranks import run_ranks
from tests.support.trained_store import RUN

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

pytestmark = [pytest.mark.ceph, pytest.mark.e2e]

ROOT = Path(__file__).resolve().parent.parent.parent
BEFORE, NOW, AFTER = 10, 20, 30
BLOCKS = 3
SLOW_BYTES_PER_S = 30e6  # so that a save or a load takes two seconds


@pytest.fixture
def storage(ceph_url: str, ceph_proxy: FaultProxy) -> S3Storage:
    """A storage behind the proxy that holds one checkpoint."""
    settings = replace(
        S3Settings.from_url(ceph_url), endpoint_url=ceph_proxy.url, read_timeout_s=2.0
    )
    storage = S3Storage(settings)
    save(storage, BEFORE)
    return storage


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up soon: how long to wait is not what these tests are about."""
    monkeypatch.setattr("strongroom.storage.s3_bucket._LONGEST_PAUSE_S", 0.01)


def large_state(step: int, *, num_ranks: int = 1) -> dict[str, Tensor]:
    """Return a state that rung 2 finds whole, of 54 MiB: several parts of an upload."""
    source = torch.Generator().manual_seed(step)
    state = training_state(step, ranks=range(num_ranks))
    for block in range(BLOCKS):
        name = f"block.{block}.weight"
        for key in (
            f"model.{name}",
            *(f"optim.state.{name}.{m}" for m in ("exp_avg", "exp_avg_sq")),
        ):
            state[key] = torch.randn((1536, 1024), generator=source)
        state[f"optim.state.{name}.step"] = torch.tensor(float(step))
    return state


def save(storage: Storage, step: int) -> None:
    save_checkpoint(storage, step, tensors=large_state(step))


def check_stands(storage: Storage, step: int, *, num_ranks: int = 1) -> None:
    """Check that a checkpoint verifies, and has the values that were saved."""
    report = verify(storage, checkpoint_name(step), expected_id=None, up_to=Rung.STRUCTURE)
    assert report.findings == ()
    assert report.highest == Rung.STRUCTURE
    check_values(storage, step, num_ranks=num_ranks)


def check_values(storage: Storage, step: int, *, num_ranks: int = 1) -> None:
    reader = CheckpointReader(storage, read_checkpoint(storage, checkpoint_name(step)))
    expected = large_state(step, num_ranks=num_ranks)
    targets = {name: torch.zeros_like(tensor) for name, tensor in expected.items()}
    reader.load_into(targets)
    assert same(targets, expected)


def check_never_was(storage: S3Storage, client: S3Client) -> None:
    """Check that a failed save left no checkpoint, no upload after the sweep, and no harm."""
    found = list_checkpoints(storage)
    assert [committed.name for committed in found] == [checkpoint_name(BEFORE)]
    assert not any(ignored.damaged for ignored in found.ignored)
    assert storage.stat(f"runs/{checkpoint_name(NOW)}/manifest.json") is None
    storage.discard_unfinished(older_than_s=0)
    assert uploads_in(client, storage.settings.bucket) == []
    check_stands(storage, BEFORE)
    save(storage, AFTER)
    check_stands(storage, AFTER)


# --- faults that a save survives -------------------------------------------------------------

PASSING: dict[str, dict[str, Any]] = {
    "busy": {"busy_share": 0.3},
    "reset": {"reset_share": 0.3},
    "stall": {"stall_share": 0.2, "stall_s": 600.0},
    "refuse": {"refuse_code": "ExpiredToken", "refuse_from_part": 2, "refuse_times": 1},
    "lost_answers": {"lost_answers": 2},
}


@pytest.mark.parametrize("fault", PASSING)
def test_a_save_survives(
    storage: S3Storage, ceph_client: S3Client, ceph_proxy: FaultProxy, fault: str
) -> None:
    """Reports ray-project/ray#36690, boto/boto3#3893."""
    ceph_proxy.change(**PASSING[fault])
    save(storage, NOW)
    assert ceph_proxy.counters()[fault] > 0
    ceph_proxy.change()
    check_stands(storage, NOW)
    check_stands(storage, BEFORE)
    assert uploads_in(ceph_client, storage.settings.bucket) == []


def test_a_save_by_a_process_of_its_own_survives(
    storage: S3Storage, ceph_proxy: FaultProxy
) -> None:
    ceph_proxy.change(busy_share=0.2, reset_share=0.2)
    options = SaveOptions(writer="process")
    with AsyncSaver(storage, fence=lambda: None, on_commit=ignore_commit, options=options) as saver:
        saver.save(large_state(NOW), save_facts(checkpoint_name(NOW)))
    assert ceph_proxy.counters()["reset"] > 0
    check_stands(storage, NOW)


def test_saves_of_two_ranks_under_one_prefix_survive(
    storage: S3Storage, ceph_proxy: FaultProxy, tmp_path: Path
) -> None:
    ceph_proxy.change(busy_share=0.3, reset_share=0.3)
    (tmp_path / "url").write_text(storage.url)
    run_ranks(2, save_on_rank, tmp_path)
    counters = ceph_proxy.counters()
    assert counters["busy"] > 0
    assert counters["reset"] > 0
    ceph_proxy.change()
    check_stands(storage, NOW, num_ranks=2)
    files = read_checkpoint(storage, checkpoint_name(NOW)).manifest.files
    assert sum(file.num_bytes > 10 << 20 for file in files) == 2  # both wrote their share


def save_on_rank(_rank: int, folder: Path) -> None:
    storage = S3Storage(S3Settings.from_url((folder / "url").read_text()))
    with AsyncSaver(storage, fence=lambda: None, on_commit=ignore_commit) as saver:
        saver.save(large_state(NOW, num_ranks=2), save_facts(checkpoint_name(NOW)))


def wait_for(proxy: FaultProxy, counter: str, number: int) -> None:
    """Return as soon as the proxy has counted so many."""
    deadline_s = time.monotonic() + 60
    while proxy.counters()[counter] < number:
        assert time.monotonic() < deadline_s, f"{proxy.counters()} in a minute"
        time.sleep(0.01)


def restart(ceph: CephGateway) -> None:
    ceph.kill_gateway()
    time.sleep(0.3)
    ceph.start_gateway()


@contextmanager
def saving(storage: Storage) -> Iterator[None]:
    """Save in the background while the block runs; it raises at its end what failed."""
    with AsyncSaver(storage, fence=lambda: None, on_commit=ignore_commit) as saver:
        saver.save(large_state(NOW), save_facts(checkpoint_name(NOW)))
        yield


@contextmanager
def reading(read: Callable[[Storage, int], None], storage: Storage) -> Iterator[None]:
    """Read in the background while the block runs; it raises at its end what failed."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(read, storage, BEFORE)
        yield
        future.result()


def test_a_save_survives_a_gateway_that_is_killed_and_comes_back(
    storage: S3Storage, ceph_client: S3Client, ceph: CephGateway, ceph_proxy: FaultProxy
) -> None:
    ceph_proxy.change(bytes_per_s=SLOW_BYTES_PER_S)
    with saving(storage):
        wait_for(ceph_proxy, "parts", 4)
        restart(ceph)
    ceph_proxy.change()
    check_stands(storage, NOW)
    check_stands(storage, BEFORE)
    assert uploads_in(ceph_client, storage.settings.bucket) == []


# --- faults that end a save ------------------------------------------------------------------

LASTING: dict[str, tuple[dict[str, Any], str]] = {
    "busy": ({"busy_share": 1.0}, "SlowDown.*retry later"),
    "reset": ({"reset_share": 1.0}, "got no answer"),
    "expired": (
        {"refuse_code": "ExpiredToken", "refuse_from_part": 3},
        "StorageDeniedError.*ExpiredToken.*have expired",
    ),
    "skewed": (
        {"refuse_code": "RequestTimeTooSkewed", "refuse_from_part": 3},
        "StorageDeniedError.*RequestTimeTooSkewed.*the clocks differ",
    ),
    "no multipart": (
        {"refuse_code": "AccessDenied"},
        "StorageDeniedError.*UploadPart.*AccessDenied.*kms:GenerateDataKey and kms:Decrypt",
    ),
}


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize("fault", LASTING)
def test_a_save_fails_by_name(
    storage: S3Storage, ceph_client: S3Client, ceph_proxy: FaultProxy, fault: str
) -> None:
    """Reports google/orbax#605, aws/aws-cdk#8947, aws/aws-cli#1065."""
    faults, message = LASTING[fault]
    ceph_proxy.change(**faults)
    with pytest.raises(SaveError, match=message):
        save(storage, NOW)
    ceph_proxy.change()
    check_never_was(storage, ceph_client)


def test_a_save_fails_by_name_where_the_bucket_is_full(
    storage: S3Storage, ceph_client: S3Client, ceph: CephGateway
) -> None:
    quota = ("--quota-scope", "bucket", "--bucket", storage.settings.bucket)
    ceph.admin("quota", "set", *quota, "--max-size", str(80 << 20))
    ceph.admin("quota", "enable", *quota)
    with pytest.raises(SaveError, match=r"StorageFullError.*QuotaExceeded.*raise the quota"):
        save(storage, NOW)
    ceph.admin("quota", "disable", *quota)
    check_never_was(storage, ceph_client)


@pytest.mark.usefixtures("short_pauses")
def test_a_save_fails_by_name_where_the_gateway_was_killed(
    storage: S3Storage, ceph_client: S3Client, ceph: CephGateway, ceph_proxy: FaultProxy
) -> None:
    ceph_proxy.change(bytes_per_s=SLOW_BYTES_PER_S)

    def kill_while_saving() -> None:
        with saving(storage):
            wait_for(ceph_proxy, "parts", 4)
            ceph.kill_gateway()

    with pytest.raises(SaveError, match=r"StoreUnreachableError.*check that the endpoint runs"):
        kill_while_saving()
    ceph.start_gateway()
    ceph_proxy.change()
    check_never_was(storage, ceph_client)


@pytest.mark.usefixtures("short_pauses")
def test_a_delta_that_fails_leaves_the_checkpoint_it_borrows_from(
    storage: S3Storage, ceph_client: S3Client, ceph_proxy: FaultProxy
) -> None:
    options = SaveOptions(full_every=4)
    last = read_checkpoint(storage, checkpoint_name(BEFORE)).manifest
    state = large_state(BEFORE) | {
        f"model.block.{block}.weight": torch.ones(1536, 1024) for block in range(BLOCKS)
    }
    ceph_proxy.change(refuse_code="AccessDenied", refuse_from_part=2)
    saver = AsyncSaver(
        storage, fence=lambda: None, on_commit=ignore_commit, options=options, last=last
    )
    saver.save(state, save_facts(checkpoint_name(NOW)))
    with pytest.raises(SaveError, match="AccessDenied"):
        saver.close()
    assert 0 < ceph_proxy.counters()["bytes_up"] < 30 << 20  # it was a delta
    ceph_proxy.change()
    check_never_was(storage, ceph_client)


SAVER = """
import sys
from strongroom.storage.s3 import S3Settings, S3Storage
from tests.e2e.test_save_to_ceph import NOW, save
save(S3Storage(S3Settings.from_url(sys.argv[1])), NOW)
"""


def saving_process(storage: S3Storage) -> subprocess.Popen[str]:
    """Start a process that saves and ends at once."""
    command = [sys.executable, "-c", SAVER, storage.url]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)


def test_a_process_that_ends_right_after_its_last_save_has_saved_or_failed(
    storage: S3Storage, ceph_client: S3Client, ceph_proxy: FaultProxy
) -> None:
    """Reports google/orbax#605 and Red-Hat-AI-Innovation-Team/training_hub PR 145."""
    ceph_proxy.change(refuse_code="AccessDenied", refuse_from_part=2)
    failed = saving_process(storage)
    _, said = failed.communicate()
    assert failed.returncode != 0
    assert "SaveError" in said
    assert "AccessDenied" in said
    assert [each.name for each in list_checkpoints(storage)] == [checkpoint_name(BEFORE)]
    storage.delete_many(info.key for info in storage.walk(f"runs/{checkpoint_name(NOW)}"))
    ceph_proxy.change()
    saved = saving_process(storage)
    _, said = saved.communicate()
    assert saved.returncode == 0, said
    check_stands(storage, NOW)
    assert uploads_in(ceph_client, storage.settings.bucket) == []


def test_a_process_that_is_killed_while_it_saves_leaves_nothing_but_parts(
    storage: S3Storage, ceph_client: S3Client, ceph_proxy: FaultProxy
) -> None:
    ceph_proxy.change(bytes_per_s=SLOW_BYTES_PER_S)
    process = saving_process(storage)
    wait_for(ceph_proxy, "parts", 5)
    process.kill()
    process.communicate()
    ceph_proxy.change()
    assert len(uploads_in(ceph_client, storage.settings.bucket)) == 1
    assert storage.discard_unfinished(older_than_s=3600) == []
    check_never_was(storage, ceph_client)


# --- loading ---------------------------------------------------------------------------------


@pytest.mark.parametrize("share", ["get_reset_share", "get_cut_share"])
def test_a_load_and_a_verification_survive_answers_that_break_off(
    storage: S3Storage, ceph_proxy: FaultProxy, share: str
) -> None:
    ceph_proxy.change(**{share: 0.3})
    check_stands(storage, BEFORE)
    assert ceph_proxy.counters()[share.removesuffix("_share")] > 0


def test_a_load_survives_a_gateway_that_is_killed_and_comes_back(
    storage: S3Storage, ceph: CephGateway, ceph_proxy: FaultProxy
) -> None:
    ceph_proxy.change(bytes_per_s=SLOW_BYTES_PER_S)
    with reading(check_values, storage):
        wait_for(ceph_proxy, "bytes_down", 10 << 20)
        restart(ceph)
    assert ceph_proxy.counters()["bytes_down"] > 54 << 20  # it was in the middle


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize("read", [check_values, check_stands])
def test_a_load_and_a_verification_fail_by_name_where_the_gateway_was_killed(
    storage: S3Storage,
    ceph: CephGateway,
    ceph_proxy: FaultProxy,
    read: Callable[[Storage, int], None],
) -> None:
    ceph_proxy.change(bytes_per_s=SLOW_BYTES_PER_S)

    def kill_while_reading() -> None:
        with reading(read, storage):
            wait_for(ceph_proxy, "bytes_down", 10 << 20)
            ceph.kill_gateway()

    with pytest.raises(StoreUnreachableError, match="check that the endpoint runs"):
        kill_while_reading()
    ceph.start_gateway()
    ceph_proxy.change()
    check_stands(storage, BEFORE)


def test_a_load_where_ranges_are_ignored_fails_by_name(
    storage: S3Storage, ceph_client: S3Client, ceph_proxy: FaultProxy
) -> None:
    for info in storage.walk(""):
        ceph_client.put_object_acl(
            Bucket=storage.settings.bucket, Key=f"team/store/{info.key}", ACL="public-read"
        )
    ceph_proxy.change(ignore_ranges=True)
    with pytest.raises(StorageError, match="this endpoint ignores Range"):
        check_values(storage, BEFORE)
    assert ceph_proxy.counters()["ignore_ranges"] > 0


# --- promotion -------------------------------------------------------------------------------


def test_a_promotion_points_to_a_checkpoint_and_copies_none(
    ceph_url: str, ceph_proxy: FaultProxy, custody: Custody, tmp_path: Path
) -> None:
    """Reports ROCm/TheRock#4776 and boto/boto3#397: stores refuse to copy what is large."""
    assert isinstance(custody.storage, LocalStorage)
    bucket = S3Storage(replace(S3Settings.from_url(ceph_url), endpoint_url=ceph_proxy.url))
    for info in custody.storage.walk(""):
        bucket.create(info.key, custody.storage.read(info.key))
    moved = Custody.open(bucket.url, keys=tmp_path / "keys", cache=tmp_path / "cache")
    last = resolve(moved, f"{RUN}@latest")
    assert verify_checkpoint(moved, last.name).passed
    assert evaluate_checkpoint(moved, last.name).verdict.passed
    before = list(bucket.walk("runs"))
    ceph_proxy.change()
    assert promote_checkpoint(moved, last, "staging").moved
    counters = ceph_proxy.counters()
    assert counters["bytes_down"] > last.manifest.num_bytes  # its bytes are read again
    assert counters["bytes_up"] < 100_000
    assert counters["copies"] == counters["parts"] == 0
    assert list(bucket.walk("runs")) == before
