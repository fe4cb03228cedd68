from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from strongroom.parent import PARENT_VARIABLE

CHILD = "from strongroom.parent import *; die_with_parent(); "
PARENT = f"""
import subprocess, sys, time
from strongroom.parent import announce_parent
announce_parent()
child = subprocess.Popen(
    [sys.executable, "-c", {CHILD + "print('ready', flush=True); import time; time.sleep(600)"!r}],
    stdout=subprocess.PIPE, text=True, start_new_session=True,
)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(600)
"""


def is_running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except FileNotFoundError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] != "Z"  # a zombie has ended


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_child_dies_with_its_parent_even_in_a_session_of_its_own(number: signal.Signals) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert is_running(child)
    parent.send_signal(number)
    parent.wait()
    while is_running(child):  # pytest's timeout ends a failure
        time.sleep(0.01)


def test_a_child_whose_parent_has_ended_already_does_not_begin() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD + "print('began')"],
        env={**os.environ, PARENT_VARIABLE: "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == ""
    assert done.returncode == 1
    assert "has ended" in done.stderr


def test_a_process_that_nobody_announced_himself_to_begins() -> None:
    environment = {key: value for key, value in os.environ.items() if key != PARENT_VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", CHILD + "print('began')"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "began\n"
