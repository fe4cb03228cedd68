"""The random state of one rank: seeded from the run's seed, saved and restored as plain tensors.

Three generators: Python's `random`, NumPy's legacy global one and torch's on the CPU. Law: after
`set_random_state(random_state())` each draws what it would have drawn. Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def seed_rank(seed: int, rank: int) -> None:
    """Seed all generators of this process; ranks of one seed draw independent streams."""
    digest = hashlib.sha256(f"strongroom.rng/1 {seed} {rank}".encode()).digest()
    random.seed(int.from_bytes(digest[:8], "big"))
    np.random.seed(int.from_bytes(digest[8:12], "big"))  # noqa: NPY002 -- the one libraries use
    torch.manual_seed(int.from_bytes(digest[12:20], "big", signed=True))


def random_state() -> dict[str, torch.Tensor]:
    """Return the state of all generators.

    Returns:
        `torch`: uint8 [bytes]; `python`: int64 [628], version, 625 words, whether a Gaussian is
        kept, and its bits; `numpy`: int64 [627], 624 words, position, the same two.
    """
    version, words, gauss = random.getstate()
    numpy: dict[str, Any] = np.random.get_state(legacy=False)  # noqa: NPY002 -- as above
    twister = numpy["state"]
    return {
        "torch": torch.get_rng_state(),
        "python": _int64([version, *words, gauss is not None, _bits(gauss or 0.0)]),
        "numpy": _int64(
            [*twister["key"].tolist(), twister["pos"], numpy["has_gauss"], _bits(numpy["gauss"])]
        ),
    }


def set_random_state(state: Mapping[str, torch.Tensor]) -> None:
    """Put every generator where `random_state` found it."""
    torch.set_rng_state(state["torch"])
    version, *words, has_gauss, bits = state["python"].tolist()
    random.setstate((version, tuple(words), _float(bits) if has_gauss else None))
    *key, position, has_gauss, bits = state["numpy"].tolist()
    np.random.set_state(  # noqa: NPY002 -- as above
        {
            "bit_generator": "MT19937",
            "state": {"key": np.array(key, dtype=np.uint32), "pos": position},
            "has_gauss": has_gauss,
            "gauss": _float(bits),
        }
    )


def rng_keys(rank: int) -> dict[str, str]:
    """Return the tensor name of each generator's state in a checkpoint."""
    return {kind: f"rng.{rank}.{kind}" for kind in ("torch", "python", "numpy")}


def _int64(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def _bits(value: float) -> int:
    (bits,) = struct.unpack("<q", struct.pack("<d", value))
    return int(bits)


def _float(bits: int) -> float:
    (value,) = struct.unpack("<d", struct.pack("<q", bits))
    return float(value)
