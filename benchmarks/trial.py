"""One measurement in a process of its own: a fresh interpreter, which warms itself up.

`python -m benchmarks.trial MODULE:FUNCTION` reads the function's arguments as JSON from stdin and
prints the numbers it returns as JSON.
"""

from __future__ import annotations

import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

from strongroom.canonical import JsonObject

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 1800.0


def run_trial(work: str, arguments: JsonObject) -> dict[str, float]:
    """Call `work`, given as `module:function`, in a new process; return the numbers it returns.

    Raises:
        RuntimeError: the process failed; gives the end of what it said.
    """
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.trial", work],
        input=json.dumps(arguments),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        system = arguments.get("system", "")
        raise RuntimeError(f"{work} {system} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    numbers: dict[str, float] = json.loads(done.stdout)
    return numbers


def main() -> None:
    """Do what the command line and stdin say."""
    stdout = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed is no result
    numbers = pkgutil.resolve_name(sys.argv[1])(**json.load(sys.stdin))
    with stdout:
        json.dump(numbers, stdout)


if __name__ == "__main__":
    main()
