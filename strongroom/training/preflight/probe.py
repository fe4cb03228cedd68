"""Start the ranks of a run for a moment, and measure how long they take to agree.

`python -m strongroom.training.preflight.probe FILE` is what torchrun starts, once for each rank.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from strongroom.errors import TrainingError
from strongroom.parent import PARENT_VARIABLE, die_with_parent
from strongroom.training.launching.agent import agent_command
from strongroom.training.preflight.fabric import measure_allreduce_ms

TIMEOUT_S = 300.0
_SHOWN_LINES = 15


def probe_allreduce(ranks: int, *, timeout_s: float = TIMEOUT_S) -> float:
    """Return the latency of an all-reduce over `ranks` ranks on this machine, in milliseconds.

    Raises:
        TrainingError: they do not come together, or not in time.
    """
    with tempfile.TemporaryDirectory(prefix="strongroom-probe-") as folder:
        file = Path(folder) / "latency.json"
        try:
            done = subprocess.run(  # noqa: S603 -- our own command
                _command(ranks, file),
                env={
                    **os.environ,
                    PARENT_VARIABLE: str(os.getpid()),
                    "OMP_NUM_THREADS": "1",
                    "GLOO_SOCKET_IFNAME": "lo",
                },
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as late:
            raise TrainingError(
                f"probe: expected {ranks} ranks to agree within {timeout_s:g} s, and they did not; "
                "see what they wait for with NCCL_DEBUG=INFO"
            ) from late
        if done.returncode != 0:
            said = "\n".join(done.stderr.splitlines()[-_SHOWN_LINES:])
            raise TrainingError(
                f"probe: expected {ranks} ranks to come together, got exit code "
                f"{done.returncode}:\n{said}"
            )
        return float(json.loads(file.read_text(encoding="utf-8"))["allreduce_ms"])


def _command(ranks: int, file: Path) -> list[str]:
    return agent_command(ranks, "-m", "strongroom.training.preflight.probe", str(file))


def main(file: Path) -> None:
    """Join the group, measure, and write the latency down, as one rank."""
    die_with_parent()
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    local_rank = int(os.environ["LOCAL_RANK"])
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank)
        dist.init_process_group("nccl")
    else:
        dist.init_process_group("gloo")
    latency_ms = measure_allreduce_ms()
    if dist.get_rank() == 0:
        file.write_text(json.dumps({"allreduce_ms": latency_ms}), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
