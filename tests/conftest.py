"""Rules every test obeys.

Laws are checked without a stopwatch, and under CI=true always on the same examples.

A test that needs a system package names it by a marker and is skipped where it is missing. Under
CI=true nothing may be skipped: a skip is a failure there.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
from collections.abc import Generator, Iterator

import hypothesis
import pytest

from tests.support.buckets import (
    ceph,
    ceph_client,
    ceph_proxy,
    ceph_proxy_server,
    ceph_url,
)
from tests.support.ceph import COMMANDS as CEPH_COMMANDS
from tests.support.moto_server import moto_server, s3_url
from tests.support.slurm import COMMANDS as SLURM_COMMANDS
from tests.support.trained_store import custody, trained_store

# Fixtures for every test.
__all__ = [
    "ceph",
    "ceph_client",
    "ceph_proxy",
    "ceph_proxy_server",
    "ceph_url",
    "custody",
    "moto_server",
    "s3_url",
    "trained_store",
]

CI = os.environ.get("CI") == "true"

hypothesis.settings.register_profile(
    "strongroom",
    deadline=None,
    derandomize=CI,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("strongroom")

SYSTEM_PACKAGES = {
    "ceph": CEPH_COMMANDS,
    "chromium": ("chromium", "chromedriver"),
    "compiler": ("g++",),
    "slurm": SLURM_COMMANDS,
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "ceph" in getattr(item, "fixturenames", ()):
            item.add_marker("ceph")
        for marker, commands in SYSTEM_PACKAGES.items():
            missing = [name for name in commands if shutil.which(name) is None]
            if item.get_closest_marker(marker) and missing:
                reason = f"needs the command(s) {', '.join(missing)}: run `make system-deps`"
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_configure() -> None:
    _take_signals_of_a_fresh_process()


@pytest.fixture(autouse=True)
def fresh_signals() -> Iterator[None]:
    """What a test sets, or Dagster for it, ends with the test."""
    yield
    _take_signals_of_a_fresh_process()


@pytest.fixture(autouse=True)
def fresh_logging() -> Iterator[None]:
    """A command sets levels for its whole process, which here goes on to other tests."""
    levels = {name: logging.getLogger(name).level for name in ("", "strongroom")}
    yield
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def _take_signals_of_a_fresh_process() -> None:
    # A shell that starts a job in the background has it ignore SIGINT; Dagster then ignores SIGTERM
    # too, and every process that a test starts inherits both.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and CI and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped under CI: {report.longrepr}"
    return report
