"""Packages that look installed: a folder for the path, with the records an installer leaves."""

from __future__ import annotations

from pathlib import Path


def make_package(
    site: Path, name: str, version: str, files: dict[str, bytes], *, unlisted: tuple[str, ...] = ()
) -> Path:
    """Write a distribution of these files into `site` and return `site`.

    Args:
        site: the folder to put on `sys.path`.
        name: of the distribution, as an index has it.
        version: of the distribution.
        files: by path relative to `site`.
        unlisted: paths the record names and the folder does not hold.
    """
    for path, data in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(data)
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text("".join(f"{path},,\n" for path in (*files, *unlisted)))
    return site
