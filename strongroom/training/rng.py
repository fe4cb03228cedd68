"""The random state of one rank: seeded from the run's seed, saved and restored as plain tensors.

Python's `random`, NumPy's legacy global one and torch's, on the CPU and the accelerator. Law: after
`set_random_state(random_state())` each draws what it would have drawn. Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch

from strongroom.errors import FormatError
from strongroom.verification.structure import ACCELERATOR_KIND, RNG_KINDS

WORDS = 624
"""Words of a Mersenne Twister, 32 bits each."""
_EXPECTED = "uint8 of torch, int64 [628] of python and int64 [627] of numpy"


def seed_rank(seed: int, rank: int, *, step: int = 0) -> None:
    """Seed all generators of this process; ranks of one seed draw independent streams.

    Args:
        seed: of the run.
        rank: of this process.
        step: at which it begins; a rank that joins later draws what no rank drew before.
    """
    joined = f" {step}" if step else ""
    digest = hashlib.sha256(f"strongroom.rng/1 {seed} {rank}{joined}".encode()).digest()
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
    state = {} if not torch.cuda.is_available() else {ACCELERATOR_KIND: torch.cuda.get_rng_state()}
    return state | {
        "torch": torch.get_rng_state(),
        "python": _int64([version, *words, gauss is not None, _bits(gauss or 0.0)]),
        "numpy": _int64(
            [*twister["key"].tolist(), twister["pos"], numpy["has_gauss"], _bits(numpy["gauss"])]
        ),
    }


def set_random_state(state: Mapping[str, torch.Tensor]) -> None:
    """Put every generator where `random_state` found it.

    Raises:
        FormatError: it is not what `random_state` returns; going on would draw other numbers.
    """
    try:
        _set_random_state(state)
    except (KeyError, TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise FormatError(
            f"random state: expected {_EXPECTED}, got "
            f"{ {kind: [str(t.dtype), list(t.shape)] for kind, t in state.items()} }: {error}; "
            "resume from an earlier checkpoint"
        ) from error


def _set_random_state(state: Mapping[str, torch.Tensor]) -> None:
    if torch.cuda.is_available() and ACCELERATOR_KIND in state:
        torch.cuda.set_rng_state(state[ACCELERATOR_KIND])
    torch.set_rng_state(state["torch"])
    version, *numbers = _numbers(state["python"])
    words, position, gauss = _twister(numbers)
    random.setstate((version, (*words, position), gauss))
    words, position, gauss = _twister(_numbers(state["numpy"]))
    np.random.set_state(  # noqa: NPY002 -- as above
        {
            "bit_generator": "MT19937",
            "state": {"key": np.array(words, dtype=np.uint32), "pos": position},
            "has_gauss": gauss is not None,
            "gauss": 0.0 if gauss is None else gauss,
        }
    )


def _numbers(tensor: torch.Tensor) -> list[int]:
    if tensor.dtype != torch.int64:
        raise TypeError(f"expected int64, got {tensor.dtype}")
    numbers: list[int] = tensor.tolist()
    return numbers


def _twister(numbers: list[int]) -> tuple[list[int], int, float | None]:
    """Return the words of a Mersenne Twister, its position, and the Gaussian it keeps for later.

    Checked here: NumPy would read beyond its words, and Python cut them, without a word.
    """
    *words, position, has_gauss, bits = numbers
    if len(words) != WORDS or not all(0 <= word < 2**32 for word in words):
        raise ValueError(f"expected {WORDS} words of 32 bits, got others")
    if not 0 <= position <= WORDS or has_gauss not in {0, 1}:
        raise ValueError(f"expected a position to {WORDS} and 0 or 1, got {position}, {has_gauss}")
    return words, position, _float(bits) if has_gauss else None


def rng_keys(rank: int) -> dict[str, str]:
    """Return the tensor name of each generator's state in a checkpoint."""
    kinds = (*RNG_KINDS, *((ACCELERATOR_KIND,) if torch.cuda.is_available() else ()))
    return {kind: f"rng.{rank}.{kind}" for kind in kinds}


def saved_rng_keys(rank: int, saved: Collection[str]) -> dict[str, str]:
    """Return the names of `rng_keys` to restore from a checkpoint that holds the names `saved`.

    All of them, but that of an accelerator where it was saved without one: that stays as seeded.
    """
    names = rng_keys(rank)
    if names.get(ACCELERATOR_KIND) not in saved:
        names.pop(ACCELERATOR_KIND, None)
    return names


def _int64(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def _bits(value: float) -> int:
    (bits,) = struct.unpack("<q", struct.pack("<d", value))
    return int(bits)


def _float(bits: int) -> float:
    (value,) = struct.unpack("<d", struct.pack("<q", bits))
    return float(value)
