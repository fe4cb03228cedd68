from __future__ import annotations

import os
import subprocess
import sys
import time

from benchmarks.measure import Meter, PeakMemory

BUSY = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
MIB = 2**20


def test_the_time_of_a_child_that_has_ended_counts() -> None:
    with Meter() as meter:
        subprocess.run([sys.executable, "-c", BUSY], check=True)
    assert 0.3 <= meter.cost.client_cpu_s < 3
    assert meter.cost.wall_s >= 0.3
    assert meter.cost.server_cpu_s is None


def test_the_time_of_a_child_that_lives_counts_and_that_of_a_server_apart() -> None:
    with Meter([os.getpid()]) as meter:
        child = subprocess.Popen(
            [sys.executable, "-c", f"{BUSY}\nprint('done', flush=True)\ntime.sleep(60)"],
            stdout=subprocess.PIPE,
        )
        assert child.stdout is not None
        child.stdout.readline()
    child.kill()
    child.wait()
    child.stdout.close()
    assert meter.cost.client_cpu_s >= 0.25
    assert meter.cost.server_cpu_s is not None
    assert meter.cost.server_cpu_s < 0.25


def test_cpu_time_is_told_for_each_gib() -> None:
    with Meter() as meter:
        time.sleep(0)
    cost = meter.cost
    assert cost.cpu_per_gib(2**29) == {"client_cpu_s_per_gib": cost.client_cpu_s * 2}


def test_memory_that_was_given_back_counts_at_its_peak() -> None:
    memory = PeakMemory()
    block = bytearray(64 * MIB)
    del block
    assert 60 * MIB < memory.extra_bytes() < 90 * MIB
    assert PeakMemory().extra_bytes() < 30 * MIB
