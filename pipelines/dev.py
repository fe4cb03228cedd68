"""`python -m pipelines.dev [ARGUMENTS OF dagster dev]`: the Dagster UI and daemon on this machine.

A shell that starts jobs in the background has them ignore SIGINT, and Dagster makes SIGTERM do what
SIGINT does: such a server could not be stopped. So both are reset before Dagster begins.
"""

import os
import signal
import sys
from pathlib import Path

from pipelines.home import prepare_home
from resources.store import ROOT


def main(arguments: list[str]) -> None:
    """Become `dagster dev`."""
    # Dagster warns of a dagster.yaml that stands where it starts and is not the one it uses.
    os.chdir(prepare_home())
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    workspace = str(ROOT / "workspace.yaml")
    command = [str(Path(sys.executable).parent / "dagster"), "dev", "-w", workspace, *arguments]
    os.execv(command[0], command)  # noqa: S606 -- our own command


if __name__ == "__main__":
    main(sys.argv[1:])
