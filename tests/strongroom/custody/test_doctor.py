"""What is gathered before a run starts, from nothing at all, or from a store that has the run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from strongroom.checkpoint.run_record import read_run
from strongroom.custody.context import Custody
from strongroom.custody.doctor import examine, preflight_run, run_facts, store_facts
from strongroom.custody.verify import verify_checkpoint
from strongroom.errors import DataError, ModelSourceError
from strongroom.ledger.events import EventKind
from strongroom.names import RunKey
from strongroom.training.config import RunConfig, load_config
from strongroom.training.preflight.report import PreflightReport
from strongroom.verification.ladder import Rung
from tests.support.forged_runs import forge, newest_manifest, start_attempt, without_tensors
from tests.support.tiny_recipe import make_tiny_recipe
from tests.support.trained_store import RUN, STEPS


def names(report: PreflightReport) -> list[str]:
    return [found.check for found in report.findings]


def look(recipe: Path, *, store_url: str | None, run: RunKey = RUN) -> PreflightReport:
    return examine(
        load_config(recipe),
        run=run,
        base_dir=recipe.parent,
        cache=recipe.parent / "cache",
        store_url=store_url,
        keys=recipe.parent / "keys",
    )


@pytest.fixture
def config(trained_store: Path) -> RunConfig:
    return load_config(trained_store / "tiny.yaml")


def wide(config: RunConfig, ranks: int) -> RunConfig:
    """Return it on so many ranks."""
    train = replace(config.train, world_size=ranks, batch_rows=ranks)
    return replace(config, train=train)


# --- before anything is in a store ----------------------------------------------------


def test_a_configuration_is_examined_without_a_store(tmp_path: Path) -> None:
    recipe = make_tiny_recipe(tmp_path)
    report = look(recipe, store_url=None)
    assert names(report) == []
    facts = report.facts
    assert facts.machine is not None
    assert facts.model is not None
    assert facts.model.shape is not None
    assert facts.model.shape.trainable == 4 * 4 * (64 + 64 + 64 + 32) // 2
    assert facts.tokenizer is not None
    assert facts.tokenizer.template_fault is None
    assert facts.data is not None
    assert (facts.data.sampled_rows, facts.data.num_rows) == (60, None)
    assert (facts.store, facts.run is not None and facts.run.newest) == (None, None)


def test_a_store_that_is_not_made_yet_stays_so(tmp_path: Path) -> None:
    recipe = make_tiny_recipe(tmp_path)
    report = look(recipe, store_url=str(tmp_path / "none" / "store"))
    assert not (tmp_path / "none").exists()
    assert not (tmp_path / "keys").exists()
    assert report.facts.store is not None
    assert not report.facts.store.exists
    assert report.facts.store.free_bytes is not None
    assert report.facts.store.free_bytes > 0


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    recipe = make_tiny_recipe(tmp_path)
    (tmp_path / "rows.jsonl").unlink()
    with pytest.raises(DataError):
        look(recipe, store_url=None)
    shutil.rmtree(tmp_path / "model")
    with pytest.raises(ModelSourceError):
        look(recipe, store_url=None)


def test_looking_never_imports_torch(tmp_path: Path) -> None:
    """It is done before each launch, and in every process of Dagster that launches."""
    recipe = make_tiny_recipe(tmp_path)
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from strongroom.custody.doctor import examine\n"
        "from strongroom.names import RunKey\n"
        "from strongroom.training.config import load_config\n"
        "path = Path(sys.argv[1])\n"
        "examine(load_config(path), run=RunKey('r'), base_dir=path.parent,\n"
        "        cache=path.parent / 'cache', store_url=None, keys=path.parent / 'keys')\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(recipe)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("url", "storage_class"),
    [
        ("s3://models/team?storage_class=STANDARD_IA", "STANDARD_IA"),
        ("s3://models/team?endpoint_url=http://127.0.0.1:1", None),
    ],
)
def test_a_remote_store_is_known_by_its_url(url: str, storage_class: str | None) -> None:
    facts = store_facts(url, exists=False)
    assert (facts.is_remote, facts.storage_class, facts.free_bytes) == (True, storage_class, None)


# --- with a run in a store ------------------------------------------------------------


def test_a_run_that_is_stored_is_examined_from_the_store(
    custody: Custody, config: RunConfig
) -> None:
    record = read_run(custody.storage, RUN)
    report = preflight_run(custody, record, config)
    assert names(report) == []
    facts = report.facts
    assert facts.data is not None
    assert facts.data.num_rows == 48  # of 60 rows, a fifth is held out
    assert facts.data.sampled_rows == 48
    assert facts.run is not None
    assert [saved.step for saved in facts.run.checkpoints] == list(reversed(STEPS))
    assert all(saved.is_whole for saved in facts.run.checkpoints)
    assert facts.run.num_checkpoints == 2
    assert facts.store is not None
    assert (facts.store.exists, facts.store.is_remote) == (True, False)
    assert report.estimates.num_checkpoints == 0


def test_the_size_of_a_checkpoint_is_what_is_estimated(custody: Custody, config: RunConfig) -> None:
    report = preflight_run(custody, read_run(custody.storage, RUN), config)
    assert report.facts.run is not None
    (newest, *_) = report.facts.run.checkpoints
    assert report.estimates.checkpoint_bytes == pytest.approx(newest.num_bytes, rel=0.1)


def test_examining_a_configuration_whose_run_is_stored_looks_into_the_store(
    custody: Custody, tmp_path: Path, trained_store: Path
) -> None:
    recipe = tmp_path / "tiny.yaml"
    shutil.copy(trained_store / "tiny.yaml", recipe)
    report = look(recipe, store_url=custody.store.url)  # its rows are not beside it
    assert report.facts.run is not None
    assert report.facts.run.newest is not None
    other = look(
        trained_store / "tiny.yaml", store_url=str(trained_store / "store"), run=RunKey("another")
    )
    assert other.facts.run is not None
    assert other.facts.run.newest is None


def test_of_ranks_that_start_elsewhere_no_machine_is_told(
    custody: Custody, config: RunConfig
) -> None:
    record = read_run(custody.storage, RUN)
    report = preflight_run(custody, record, config, ranks_are_here=False)
    assert report.facts.machine is None
    assert (report.estimates.host, report.estimates.device) == (None, None)
    assert report.estimates.memory is not None


def test_verification_and_quarantine_are_the_ledgers_word(
    custody: Custody, config: RunConfig
) -> None:
    newest = newest_manifest(custody, RUN).name
    verify_checkpoint(custody, newest, up_to=Rung.BYTES)
    first, second = run_facts(custody, RUN, config).checkpoints
    assert (first.is_verified, second.is_verified) == (True, False)
    custody.record(
        EventKind.CHECKPOINT_QUARANTINED,
        checkpoint_id=newest_manifest(custody, RUN).checkpoint_id,
        checkpoint=newest,
        reason="a test",
    )
    facts = run_facts(custody, RUN, config)
    assert facts.checkpoints[0].is_quarantined
    assert facts.newest == facts.checkpoints[1]


def test_five_checkpoints_that_nobody_verified_are_found(
    custody: Custody, config: RunConfig
) -> None:
    record = read_run(custody.storage, RUN)
    for step in (5, 6, 7):
        forge(custody, RUN, attempt=1, step=step)
    assert names(preflight_run(custody, record, config)) == ["verification-off"]
    verify_checkpoint(custody, newest_manifest(custody, RUN).name, up_to=Rung.BYTES)
    assert "verification-off" not in names(preflight_run(custody, record, config))


def test_the_newest_checkpoints_are_looked_at_and_no_more(
    custody: Custody, config: RunConfig
) -> None:
    for step in (5, 6, 7, 8):
        forge(custody, RUN, attempt=1, step=step)
    facts = run_facts(custody, RUN, config)
    assert [saved.step for saved in facts.checkpoints] == [8, 7, 6, 5, 4]
    assert facts.num_checkpoints == 6
    strict = replace(config.preflight, numbers={"unverified_checkpoints": 6})
    assert len(run_facts(custody, RUN, replace(config, preflight=strict)).checkpoints) == 6


@pytest.mark.parametrize(
    ("prefix", "check"),
    [
        ("optim.", "resume-without-optimizer"),
        ("optim.state.base_model.model.model.layers.0.", "optimizer-left-out"),
        ("rng.", "data-state-left-out"),
    ],
)
@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_checkpoint_that_lacks_state_is_found_before_anything_resumes_from_it(
    custody: Custody, config: RunConfig, prefix: str, check: str, is_recorded: bool
) -> None:
    record = read_run(custody.storage, RUN)
    lacking = without_tensors(newest_manifest(custody, RUN), prefix)
    forge(custody, RUN, attempt=2, step=1, is_recorded=is_recorded, **lacking)
    report = preflight_run(custody, record, config)
    assert names(report) == [check]
    (finding,) = report.findings
    assert finding.severity == "warn"
    assert f"goes on from {RUN}/{STEPS[-1]}" in finding.mend


def test_where_no_checkpoint_is_whole_the_launch_is_stopped(
    custody: Custody, config: RunConfig
) -> None:
    record = read_run(custody.storage, RUN)
    for step in STEPS:
        name = newest_manifest(custody, RUN).name
        state = newest_manifest(custody, RUN).state | {"cursor": {}}
        forge(custody, RUN, attempt=name.attempt.number, step=step, is_recorded=False, state=state)
    report = preflight_run(custody, record, config)
    assert [found.check for found in report.stopping] == ["data-state-left-out"]
    assert preflight_run(custody, record, config, fresh_start=True).stopping == ()


def test_damaged_and_unfinished_checkpoints_are_left_to_verification(
    custody: Custody, config: RunConfig
) -> None:
    folder = f"runs/{RUN}/attempt-0001"
    custody.storage.create(f"{folder}/step-00000009/__0_0.distcp", b"unfinished")
    custody.storage.replace(f"{folder}/step-00000004/manifest.json", b"{}")
    custody.storage.create(f"{folder}/notes/readme.txt", b"not ours")
    facts = run_facts(custody, RUN, config)
    assert [saved.step for saved in facts.checkpoints] == [2]


# --- evidence that a run can go on at another size ------------------------------------


def resume(custody: Custody, *, before: int, after: int, attempt: int) -> None:
    """Make it look as if a checkpoint of `before` ranks was gone on from with `after` ranks."""
    saved = forge(custody, RUN, attempt=attempt, step=1, world_size=before)
    start_attempt(custody, RUN, attempt + 1, resumed_from=saved.checkpoint_id)
    forge(custody, RUN, attempt=attempt + 1, step=2, world_size=after)


def test_resumes_at_other_sizes_are_evidence(custody: Custody, config: RunConfig) -> None:
    start_attempt(custody, RUN, 1, resumed_from=None)
    assert run_facts(custody, RUN, wide(config, 32)).resharded == ()
    resume(custody, before=32, after=8, attempt=3)
    resume(custody, before=8, after=8, attempt=5)
    assert run_facts(custody, RUN, wide(config, 32)).resharded == ((8, 8), (32, 8))
    assert run_facts(custody, RunKey("another"), wide(config, 32)).resharded == ((8, 8), (32, 8))
    # Nobody asks where every release is tested at that size.
    assert run_facts(custody, RUN, wide(config, 4)).resharded == ()


def test_a_resume_that_led_nowhere_or_is_gone_is_none(custody: Custody, config: RunConfig) -> None:
    saved = forge(custody, RUN, attempt=3, step=1, world_size=32)
    start_attempt(custody, RUN, 4, resumed_from=saved.checkpoint_id)
    assert run_facts(custody, RUN, wide(config, 32)).resharded == ()
    resume(custody, before=32, after=8, attempt=5)
    custody.storage.delete(f"runs/{RUN}/attempt-0005/step-00000001/manifest.json")
    assert run_facts(custody, RUN, wide(config, 32)).resharded == ()
