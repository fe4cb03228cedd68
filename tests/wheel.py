"""Build the wheel and run the engine's quick tests against it alone.

The tests are copied to an empty folder, so nothing but the installed wheel can provide
`strongroom`; the packages it depends on come from the environment this script runs in.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("storage", "signing", "planning", "ledger", "checkpoint", "governance")


def main() -> int:
    """Return pytest's exit status."""
    with tempfile.TemporaryDirectory(prefix="strongroom-wheel-") as work:
        folder = Path(work)
        _run(["pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)])
        wheel = next(folder.glob("strongroom-*.whl"))
        python = _environment(folder / "venv")
        _run(["pip", "--python", str(python), "install", "--quiet", "--no-deps", str(wheel)])
        shutil.copytree(ROOT / "tests", folder / "tests")
        tests = [f"tests/strongroom/{room}" for room in ROOMS]
        options = [
            "-q",
            "--import-mode=importlib",
            "-o",
            "pythonpath=.",
            "-m",
            "not ceph and not e2e",
        ]
        command = [str(python), "-I", "-c", _CHECK_ORIGIN.format(root=str(ROOT))]
        subprocess.run(command, cwd=folder, check=True)
        return subprocess.run(
            [str(python), "-m", "pytest", *options, "-c", str(_pytest_ini(folder)), *tests],
            cwd=folder,
            check=False,
            env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        ).returncode


_CHECK_ORIGIN = (
    "import strongroom, sys; "
    "sys.exit('strongroom came from the repository' if strongroom.__file__.startswith({root!r}) "
    "and 'venv' not in strongroom.__file__ else 0)"
)


def _environment(folder: Path) -> Path:
    """Make an environment that sees this one's packages, but not its editable strongroom."""
    venv.create(folder, with_pip=False)
    site = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    # A plain path entry, unlike a .pth in the other folder, does not run that folder's .pth files.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return folder / "bin" / "python"


def _pytest_ini(folder: Path) -> Path:
    ini = folder / "pytest.ini"
    ini.write_text(
        "[pytest]\nmarkers =\n"
        "    e2e\n    chromium\n    ceph\n    slurm\n    compiler\n"
        "timeout = 300\n",
        encoding="utf-8",
    )
    return ini


def _run(arguments: list[str]) -> None:
    subprocess.run([sys.executable, "-m", *arguments], check=True)


if __name__ == "__main__":
    sys.exit(main())
