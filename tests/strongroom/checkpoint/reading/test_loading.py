from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from strongroom.checkpoint.catalogue import Committed
from strongroom.checkpoint.reading.loading import ManifestReader
from strongroom.checkpoint.reading.reader import CheckpointReader
from strongroom.errors import InputError
from strongroom.storage.memory import MemoryStorage
from tests.support.checkpoints import bits, save_checkpoint


def saved(tensors: dict[str, Tensor]) -> tuple[MemoryStorage, Committed]:
    storage = MemoryStorage()
    return storage, save_checkpoint(storage, tensors=tensors)


def three_layers() -> dict[str, Tensor]:
    return {f"layers.{number}.w": torch.full((4,), number + 1.0) for number in range(3)}


def test_prefixes_choose_what_is_loaded() -> None:
    storage, committed = saved({"model.w": torch.ones(2), "rng.1.torch": torch.ones(1)})
    target = {"model.w": torch.zeros(2)}
    CheckpointReader(storage, committed).load_into(target, prefixes=("model.", "optim."))
    assert torch.equal(target["model.w"], torch.ones(2))


def test_what_does_not_fit_is_refused_with_every_difference() -> None:
    storage, committed = saved({"a": torch.ones(2), "b": torch.ones(3), "extra": torch.ones(1)})
    target = {
        "a": torch.zeros(2, dtype=torch.bfloat16),
        "b": torch.zeros(3, 1),
        "missing": torch.zeros(1),
    }
    with pytest.raises(InputError) as caught:
        CheckpointReader(storage, committed).load_into(target)
    for part in (
        "the checkpoint lacks missing",
        "nothing takes the checkpoint's extra",
        "a is float32 [2] in the checkpoint, bfloat16 [2] in the target",
        "b is float32 [3] in the checkpoint, float32 [3, 1] in the target",
    ):
        assert part in str(caught.value)
    assert not any(bits(tensor).any() for tensor in target.values()), "a target was touched"


def test_a_smaller_model_does_not_take_a_larger_ones_checkpoint_in_silence() -> None:
    """A checkpoint of three layers in a model of two (pytorch/pytorch#148252)."""
    storage, committed = saved(three_layers())
    reader = CheckpointReader(storage, committed)
    target = {name: torch.zeros(4) for name in ("layers.0.w", "layers.1.w")}
    with pytest.raises(InputError, match=r"nothing takes the checkpoint's layers\.2\.w"):
        reader.load_into(target)
    assert not any(tensor.any() for tensor in target.values())
    reader.load_into(target, ignore=["layers.2.w"])
    assert torch.equal(target["layers.1.w"], torch.full((4,), 2.0))


def test_a_target_that_the_checkpoint_lacks_is_kept_only_by_name() -> None:
    storage, committed = saved(three_layers())
    target = {**{name: torch.zeros(4) for name in three_layers()}, "head.w": torch.full((2,), 9.0)}
    reader = CheckpointReader(storage, committed)
    with pytest.raises(InputError, match=r"the checkpoint lacks head\.w"):
        reader.load_into(target)
    reader.load_into(target, keep={"head.w"})
    assert torch.equal(target["head.w"], torch.full((2,), 9.0))
    assert torch.equal(target["layers.2.w"], torch.full((4,), 3.0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.float8_e4m3fn, torch.int32])
def test_a_dtype_is_cast_only_by_name(dtype: torch.dtype) -> None:
    source = torch.randn(50, 3) * 10
    storage, committed = saved({"w": source, "v": torch.ones(2)})
    target = {"w": torch.zeros(50, 3, dtype=dtype), "v": torch.zeros(2)}
    reader = CheckpointReader(storage, committed)
    with pytest.raises(InputError, match="w is float32"):
        reader.load_into(target)
    reader.load_into(target, cast=("w",))
    assert torch.equal(bits(target["w"]), bits(source.to(dtype)))


def test_a_shape_is_never_excused() -> None:
    storage, committed = saved({"w": torch.ones(4)})
    target = {"w": torch.zeros(2, 2, dtype=torch.float64)}
    with pytest.raises(InputError, match=r"float32 \[4\] in the checkpoint, float64 \[2, 2\]"):
        CheckpointReader(storage, committed).load_into(target, cast=["w"])


@pytest.mark.parametrize("what", ["ignore", "keep", "cast"])
@pytest.mark.parametrize("name", ["layers.0.w", "nobody"])
def test_an_exception_without_need_is_refused(what: str, name: str) -> None:
    storage, committed = saved(three_layers())
    target = {name: torch.zeros(4) for name in three_layers()}
    excepted: dict[str, Any] = {what: [name]}
    with pytest.raises(InputError, match=f"{what} names {name}, without need"):
        CheckpointReader(storage, committed).load_into(target, **excepted)
    assert not any(tensor.any() for tensor in target.values())


def test_a_target_without_memory_is_refused() -> None:
    """What was made on the meta device and never given memory holds nothing that was loaded."""
    storage, committed = saved({"w": torch.ones(4)})
    with pytest.raises(InputError, match="w is on the meta device"):
        CheckpointReader(storage, committed).load_into({"w": torch.zeros(4, device="meta")})


def test_no_checkpoint_is_chosen_by_path(tmp_path: Path) -> None:
    reader = ManifestReader([], lambda _wanted: None)
    assert not ManifestReader.validate_checkpoint_id(tmp_path)
    with pytest.raises(InputError, match="beside a manifest's reader"):
        reader.reset(tmp_path)
