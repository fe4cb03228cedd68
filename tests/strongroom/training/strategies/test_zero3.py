"""What DeepSpeed is told; what comes of it is in test_strategies.py."""

from __future__ import annotations

from dataclasses import replace

from strongroom.training.config import TrainConfig
from strongroom.training.strategies.config import Zero3Config
from strongroom.training.strategies.zero3 import engine_config

CONFIG = TrainConfig(steps=9, batch_rows=4, learning_rate=0.01, max_grad_norm=0.5)


def test_by_default_nothing_is_offloaded_and_float32_is_computed_in() -> None:
    told = engine_config(CONFIG)
    assert told["zero_optimization"]["stage"] == 3
    assert not any(name.startswith("offload") for name in told["zero_optimization"])
    assert told["bf16"] == {"enabled": False}
    assert told["gradient_clipping"] == 0.5


def test_gradients_are_reduced_and_added_up_in_float32_whatever_is_computed_in() -> None:
    told = engine_config(replace(CONFIG, compute_dtype="bfloat16"))
    assert told["bf16"] == {"enabled": True}
    assert told["communication_data_type"] == "fp32"
    assert told["data_types"] == {"grad_accum_dtype": "fp32"}


def test_sizes_are_handed_on() -> None:
    sizes = Zero3Config(persist_below_elements=1, prefetch_elements=2, reduce_elements=3)
    told = engine_config(replace(CONFIG, zero3=sizes))["zero_optimization"]
    assert told["stage3_param_persistence_threshold"] == 1
    assert told["stage3_prefetch_bucket_size"] == 2
    assert told["reduce_bucket_size"] == 3


def test_offloading_names_where_to() -> None:
    to_host = engine_config(replace(CONFIG, zero3=Zero3Config(offload="cpu")))
    for part in ("offload_param", "offload_optimizer"):
        assert to_host["zero_optimization"][part] == {"device": "cpu", "pin_memory": True}
    nvme = Zero3Config(offload="nvme", nvme_folder="/local")
    to_disk = engine_config(replace(CONFIG, zero3=nvme))["zero_optimization"]
    assert to_disk["offload_optimizer"]["nvme_path"] == "/local"
    assert to_disk["offload_param"]["device"] == "nvme"
