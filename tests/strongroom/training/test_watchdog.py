"""A watchdog that stays quiet while training goes on, and ends what does not, whatever holds it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from strongroom.errors import HungError
from strongroom.training.watchdog import Watchdog

LONG_S = 120.0
"""Never waited for."""


class Ending:
    """Takes note of how the process would be ended."""

    def __init__(self) -> None:
        self.errors: list[HungError] = []
        self.codes: list[int] = []
        self.has_ended = threading.Event()

    def end(self, code: int) -> None:
        self.codes.append(code)
        self.has_ended.set()

    def watchdog(self, timeout_s: float) -> Watchdog:
        return Watchdog(timeout_s, tell=self.errors.append, end=self.end)


def test_beats_keep_it_quiet() -> None:
    ending = Ending()
    with ending.watchdog(2.5) as watchdog:
        for step in range(35):
            watchdog.beat(f"step {step}")
            time.sleep(0.1)
    assert ending.errors == []
    assert ending.codes == []


def test_silence_is_told_and_ends_the_process(capfd: pytest.CaptureFixture[str]) -> None:
    ending = Ending()
    with ending.watchdog(0.3) as watchdog:
        watchdog.beat("rank 1, step 7")
        assert ending.has_ended.wait(LONG_S)
    assert ending.codes == [HungError.exit_code]
    (error,) = ending.errors
    assert "rank 1, step 7: expected it to end within 0.3 s (launch.hang_timeout_s)" in str(error)
    # Where every thread stood: this one waits above, and the watchdog's own says so.
    stacks = capfd.readouterr().err
    assert "test_silence_is_told_and_ends_the_process" in stacks
    assert stacks.lower().count("thread 0x") >= 2


def test_it_says_how_it_began_where_nothing_was_done_yet() -> None:
    ending = Ending()
    with ending.watchdog(0.2):
        assert ending.has_ended.wait(LONG_S)
    assert str(ending.errors[0]).startswith("starting: ")


def test_what_has_a_limit_of_its_own_may_take_any_time() -> None:
    ending = Ending()
    with ending.watchdog(0.2) as watchdog:
        with watchdog.paused("after a save"):
            assert not ending.has_ended.wait(1.0)
        assert ending.has_ended.wait(LONG_S)  # and then it is watched again
    assert str(ending.errors[0]).startswith("after a save: ")


def test_it_watches_again_where_what_it_paused_for_failed() -> None:
    ending = Ending()
    with ending.watchdog(0.2) as watchdog:
        with pytest.raises(OSError, match="disk"), watchdog.paused("after a save"):
            raise OSError("disk")
        assert ending.has_ended.wait(LONG_S)


def test_an_end_that_cannot_be_told_comes_all_the_same() -> None:
    codes: list[int] = []
    has_ended = threading.Event()

    def fail(_error: HungError) -> None:
        raise BrokenPipeError("nobody listens")

    def end(code: int) -> None:
        codes.append(code)
        has_ended.set()

    # The watchdog's thread dies of it here, where the process goes on.
    threads = threading.excepthook
    threading.excepthook = lambda _: None
    try:
        with Watchdog(0.2, tell=fail, end=end):
            assert has_ended.wait(LONG_S)
    finally:
        threading.excepthook = threads
    assert codes == [HungError.exit_code]


def test_closed_it_ends_nothing_any_more() -> None:
    ending = Ending()
    with ending.watchdog(0.3):
        pass
    assert not ending.has_ended.wait(1.0)
    assert "watchdog" not in [thread.name for thread in threading.enumerate()]


# --- in processes of their own, which do end ------------------------------------------


def run(code: str) -> subprocess.CompletedProcess[str]:
    setting = (
        "import ctypes, faulthandler, sys, time\n"
        "from strongroom.training import watchdog\n"
        "def tell(error):\n"
        "    print(type(error).__name__, flush=True)\n"
    )
    return subprocess.run(
        [sys.executable, "-c", setting + code],
        capture_output=True,
        text=True,
        check=False,
        timeout=LONG_S,
    )


def test_a_process_that_sleeps_is_ended_with_its_code_and_stacks() -> None:
    done = run(
        "def stuck_here():\n"
        "    time.sleep(1000)\n"
        "with watchdog.Watchdog(0.3, tell=tell):\n"
        "    stuck_here()\n"
    )
    assert done.returncode == HungError.exit_code
    assert done.stdout == "HungError\n"
    assert "in stuck_here" in done.stderr


def test_a_process_that_holds_the_interpreter_is_ended_too() -> None:
    """In C, with the interpreter held, no thread of Python runs."""
    done = run(
        "watchdog.BACKSTOP_S = 0.3\n"
        "def stuck_in_c():\n"
        "    ctypes.PyDLL(None).sleep(1000)\n"
        "with watchdog.Watchdog(0.3, tell=tell):\n"
        "    stuck_in_c()\n"
    )
    assert done.returncode == 1  # faulthandler's own
    assert done.stdout == ""
    assert "in stuck_in_c" in done.stderr
    assert "Timeout" in done.stderr


def test_neither_closed_nor_paused_does_it_leave_anything_armed() -> None:
    done = run(
        "watchdog.BACKSTOP_S = 0.0\n"
        "dog = watchdog.Watchdog(0.4, tell=tell)\n"
        "with dog:\n"
        "    with dog.paused('after a save'):\n"
        "        ctypes.PyDLL(None).sleep(1)\n"
        "    dog.beat('the last step')\n"
        "ctypes.PyDLL(None).sleep(1)\n"
        "print('alive')\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "alive\n", "")
