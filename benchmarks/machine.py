"""Which machine and which versions a figure belongs to."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from strongroom.canonical import JsonObject

PACKAGES = ("strongroom", "torch", "boto3", "botocore", "s3fs", "s3torchconnector")


def describe_machine(packages: Sequence[str] = PACKAGES) -> JsonObject:
    """Return processor, memory, kernel, versions, and how busy the machine is at this moment."""
    memory_kib = int(_field("/proc/meminfo", "MemTotal").split()[0])
    return {
        "cpu": _field("/proc/cpuinfo", "model name"),
        "cores": os.cpu_count(),
        "memory_gib": round(memory_kib / 2**20, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "ceph": _ceph_version(),
        "packages": {name: _package_version(name) for name in packages},
        "load_average_1min": os.getloadavg()[0],
    }


def _field(file: str, name: str) -> str:
    for line in Path(file).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return "unknown"


def _package_version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _ceph_version() -> str:
    command = shutil.which("radosgw")
    if command is None:
        return "not installed"
    printed = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    return printed.stdout.split()[2]  # ceph version 16.2.15 (...)
