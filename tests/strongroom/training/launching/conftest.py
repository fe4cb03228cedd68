"""What is launched on Slurm, and how."""

from __future__ import annotations

from pathlib import Path

import pytest

from strongroom.storage.store import Store, create_store
from strongroom.training.launching.slurm_settings import SlurmSettings
from strongroom.training.launching.spec import Launch, LaunchSettings
from strongroom.training.placement import Placement
from tests.support.scripted_slurm import RUN


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return create_store(str(tmp_path / "store"))


@pytest.fixture
def spec(store: Store, tmp_path: Path) -> Launch:
    return Launch(
        store_url=store.url,
        run=RUN,
        keys=tmp_path / "keys",
        cache=tmp_path / "cache",
        settings=LaunchSettings(placement=Placement(strategy="fsdp2", world_size=2)),
        grace_s=30.0,
    )


@pytest.fixture
def quick(tmp_path: Path) -> SlurmSettings:
    """Settings for a cluster that is none."""
    return SlurmSettings(
        shared_folder=tmp_path / "shared", tasks_per_node=2, poll_s=0.01, job_poll_s=0.01
    )
