"""`make dev` for tests: Dagster's webserver and daemon in processes of their own, on 127.0.0.1."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from resources.store import ROOT

START_TIMEOUT_S = 240
STOP_TIMEOUT_S = 90
LAUNCH = """
mutation Launch($params: ExecutionParams!) {
  launchRun(executionParams: $params) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on PythonError { message }
    ... on RunConfigValidationInvalid { errors { message } }
  }
}
"""
TERMINATE = """
mutation Terminate($run: String!) {
  terminateRun(runId: $run, terminatePolicy: SAFE_TERMINATE) {
    __typename
    ... on TerminateRunFailure { message }
    ... on PythonError { message }
  }
}
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class DagsterServer:
    """A webserver that answers at `url`, with its daemon."""

    url: str
    log: Path

    def launch(self, job: str, *, partition: str, config: dict[str, Any]) -> str:
        """Launch a job for one partition, as the UI does; return the run's id."""
        answer = self.ask(
            LAUNCH,
            params={
                "selector": {
                    "repositoryLocationName": "strongroom",
                    "repositoryName": "__repository__",
                    "jobName": job,
                },
                "runConfigData": config,
                "executionMetadata": {"tags": [{"key": "dagster/partition", "value": partition}]},
            },
        )["launchRun"]
        assert answer["__typename"] == "LaunchRunSuccess", answer
        return str(answer["run"]["runId"])

    def terminate(self, run_id: str) -> None:
        """Terminate a run, as the UI does."""
        answer = self.ask(TERMINATE, run=run_id)["terminateRun"]
        assert answer["__typename"] == "TerminateRunSuccess", answer

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:  # noqa: ANN401 -- JSON
        """Send a GraphQL query and return its data."""
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(  # noqa: S310 -- our own http server
            f"{self.url}/graphql", data=body, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310 -- as above
            found: dict[str, Any] = json.loads(answer.read())
        assert "errors" not in found, found
        return dict(found["data"])


@contextmanager
def dagster_server(environment: dict[str, str], log: Path) -> Iterator[DagsterServer]:
    """Start `python -m pipelines.dev` and stop it, with all it started, at the end."""
    port = _free_port()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "pipelines.dev"),
                *("--host", "127.0.0.1", "--port", str(port)),
            ],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    server = DagsterServer(url=f"http://127.0.0.1:{port}", log=log)
    try:
        wait_for(lambda: _answers(server, process), START_TIMEOUT_S, log)
        yield server
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            pytest.fail(f"dagster dev did not stop on SIGINT; its log: {log}")


def wait_for(is_so: Callable[[], bool], timeout_s: float, log: Path) -> None:
    """Return when `is_so()`; fail with the end of the server's log when that takes too long."""
    deadline_s = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > deadline_s:
            tail = log.read_text(errors="replace")[-8000:]
            pytest.fail(f"waited {timeout_s:g} s in vain; the end of the server's log:\n{tail}")
        time.sleep(0.5)


def training_processes(folder: Path) -> dict[int, str]:
    """Return process numbers and command lines of trainings that use something in `folder`."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if "strongroom.training" in command and str(folder) in command:
            found[int(entry.name)] = command
    return found


def _answers(server: DagsterServer, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, server.log.read_text(errors="replace")[-8000:]
    try:
        found = server.ask(
            "{ workspaceOrError { ... on Workspace { locationEntries { loadStatus } } } }"
        )
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
    entries = found["workspaceOrError"]["locationEntries"]
    return bool(entries) and all(entry["loadStatus"] == "LOADED" for entry in entries)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
