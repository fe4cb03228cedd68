"""What a person sees in the Dagster UI after the main job, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver

from tests.support.browser import (
    chromium,
    lineage_page,
    open_page,
    partition_page,
    user_interface,
)
from tests.support.main_path import EVERY_STEPS, RUN, STEPS, MainPathRun

pytestmark = [pytest.mark.e2e, pytest.mark.chromium]

GRAPH = (
    "base_model",
    "curated_dataset",
    "adapted_tokenizer",
    "finetune_run",
    "checkpoint",
    "verified_checkpoint",
    "evaluated_checkpoint",
    "promoted_checkpoint",
    "production_model",
)


@pytest.fixture(scope="module")
def address(finished: MainPathRun) -> Iterator[str]:
    with user_interface(finished.environment) as started:
        yield started


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    with chromium(Path(tmp_path_factory.mktemp("profile"))) as opened:
        yield opened


def test_the_lineage_page_shows_the_whole_graph(driver: webdriver.Chrome, address: str) -> None:
    open_page(driver, lineage_page(address), *GRAPH)


@pytest.mark.parametrize("asset", ["checkpoint", "verified_checkpoint", "evaluated_checkpoint"])
def test_every_checkpoint_is_materialised(
    driver: webdriver.Chrome, address: str, asset: str
) -> None:
    steps = range(EVERY_STEPS, STEPS + 1, EVERY_STEPS)
    open_page(
        driver,
        partition_page(address, asset, f"{RUN}@{STEPS}"),
        *(f"{RUN}@{step}" for step in steps),
        f"Materialized ({len(steps)})",
        "Failed (0)",
        "Missing (0)",
    )


@pytest.mark.parametrize("asset", ["verified_checkpoint", "evaluated_checkpoint"])
def test_the_blocking_check_of_a_checkpoint_passed(
    driver: webdriver.Chrome, address: str, asset: str
) -> None:
    page = f"{address}/assets/{asset}?view=checks"
    open_page(driver, page, "This is a blocking asset check", "Passed", f"{RUN}@{STEPS}")


def test_the_evaluation_of_a_checkpoint_is_there(driver: webdriver.Chrome, address: str) -> None:
    partition = f"{RUN}@{STEPS}"
    page = partition_page(address, "evaluated_checkpoint", partition)
    open_page(driver, page, "held_out_loss", "base_loss")
