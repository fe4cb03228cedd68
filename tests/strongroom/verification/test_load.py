from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from strongroom import canonical
from strongroom.checkpoint.catalogue import Committed
from strongroom.checkpoint.manifest import Inputs
from strongroom.checkpoint.run_record import Probe, RunRecord
from strongroom.errors import InputError, IntegrityError, ModelSourceError, StorageError
from strongroom.model.adapters import trainable_names
from strongroom.names import Digest
from strongroom.storage.local import LocalStorage
from strongroom.storage.trees import put_tree
from strongroom.training.probe import undisturbed_probe_loss
from strongroom.verification.ladder import Rung, VerificationReport, verify
from strongroom.verification.load import fresh_model, load_model, probe_loss
from tests.support.checkpoints import RUN, checkpoint_name, save_checkpoint, save_facts
from tests.support.tiny_model import make_tiny_model

PROBE = Probe(token_ids=tuple(range(5, 25)), trained=(False,) * 8 + (True,) * 12)
LORA = {"method": "lora", "rank": 2, "alpha": 4, "dropout": 0.1, "targets": ["q_proj", "v_proj"]}
FULL = {**LORA, "method": "full"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """A run on a tiny model, with one checkpoint of changed weights."""

    storage: LocalStorage
    record: RunRecord
    committed: Committed
    model: nn.Module
    cache: Path

    def climb(self, **changes: Any) -> VerificationReport:  # noqa: ANN401 -- any field of the record
        return verify(
            self.storage,
            self.committed.name,
            expected_id=self.committed.checkpoint_id,
            up_to=Rung.LOAD,
            record=replace(self.record, **changes),
            cache=self.cache,
        )


def train(
    folder: Path,
    *,
    adapter: dict[str, Any],
    dtype: str,
    probe_error: float = 0.0,
    change: Callable[[dict[str, Tensor]], None] | None = None,
) -> Trained:
    storage = LocalStorage(folder / "store")
    base_model = put_tree(storage, "models", make_tiny_model(folder / "tiny"))
    config = {"model": {"source": "tiny", "dtype": dtype}, "adapter": adapter, "train": {}}
    other = Digest.of(b"")
    inputs = Inputs(
        base_model=base_model, dataset=other, tokenizer=other, config=canonical.digest(config)
    )
    record = RunRecord(
        run=RUN,
        author="deniz",
        created="2026-01-31T08:15:00.123Z",
        config=config,
        inputs=inputs,
        code={},
        environment={},
        probe=PROBE,
    )
    model = fresh_model(storage, record, folder / "cache")
    tensors = {}
    source = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        parameter.data.add_(torch.randn(parameter.shape, generator=source), alpha=0.1)
        tensors[f"model.{name}"] = parameter.detach()
        tensors[f"optim.state.{name}.step"] = torch.tensor(3.0)
        tensors[f"optim.state.{name}.exp_avg"] = torch.zeros_like(parameter)
        tensors[f"optim.state.{name}.exp_avg_sq"] = torch.zeros_like(parameter)
    tensors |= {f"rng.0.{kind}": torch.ones(4).byte() for kind in ("torch", "python", "numpy")}
    group = {"lr": 0.1, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01}
    state = {
        **save_facts(checkpoint_name(3)).state,
        "model": {"base_model": str(base_model)},
        "optimizer": {
            "name": "adamw",
            "param_groups": [{**group, "params": trainable_names(model)}],
        },
    }
    if change is not None:
        change(tensors)
    committed = save_checkpoint(
        storage,
        3,
        tensors=tensors,
        inputs=inputs,
        state=state,
        metrics={
            "train_loss": 1.0,
            "probe_loss": undisturbed_probe_loss(model, PROBE) * (1 + probe_error),
        },
    )
    return Trained(
        storage=storage, record=record, committed=committed, model=model, cache=folder / "cache"
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return train(tmp_path_factory.mktemp("lora"), adapter=LORA, dtype="float32")


def test_an_adapter_climbs_all_rungs(trained: Trained) -> None:
    report = trained.climb()
    assert report.findings == ()
    assert report.highest == Rung.LOAD


@pytest.mark.parametrize(("adapter", "dtype"), [(FULL, "float32"), (LORA, "bfloat16")])
def test_a_whole_model_and_bfloat16_climb_all_rungs(
    tmp_path: Path, adapter: dict[str, Any], dtype: str
) -> None:
    report = train(tmp_path, adapter=adapter, dtype=dtype).climb()
    assert report.findings == ()
    assert report.highest == Rung.LOAD


def test_the_loaded_model_is_the_trained_one(trained: Trained) -> None:
    model = load_model(trained.storage, trained.committed, trained.record, trained.cache)
    assert not model.training
    wanted = trained.model.state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, wanted[name]), name
    assert probe_loss(model, PROBE) == undisturbed_probe_loss(trained.model, PROBE)
    base = fresh_model(trained.storage, trained.record, trained.cache)
    assert probe_loss(base, PROBE) != probe_loss(model, PROBE), "nothing was trained"


def test_buffers_that_no_checkpoint_holds_are_those_of_a_fresh_model(trained: Trained) -> None:
    """As rotary frequencies, which nobody may leave as garbage (huggingface/transformers#45902)."""
    wanted = dict(fresh_model(trained.storage, trained.record, trained.cache).named_buffers())
    model = load_model(trained.storage, trained.committed, trained.record, trained.cache)
    buffers = dict(model.named_buffers())
    unsaved = set(buffers) - set(model.state_dict())
    assert unsaved, "the model has no such buffer"
    assert all(torch.equal(buffers[name], wanted[name]) for name in wanted)
    assert not any(buffers[name].is_meta for name in buffers)


def test_another_loss_than_at_the_save_is_a_finding(tmp_path: Path) -> None:
    report = train(tmp_path, adapter=LORA, dtype="float32", probe_error=1e-4).climb()
    assert report.failed_at is Rung.LOAD
    assert "probe loss: expected" in report.findings[0]


def test_float32_copies_of_a_model_in_bfloat16_are_rounded_into_it(tmp_path: Path) -> None:
    """As ZeRO-3 saves them."""

    def widened(tensors: dict[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            if tensor.dtype == torch.bfloat16:
                tensors[name] = tensor.float() * (1 + 1e-4)  # less than bfloat16 can tell

    trained = train(tmp_path, adapter=LORA, dtype="bfloat16", change=widened)
    assert "float32" in {tensor.dtype for tensor in trained.committed.manifest.tensors}
    assert trained.climb().findings == ()
    model = load_model(trained.storage, trained.committed, trained.record, trained.cache)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


def test_other_dtypes_are_not_taken_for_one_another(tmp_path: Path) -> None:
    def halved(tensors: dict[str, Tensor]) -> None:
        for name in [name for name in tensors if name.startswith("model.")]:
            tensors[name] = tensors[name].half()

    report = train(tmp_path, adapter=LORA, dtype="float32", change=halved).climb()
    assert report.failed_at is Rung.LOAD
    assert "is float16" in report.findings[0]


def test_an_optimizer_that_cannot_go_on_is_a_finding(tmp_path: Path) -> None:
    """Weights that load say nothing of it (huggingface/accelerate#3971)."""

    def from_elsewhere(tensors: dict[str, Tensor]) -> None:
        names = [name for name in tensors if name.endswith(".step")]
        tensors[names[0]] = torch.tensor(4.0)

    report = train(tmp_path, adapter=LORA, dtype="float32", change=from_elsewhere).climb()
    assert report.failed_at is Rung.LOAD
    (finding,) = report.findings
    assert ".step: expected at most 3, as many steps as were learnt from, got 4.0" in finding


def test_a_record_of_other_inputs_proves_nothing(trained: Trained) -> None:
    config = {**trained.record.config, "adapter": {**LORA, "rank": 4}}
    with pytest.raises(IntegrityError, match=r"runs/nightly-7/run\.json"):
        trained.climb(config=config)


def test_a_checkpoint_of_another_shape_is_a_finding(trained: Trained) -> None:
    config = {**trained.record.config, "adapter": {**LORA, "rank": 4}}
    with pytest.raises(InputError, match=r"float32 \[2, 64\] in the checkpoint, float32 \[4, 64\]"):
        load_model(
            trained.storage,
            trained.committed,
            replace(trained.record, config=config),
            trained.cache,
        )


def test_a_base_model_that_is_gone_proves_nothing(trained: Trained, tmp_path: Path) -> None:
    bare = LocalStorage(tmp_path)
    for info in trained.storage.walk(trained.committed.folder):
        bare.create(info.key, trained.storage.read(info.key))
    with pytest.raises((StorageError, ModelSourceError)):
        verify(
            bare,
            trained.committed.name,
            expected_id=None,
            up_to=Rung.LOAD,
            record=trained.record,
            cache=tmp_path / "empty",
        )
