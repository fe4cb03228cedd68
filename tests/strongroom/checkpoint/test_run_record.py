from __future__ import annotations

from dataclasses import replace

import pytest

from strongroom.checkpoint.run_record import (
    Probe,
    RunRecord,
    create_run,
    read_run,
)
from strongroom.errors import (
    ConflictError,
    FormatError,
    InputError,
    UnknownNameError,
)
from strongroom.names import Digest
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
        (b'"strongroom.run/2"', b'"strongroom.run/9"'),
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


def test_a_record_of_version_1_keeps_its_bytes_and_says_nothing_of_exactness() -> None:
    old = replace(RECORD, version=1)
    assert b"inexact" not in old.to_bytes()
    assert RunRecord.from_bytes(old.to_bytes(), where="run.json") == old
    told = replace(RECORD, inexact=("compiled anew",))
    assert RunRecord.from_bytes(told.to_bytes(), where="run.json") == told


def test_fields_that_are_free_may_differ_between_launches() -> None:
    storage = MemoryStorage()
    create_run(storage, RECORD)
    placed = replace(RECORD, config={**RECORD.config, "train": {"steps": 40, "learning_rate": 0.1}})
    free = ["config.train.learning_rate"]
    assert create_run(storage, placed, free_fields=free) == RECORD
    with pytest.raises(ConflictError, match=r"config\.train\.learning_rate"):
        create_run(storage, placed)
