"""What a user finds with the `strongroom` command after the main job has gone to its end."""

from __future__ import annotations

import json

import pytest

from tests.support.main_path import EVERY_STEPS, RUN, STEPS, MainPathRun

pytestmark = pytest.mark.e2e

SAVED = range(EVERY_STEPS, STEPS + 1, EVERY_STEPS)


def test_every_checkpoint_is_listed_verified_and_evaluated(finished: MainPathRun) -> None:
    done = finished.command("ls", "--json")
    assert done.returncode == 0, done.stderr
    lines = json.loads(done.stdout)["checkpoints"]
    assert [line["step"] for line in lines] == list(SAVED)
    assert all(line["recorded"] and line["verified"] for line in lines)
    assert all(line["evaluated"] is not None for line in lines)


def test_the_ledger_proves(finished: MainPathRun) -> None:
    done = finished.command("ledger", "verify")
    assert done.returncode == 0, done.stderr


def test_the_best_checkpoint_reaches_production_only_with_two_reviewers(
    finished: MainPathRun,
) -> None:
    name = f"{RUN}/{STEPS}"
    refused = finished.command("promote", name, "--stage", "production")
    assert refused.returncode == 40, refused.stderr
    assert "approved by 2 different persons" in refused.stderr
    for person in ("reviewer-1", "reviewer-2"):
        assert finished.command("keys", "add", person).returncode == 0
        approved = finished.command("approve", name, "--stage", "production", "--as", person)
        assert approved.returncode == 0, approved.stderr
    promoted = finished.command("promote", name, "--stage", "production")
    assert promoted.returncode == 0, promoted.stderr
    assert finished.command("show", "@production").returncode == 0


def test_the_report_is_one_page_that_needs_nothing_else(finished: MainPathRun) -> None:
    (report,) = finished.reports.glob("*.html")
    page = report.read_text(encoding="utf-8")
    assert "<svg" in page
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "<script" not in page
