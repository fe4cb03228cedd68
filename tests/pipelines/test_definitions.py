"""What Dagster loads: everything by name, nothing heavy, nothing from the environment."""

from __future__ import annotations

import os
import subprocess
import sys

import dagster as dg

from pipelines.definitions import defs
from resources.store import ROOT

HEAVY = ("torch", "transformers", "peft", "great_expectations", "datasets", "boto3", "pandas")
LOAD = f"""
import sys
import pipelines.definitions
print([name for name in {HEAVY!r} if name in sys.modules])
"""

LINEAGE = {
    "base_model": set(),
    "curated_dataset": {"base_model"},
    "adapted_tokenizer": {"base_model", "curated_dataset"},
    "finetune_run": {"base_model", "curated_dataset", "adapted_tokenizer"},
    "checkpoint": {"finetune_run"},
    "verified_checkpoint": {"checkpoint"},
    "evaluated_checkpoint": {"verified_checkpoint"},
    "promoted_checkpoint": {"evaluated_checkpoint"},
    "production_model": {"promoted_checkpoint"},
}


def test_loading_needs_no_environment_and_imports_nothing_heavy() -> None:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("STRONGROOM_")
    }
    loaded = subprocess.run(
        [sys.executable, "-c", LOAD],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )

    assert loaded.stdout.strip() == "[]"


def test_the_graph_reads_as_the_walk() -> None:
    graph = defs.resolve_asset_graph()
    found = {
        key.to_user_string(): {parent.to_user_string() for parent in graph.get(key).parent_keys}
        for key in graph.get_all_asset_keys()
    }

    assert found == LINEAGE


def test_only_checkpoint_comes_from_outside() -> None:
    graph = defs.resolve_asset_graph()
    outside = {
        key.to_user_string()
        for key in graph.get_all_asset_keys()
        if not graph.get(key).is_executable
    }

    assert outside == {"checkpoint"}


def test_jobs_schedules_and_sensors_by_name() -> None:
    repository = defs.get_repository_def()
    jobs = {job.name for job in repository.get_all_jobs()} - {"__ASSET_JOB"}

    assert jobs == {"finetune", "govern", "production", "reconcile"}
    assert {schedule.name for schedule in repository.schedule_defs} == {"nightly"}
    assert {sensor.name: sensor.default_status for sensor in repository.sensor_defs} == {
        "govern_automation": dg.DefaultSensorStatus.RUNNING,
        "reconcile_sensor": dg.DefaultSensorStatus.RUNNING,
    }


def test_partitions() -> None:
    graph = defs.resolve_asset_graph()
    partitioned: dict[str, str | None] = {}
    for key in graph.get_all_asset_keys():
        definition = graph.get(key).partitions_def
        if isinstance(definition, dg.DynamicPartitionsDefinition):
            partitioned[key.to_user_string()] = definition.name

    assert partitioned == {
        "finetune_run": "runs",
        "checkpoint": "checkpoints",
        "verified_checkpoint": "checkpoints",
        "evaluated_checkpoint": "checkpoints",
        "promoted_checkpoint": "checkpoints",
    }


def test_everything_resolves() -> None:
    dg.Definitions.validate_loadable(defs)
