from __future__ import annotations

from dataclasses import replace
from threading import Barrier, Thread

import pytest

from strongroom.checkpoint.run_record import (
    MAX_CLAIMS,
    Probe,
    RunRecord,
    check_fence,
    claim_attempt,
    create_run,
    newest_attempt,
    read_run,
)
from strongroom.errors import (
    ConflictError,
    FencedError,
    FormatError,
    InputError,
    UnknownNameError,
)
from strongroom.names import Attempt, Digest, RunKey
from strongroom.storage.memory import MemoryStorage
from tests.support.checkpoints import INPUTS, RUN

RECORD = RunRecord(
    run=RUN,
    author="deniz",
    created="2026-01-31T08:15:00.123Z",
    config={"train": {"steps": 40, "learning_rate": 0.001}, "model": {"dtype": "bfloat16"}},
    inputs=INPUTS,
    code={"revision": "abc"},
    environment={"torch": "2.13.0"},
    probe=Probe(token_ids=(1, 5, 9), trained=(False, True, True)),
)


def test_a_record_reads_back_as_it_was_written() -> None:
    storage = MemoryStorage()
    assert create_run(storage, RECORD) == RECORD
    assert read_run(storage, RUN) == RECORD


def test_creating_the_same_run_again_returns_the_one_that_stands() -> None:
    storage = MemoryStorage()
    create_run(storage, RECORD)
    later = replace(RECORD, author="efe", created="2026-02-01T00:00:00.000Z", code={})
    assert create_run(storage, later) == RECORD
    assert read_run(storage, RUN) == RECORD


def test_another_run_of_the_same_key_is_refused_by_what_differs() -> None:
    storage = MemoryStorage()
    create_run(storage, RECORD)
    config = {"train": {"steps": 60, "learning_rate": 0.001}, "model": {"dtype": "bfloat16"}}
    inputs = replace(INPUTS, dataset=Digest.of(b"other"))
    with pytest.raises(ConflictError) as caught:
        create_run(storage, replace(RECORD, config=config, inputs=inputs))
    message = str(caught.value)
    assert "config.train.steps (40, asked for 60)" in message
    assert f"dataset ({INPUTS.dataset.short}, asked for {inputs.dataset.short})" in message
    assert "learning_rate" not in message
    assert "another run key" in message
    assert read_run(storage, RUN) == RECORD


def test_an_unknown_run_is_named() -> None:
    with pytest.raises(UnknownNameError, match="run nightly-7: there is no such run in memory://"):
        read_run(MemoryStorage(), RUN)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"strongroom.run/1"', b'"strongroom.run/2"'),
        (b'"author":"deniz",', b""),
        (b'"trained":[false,true,true]', b'"trained":[false,true]'),
        (b'{"author"', b'{ "author"'),
        (b'"code":', b'"colour":1,"code":'),
        (b'"run":"nightly-7"', b'"run":"nightly-8"'),
        (b'"run":"nightly-7"', b'"run":7'),
        (b'"inputs":{', b'"inputs":{"a_seed":"sha256:00",'),
    ],
)
def test_a_malformed_record_is_refused(old: bytes, new: bytes) -> None:
    storage = MemoryStorage()
    create_run(storage, RECORD)
    data = storage.read("runs/nightly-7/run.json")
    assert old in data
    storage.replace("runs/nightly-7/run.json", data.replace(old, new))
    with pytest.raises(FormatError, match=r"runs/nightly-7/run\.json"):
        read_run(storage, RUN)


def test_a_probe_flags_every_token() -> None:
    with pytest.raises(InputError, match="3 tokens, got 1"):
        Probe(token_ids=(1, 2, 3), trained=(True,))
    with pytest.raises(InputError, match="a trained token after the first"):
        Probe(token_ids=(1, 2, 3), trained=(True, False, False))


def test_attempts_count_up_and_fence_off_lower_ones() -> None:
    storage = MemoryStorage()
    assert newest_attempt(storage, RUN) is None
    first, second = claim_attempt(storage, RUN), claim_attempt(storage, RUN)
    assert (first, second) == (Attempt(1), Attempt(2))
    assert newest_attempt(storage, RUN) == second
    check_fence(storage, RUN, second)
    with pytest.raises(FencedError, match="attempt-0001 may not commit any more"):
        check_fence(storage, RUN, first)


def test_claiming_passes_over_what_is_no_attempt() -> None:
    storage = MemoryStorage()
    claim_attempt(storage, RUN)
    storage.create("runs/nightly-7/attempt-9.bak/attempt.json", b"{}")
    storage.create("runs/nightly-7/attempt-0005/left-over", b"")  # of a process that died early
    assert newest_attempt(storage, RUN) == Attempt(1)
    assert claim_attempt(storage, RUN) == Attempt(6)


def test_runs_of_near_names_do_not_share_attempts() -> None:
    storage = MemoryStorage()
    assert claim_attempt(storage, RunKey("a")) == Attempt(1)
    assert claim_attempt(storage, RunKey("a-1")) == Attempt(1)


def test_launches_at_the_same_moment_get_different_numbers() -> None:
    storage = MemoryStorage()
    barrier = Barrier(8)
    taken: list[Attempt] = []

    def launch() -> None:
        barrier.wait()
        taken.append(claim_attempt(storage, RUN))

    threads = [Thread(target=launch) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == [Attempt(number) for number in range(1, 9)]


def test_a_storm_of_launches_is_given_up_on() -> None:
    class Stale(MemoryStorage):
        def folders(self, folder: str) -> list[str]:
            return [name for name in super().folders(folder) if name == "none of them"]

    storage = Stale()
    for number in range(1, MAX_CLAIMS + 1):
        storage.create(f"runs/nightly-7/{Attempt(number)}/attempt.json", b"{}")
    with pytest.raises(ConflictError, match="were taken by other processes"):
        claim_attempt(storage, RUN)
