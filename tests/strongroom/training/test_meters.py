from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from strongroom.training.meters import (
    DATA_SHEETS,
    StepMeter,
    known_peak_flops,
    peak_flops_per_rank,
    peak_memory_bytes,
)

CONFIG = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_size": 64,
    "vocab_size": 100,
    "tie_word_embeddings": True,
}


def clock_of(*seconds: float) -> Iterator[float]:
    return iter(seconds)


def meter(peak_flops_per_rank: float | None, *seconds: float, world_size: int = 2) -> StepMeter:
    clock = clock_of(*seconds)
    return StepMeter.of(
        CONFIG,
        trainable=1000,
        total=1000,
        world_size=world_size,
        peak_flops_per_rank=peak_flops_per_rank,
        clock=lambda: next(clock),
    )


def test_a_step_is_measured_from_its_beginning_to_its_end() -> None:
    measuring = meter(1e6, 100.0, 100.5, 107.0, 111.0)
    measuring.begin()
    first = measuring.measured(tokens=40, pairs=800)
    measuring.begin()
    second = measuring.measured(tokens=40, pairs=800)
    assert (first["step_tokens"], first["step_s"], first["tokens_per_s"]) == (40, 0.5, 80.0)
    assert (second["step_s"], second["tokens_per_s"]) == (4.0, 10.0)


def test_utilization_is_of_the_peak_of_all_ranks() -> None:
    flops = 6 * 1000 * 40 + 12 * 2 * 64 * 800
    for world_size in (1, 4):
        measuring = meter(1e6, 0.0, 2.0, world_size=world_size)
        measuring.begin()
        measured = measuring.measured(tokens=40, pairs=800)
        assert measured["mfu"] == pytest.approx(flops / 2.0 / (1e6 * world_size))


def test_utilization_is_unknown_where_the_peak_or_the_model_is() -> None:
    without_peak = meter(None, 0.0, 1.0)
    without_peak.begin()
    assert without_peak.measured(tokens=1, pairs=1)["mfu"] is None
    experts = {**CONFIG, "num_experts": 8}
    unknown = StepMeter.of(experts, trainable=1, total=1, world_size=1, peak_flops_per_rank=1e12)
    unknown.begin()
    assert unknown.measured(tokens=1, pairs=1)["mfu"] is None


def test_what_is_measured_is_json() -> None:
    measuring = meter(1e6, 0.0, 1.0)
    measuring.begin()
    measured = measuring.measured(tokens=1, pairs=1)
    assert json.loads(json.dumps(measured, allow_nan=False)) == measured
    assert set(measured) == {"step_tokens", "step_s", "tokens_per_s", "mfu", "memory_bytes"}


def test_memory_is_the_peak_of_this_process() -> None:
    # Not of the one that started it, either: with torch it has more in use.
    program = (
        "from strongroom.training.meters import peak_memory_bytes as peak\n"
        "before = peak(); held = b'x' * 200_000_000; during = peak(); del held\n"
        "print(before, during, peak())\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    before, during, after = map(int, ran.stdout.split())
    assert 5_000_000 < before < 100_000_000
    assert during - before > 190_000_000
    assert after > during - 10_000_000  # Linux counts in batches
    assert peak_memory_bytes() > 5_000_000


def test_where_no_status_of_a_process_is_told_the_kernel_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = peak_memory_bytes()
    monkeypatch.setattr("strongroom.training.meters.PROCESS_STATUS", tmp_path / "none")
    assert peak_memory_bytes() >= told - 2**20
    (tmp_path / "none").write_text("Name:\tpython\n")
    assert peak_memory_bytes() >= told - 2**20


@pytest.mark.parametrize(
    ("device", "dtype", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989.4),
        ("NVIDIA H100 80GB HBM3", "float8", 1978.9),
        ("NVIDIA H100 80GB HBM3", "float32", 66.9),
        ("NVIDIA H100 PCIe", "bfloat16", 756.4),
        ("NVIDIA H100 NVL", "bfloat16", 835.5),
        ("NVIDIA H200", "bfloat16", 989.4),
        ("NVIDIA GH200 480GB", "bfloat16", 989.4),
        ("NVIDIA A100-SXM4-80GB", "bfloat16", 312.0),
        ("NVIDIA A100-PCIE-40GB", "bfloat16", 312.0),
        ("NVIDIA B200", "bfloat16", 2250.0),
        ("NVIDIA GB200", "bfloat16", 2500.0),
        ("NVIDIA L40S", "bfloat16", 362.05),
        ("NVIDIA L4", "bfloat16", 121.0),
        ("AMD Instinct MI300X", "bfloat16", 1307.4),
        ("AMD Instinct MI300X OAM", "float8", 2614.9),
    ],
)
def test_the_peak_of_an_accelerator_is_known_by_its_name(
    device: str, dtype: str, tflops: float
) -> None:
    assert known_peak_flops(device, dtype) == pytest.approx(tflops * 1e12)


@pytest.mark.parametrize(
    ("device", "dtype"),
    [
        ("NVIDIA A100-SXM4-80GB", "float8"),  # it has none
        ("NVIDIA GeForce RTX 4090", "bfloat16"),
        ("NVIDIA L40", "bfloat16"),  # neither an L4 nor an L40S
        ("AMD EPYC 9654", "bfloat16"),
        ("", "float32"),
    ],
)
def test_a_peak_that_is_not_known_is_not_guessed(device: str, dtype: str) -> None:
    assert known_peak_flops(device, dtype) is None


def test_every_accelerator_has_a_source_and_is_faster_the_smaller_the_numbers() -> None:
    assert len({item.name for item in DATA_SHEETS}) == len(DATA_SHEETS)
    for item in DATA_SHEETS:
        assert item.source.startswith("https://")
        peaks = [item.peak_tflops[name] for name in ("float32", "bfloat16")]
        assert peaks == sorted(peaks)
        if (float8 := item.peak_tflops.get("float8")) is not None:
            assert float8 == pytest.approx(2 * peaks[1], rel=0.02)


def test_what_is_stated_comes_before_what_is_known() -> None:
    assert peak_flops_per_rank(0.25, "bfloat16") == 0.25e12


def test_a_processor_has_no_peak_unless_it_is_stated() -> None:
    assert peak_flops_per_rank(None, "float32") is None


def test_an_accelerator_in_use_is_asked_for_its_name_and_its_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 12345)
    assert peak_flops_per_rank(None, "bfloat16") == pytest.approx(989.4e12)
    assert peak_memory_bytes() == 12345


def test_meters_import_no_torch() -> None:
    program = "import sys, strongroom.training.meters; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
