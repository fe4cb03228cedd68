"""Each pitfall is found by its name, alone, and nothing is found where there is nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strongroom.training.config import RunConfig, load_config
from strongroom.training.preflight.checks.registry import CHECKS
from strongroom.training.preflight.facts import Facts
from strongroom.training.preflight.findings import Finding
from strongroom.training.preflight.report import preflight
from strongroom.training.preflight.rules import RULES
from tests.support.preflight import (
    GB,
    H100,
    LARGE,
    LARGE_FACTS,
    SMALL,
    SMALL_FACTS,
    changed,
    in_store,
    on_machine,
    saved,
    with_checkpoints,
    with_shape,
)

ROOT = Path(__file__).parents[4]

PITFALLS = (
    "synchronous-saves",
    "verification-off",
    "optimizer-left-out",
    "storage-tier",
    "resharding-untested",
    "data-state-left-out",
    "fabric",
    "cpu-offload",
    "blocking-upload",
    "batch-and-learning-rate",
    "precision",
    "resume-without-optimizer",
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


def test_every_rule_has_its_check_in_the_order_of_the_rules() -> None:
    assert tuple(CHECKS) == tuple(RULES)
    assert tuple(RULES)[:12] == PITFALLS


# --- nothing on the good ones ---------------------------------------------------------


@pytest.mark.parametrize("config", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda p: p.stem)
def test_nothing_is_found_in_a_configuration_that_people_copy(config: Path) -> None:
    assert found(load_config(config), SMALL_FACTS) == []


def test_nothing_is_found_in_a_good_run_on_eight_accelerators() -> None:
    assert found(large(), LARGE_FACTS) == []


def test_nothing_is_found_in_a_good_run_over_two_machines_that_was_rehearsed() -> None:
    config = large(train={"world_size": 16, "replicas": 2}, launch={"min_world_size": 8})
    facts = replace(
        with_checkpoints(LARGE_FACTS, resharded=((16, 8),)),
        allreduce_ms=3.0,
    )
    assert found(config, facts) == []


def test_nothing_is_found_of_what_is_not_known() -> None:
    for document in (SMALL, LARGE):
        assert found(changed(document), Facts()) == []
    unknown = on_machine(LARGE_FACTS, accelerators=None, memory_bytes=None, rdma=())
    assert found(large(train={"world_size": 8, "fsdp2": {"cpu_offload": True}}), unknown) == []


def test_nothing_is_found_in_a_run_that_goes_on_and_whose_checkpoints_are_verified() -> None:
    checkpoints = [saved(step, is_verified=True) for step in (30, 20, 10)]
    assert found(small(), with_checkpoints(SMALL_FACTS, *checkpoints)) == []


# --- the twelve -----------------------------------------------------------------------


def test_synchronous_saves() -> None:
    finding = only(small(save={"asynchronous": False}), SMALL_FACTS)
    assert (finding.check, finding.severity) == ("synchronous-saves", "warn")
    assert "8.67 MB" in finding.saw


def test_verification_off() -> None:
    unverified = [saved(step) for step in range(50, 0, -10)]
    config = small(train={"steps": 60})
    finding = only(config, with_checkpoints(SMALL_FACTS, *unverified))
    assert (finding.check, finding.severity) == ("verification-off", "warn")
    assert found(config, with_checkpoints(SMALL_FACTS, *unverified[1:])) == []
    for one in ({"is_verified": True}, {"is_quarantined": True}):
        looked_at = [*unverified[:4], saved(10, **one)]
        assert found(config, with_checkpoints(SMALL_FACTS, *looked_at)) == []
    # Those that were verified long ago do not make up for the newest.
    old = with_checkpoints(SMALL_FACTS, *unverified, saved(5, is_verified=True))
    assert only(config, old).check == "verification-off"


@pytest.mark.parametrize("lacking", [{"without_optimizer": 3}, {"has_optimizer_settings": False}])
def test_optimizer_left_out(lacking: dict[str, Any]) -> None:
    finding = only(small(), with_checkpoints(SMALL_FACTS, saved(20, **lacking)))
    assert (finding.check, finding.severity) == ("optimizer-left-out", "stop")
    what = "state of 3 of its 240 parameters" if "without_optimizer" in lacking else "the settings"
    assert finding.saw.startswith("small-talk/20 lacks ")
    assert what in finding.saw
    assert "others" not in finding.saw
    two = only(small(), with_checkpoints(SMALL_FACTS, saved(20, **lacking), saved(10, **lacking)))
    assert two.saw.endswith("so do others: small-talk/10")
    # An older one that is whole is gone on from.
    passed_over = only(small(), with_checkpoints(SMALL_FACTS, saved(20, **lacking), saved(10)))
    assert passed_over.severity == "warn"
    assert "goes on from small-talk/10" in passed_over.mend
    # So is the newest one, where an older one lacks it.
    older = only(
        small(), with_checkpoints(SMALL_FACTS, saved(20), saved(10, without_optimizer=240))
    )
    assert (older.check, older.severity) == ("optimizer-left-out", "warn")
    quarantined = saved(20, is_quarantined=True, **lacking)
    assert found(small(), with_checkpoints(SMALL_FACTS, quarantined, saved(10))) == []


@pytest.mark.parametrize(
    ("storage_class", "keep_days", "names"),
    [
        ("STANDARD_IA", 7, ["storage-tier"]),
        ("STANDARD_IA", 30, []),
        ("GLACIER_IR", 30, ["storage-tier"]),
        ("GLACIER_IR", 90, []),
        ("ONEZONE_IA", 30, ["storage-tier"]),
        ("ONEZONE_IA", 7, ["storage-tier", "storage-tier"]),
        ("INTELLIGENT_TIERING", 1, []),
        (None, 1, []),
    ],
)
def test_storage_tier(storage_class: str | None, keep_days: int, names: list[str]) -> None:
    facts = in_store(LARGE_FACTS, storage_class=storage_class)
    findings = preflight(large(preflight={"keep_days": keep_days}), facts).findings
    assert [item.check for item in findings] == names
    assert all(str(storage_class) in item.saw for item in findings)


def test_resharding_untested() -> None:
    config = large(train={"world_size": 16, "replicas": 2})
    finding = only(config, LARGE_FACTS)
    assert (finding.check, finding.severity) == ("resharding-untested", "warn")
    assert "16 ranks" in finding.saw
    for pairs, is_found in {
        ((16, 16),): True,  # the same size says nothing
        ((8, 4),): True,  # a smaller one says little
        ((16, 8),): False,
        ((4, 2), (8, 16)): False,
    }.items():
        assert bool(found(config, with_checkpoints(LARGE_FACTS, resharded=pairs))) is is_found
    elastic = large(launch={"min_world_size": 4})
    assert only(elastic, LARGE_FACTS).check == "resharding-untested"
    assert found(large(launch={"min_world_size": 8}), LARGE_FACTS) == []  # none may be lost
    # Up to four ranks the release itself is the evidence.
    small_one = large(train={"world_size": 4}, launch={"min_world_size": 1})
    assert found(small_one, on_machine(LARGE_FACTS, accelerators=(H100,) * 4)) == []


def test_data_state_left_out() -> None:
    lacking = saved(20, lacks=("the data cursor", "the random state of 1 of 2 ranks"))
    finding = only(small(), with_checkpoints(SMALL_FACTS, lacking))
    assert (finding.check, finding.severity) == ("data-state-left-out", "stop")
    assert "small-talk/20 lacks the data cursor, the random state" in finding.saw
    assert only(small(), with_checkpoints(SMALL_FACTS, lacking, saved(10))).severity == "warn"
    fresh = with_checkpoints(SMALL_FACTS, lacking, fresh_start=True)
    assert only(small(), fresh).severity == "warn"


@pytest.mark.parametrize(
    ("machine", "said"),
    [
        ({"environment": {"NCCL_IB_DISABLE": "1"}}, "NCCL_IB_DISABLE=1"),
        ({"environment": {"NCCL_NET": "Socket"}}, "NCCL_NET=Socket"),
        ({"environment": {"NCCL_IB_HCA": "mlx4"}}, "NCCL_IB_HCA=mlx4"),
        ({"environment": {"NCCL_IB_HCA": "^mlx5"}}, "NCCL_IB_HCA=^mlx5"),
        ({"environment": {"NCCL_SOCKET_IFNAME": "bond"}}, "NCCL_SOCKET_IFNAME=bond"),
        (
            {
                "environment": {"NCCL_TOPO_FILE": "/topo.xml"},
                "topology_fault": "it cannot be read (No such file or directory)",
            },
            "NCCL_TOPO_FILE=/topo.xml: it cannot be read",
        ),
        (
            {"rdma": tuple(replace(LARGE_FACTS.machine.rdma[0], is_active=False) for _ in "ab")},  # type: ignore[union-attr]
            "no port of it is active",
        ),
    ],
)
def test_fabric(machine: dict[str, Any], said: str) -> None:
    finding = only(large(), on_machine(LARGE_FACTS, **machine))
    assert (finding.check, finding.severity) == ("fabric", "warn")
    assert said in finding.saw


@pytest.mark.parametrize(
    "environment",
    [
        {"NCCL_IB_DISABLE": "0"},
        {"NCCL_NET": "IB"},
        {"NCCL_IB_HCA": "mlx5_0:1,mlx5_1:1"},
        {"NCCL_IB_HCA": "=mlx5_0"},
        {"NCCL_IB_HCA": "^mlx5_7"},
        # The sockets are those of the first contact; what follows goes over RDMA all the same.
        {"NCCL_SOCKET_IFNAME": "eth"},
        {"NCCL_SOCKET_IFNAME": "=eth0,=eth1"},
        {"NCCL_SOCKET_IFNAME": "^docker,lo"},
        {"NCCL_TOPO_FILE": "/topo.xml"},
    ],
)
def test_a_fabric_that_is_used(environment: dict[str, str]) -> None:
    assert found(large(), on_machine(LARGE_FACTS, environment=environment)) == []


def test_a_topology_that_a_hypervisor_hides() -> None:
    config = large(train={"world_size": 16, "replicas": 2})
    rehearsed = with_checkpoints(LARGE_FACTS, resharded=((16, 8),))
    hidden = on_machine(rehearsed, is_virtual=True)
    assert only(config, hidden).check == "fabric"
    assert "NCCL_TOPO_FILE is not set" in only(config, hidden).saw
    assert found(config, on_machine(rehearsed, is_virtual=True, has_topology=True)) == []
    given = on_machine(rehearsed, is_virtual=True, environment={"NCCL_TOPO_FILE": "/topo.xml"})
    assert found(config, given) == []
    assert found(large(), on_machine(LARGE_FACTS, is_virtual=True)) == []  # one machine


def test_a_slow_all_reduce_over_many_ranks() -> None:
    config = large(train={"world_size": 256, "replicas": 32, "batch_rows": 256})
    config = replace(
        config,
        preflight=replace(
            config.preflight, reference_batch_tokens=1_048_576, reference_learning_rate=1e-5
        ),
    )
    rehearsed = with_checkpoints(LARGE_FACTS, resharded=((256, 128),))
    slow = replace(rehearsed, allreduce_ms=12.5)
    assert only(config, slow).check == "fabric"
    assert "256 ranks takes 12.5 ms" in only(config, slow).saw
    assert found(config, replace(rehearsed, allreduce_ms=12.0)) == []


def test_cpu_offload_where_there_is_nothing_to_offload_from() -> None:
    for train in (
        {"train__fsdp2": {"cpu_offload": True}},
        {"train": {"strategy": "zero3"}, "train__zero3": {"offload": "cpu"}},
    ):
        finding = only(small(**train), on_machine(SMALL_FACTS, packages=("deepspeed",)))
        assert (finding.check, finding.severity) == ("cpu-offload", "stop")
        assert "no accelerator" in finding.saw


def test_cpu_offload_where_it_is_not_needed() -> None:
    finding = only(large(train__fsdp2={"cpu_offload": True}), LARGE_FACTS)
    assert (finding.check, finding.severity) == ("cpu-offload", "warn")
    assert "without it a rank needs about" in finding.saw


def test_cpu_offload_where_pcie_is_slower_than_the_computation() -> None:
    # In each of 32 passes a rank's half of 8.03e9 float32 parameters goes up twice, and gradients
    # come down: 1,542 GB, 30.6 s at 0.8 of 63 GB/s. 262,144 tokens take 1.35e16 FLOPs: 17 s at 0.4
    # of twice 989 TFLOP/s.
    two = on_machine(LARGE_FACTS, accelerators=(H100,) * 2)
    offload: dict[str, Any] = {
        "train": {"world_size": 2},
        "train__fsdp2": {"cpu_offload": True},
        "preflight": {"upload_bytes_per_s": None},
    }
    finding = only(large(**offload), two)
    assert (finding.check, finding.severity) == ("cpu-offload", "warn")
    assert "moves 1.54 TB over PCIe 5 x16 in each step: 30.6 s, beside 17" in finding.saw
    assert "36% of the time" in finding.saw
    larger = offload | {"train": {"world_size": 2, "micro_batch_rows": 2}}
    assert found(large(**larger), two) == []
    gathered = offload | {
        "train__fsdp2": {"cpu_offload": True, "reshard_after_forward": False},
        "preflight": {"upload_bytes_per_s": None, "numbers": {"offload_efficiency": 0.4}},
    }
    assert found(large(**gathered), two) == []  # parameters go up once
    for unknown in (replace(H100, pcie_lanes=None), replace(H100, name="Fancy 1")):
        assert found(large(**offload), on_machine(two, accelerators=(unknown,) * 2)) == []
    stated = large(**offload, tracking={"peak_tflops_per_rank": 400.0})
    assert found(stated, two) == []  # slower accelerators wait less


def test_blocking_upload() -> None:
    # 96.4 GB at 20 MB/s take 1.3 h; 500 steps of 4.2 s take 0.6 h.
    finding = only(large(preflight={"upload_bytes_per_s": 2e7}), LARGE_FACTS)
    assert (finding.check, finding.severity) == ("blocking-upload", "stop")
    assert "every save waits" in finding.saw
    skips = large(preflight={"upload_bytes_per_s": 2e7}, save={"when_busy": "skip"})
    assert only(skips, LARGE_FACTS).severity == "warn"
    deltas = large(preflight={"upload_bytes_per_s": 2e7}, save={"full_every": 3})
    assert found(deltas, LARGE_FACTS) == []
    given = large(preflight={"upload_bytes_per_s": 2e7, "step_s": 12.0})
    assert found(given, LARGE_FACTS) == []
    just = {"step_s": 1.0, "upload_bytes_per_s": 866_760.0}  # ten seconds, and ten apart
    assert found(small(preflight=just), SMALL_FACTS) == []


def test_a_synchronous_save_to_a_remote_store_blocks_too() -> None:
    names = found(large(save={"asynchronous": False}), LARGE_FACTS)
    assert names == [("synchronous-saves", "warn"), ("blocking-upload", "warn")]


@pytest.mark.parametrize(
    ("preflight_changes", "train", "said"),
    [
        ({"reference_batch_tokens": 10_000}, {}, "262144 tokens"),
        ({"reference_batch_tokens": 4_000_000, "reference_learning_rate": None}, {}, "262144"),
        ({}, {"learning_rate": 1e-4}, "is 0.0001"),
        # A quarter of the batch wants half of the rate.
        ({"reference_batch_tokens": 1_048_576, "reference_learning_rate": 5e-5}, {}, "2.5e-05"),
    ],
)
def test_batch_and_learning_rate(
    preflight_changes: dict[str, Any], train: dict[str, Any], said: str
) -> None:
    findings = preflight(large(preflight=preflight_changes, train=train), LARGE_FACTS).findings
    assert {(item.check, item.severity) for item in findings} == {
        ("batch-and-learning-rate", "warn")
    }
    assert any(said in item.saw for item in findings)


def test_a_learning_rate_that_goes_with_the_root_of_the_batch_is_in_line() -> None:
    in_line = {"reference_batch_tokens": 4 * 262_144, "reference_learning_rate": 2e-5}
    assert found(large(preflight=in_line), LARGE_FACTS) == []
    reference = {"reference_batch_tokens": 10, "reference_learning_rate": 1.0}
    assert found(small(preflight=reference), replace(SMALL_FACTS, data=None)) == []


def test_precision_that_is_left_unused() -> None:
    finding = only(large(train__fsdp2={"float8": "off"}), LARGE_FACTS)
    assert (finding.check, finding.severity) == ("precision", "warn")
    assert "8.03 billion parameters are trained in BF16" in finding.saw
    for facts in (
        on_machine(LARGE_FACTS, accelerators=(replace(H100, capability=8.0),) * 8),
        on_machine(LARGE_FACTS, accelerators=(replace(H100, capability=None),) * 8),
        with_shape(LARGE_FACTS, parameters=6_900_000_000, trainable=6_900_000_000),
        with_shape(LARGE_FACTS, trainable=1_000_000),
    ):
        assert found(large(train__fsdp2={"float8": "off"}), facts) == []


def test_precision_that_is_not_there() -> None:
    old = on_machine(LARGE_FACTS, accelerators=(replace(H100, capability=8.6),) * 8)
    finding = only(large(), old)
    assert (finding.check, finding.severity) == ("precision", "stop")
    assert "without FP8" in finding.saw
    here = on_machine(SMALL_FACTS, packages=("torchao",))
    assert only(small(train__fsdp2={"float8": "on"}), here).severity == "stop"
    assert only(small(train__fsdp2={"float8": "emulated"}), here).severity == "warn"
    older = on_machine(LARGE_FACTS, accelerators=(replace(H100, capability=7.0),) * 8)
    finding = only(large(train__fsdp2={"float8": "off"}), older)
    assert "without BF16" in finding.saw


def test_resume_without_optimizer() -> None:
    weights_only = saved(20, without_optimizer=240)
    finding = only(small(), with_checkpoints(SMALL_FACTS, weights_only))
    assert (finding.check, finding.severity) == ("resume-without-optimizer", "stop")
    assert "small-talk/20" in finding.saw
    assert only(small(), with_checkpoints(SMALL_FACTS, weights_only, saved(10))).severity == "warn"
    fresh = with_checkpoints(SMALL_FACTS, weights_only, fresh_start=True)
    assert only(small(), fresh).severity == "warn"


def test_a_base_model_that_is_another_trainings_checkpoint() -> None:
    assert SMALL_FACTS.model is not None
    taken_up = replace(SMALL_FACTS, model=replace(SMALL_FACTS.model, left_behind=("optimizer.pt",)))
    finding = only(small(), taken_up)
    assert (finding.check, finding.severity) == ("resume-without-optimizer", "warn")
    assert "optimizer.pt" in finding.saw
    # Once the run has checkpoints of its own it goes on from these.
    assert found(small(), with_checkpoints(taken_up, saved(10))) == []


# --- what cannot work, or wastes much -------------------------------------------------


def test_memory_of_an_accelerator() -> None:
    tight = on_machine(LARGE_FACTS, accelerators=(replace(H100, memory_bytes=24 * GB),) * 8)
    finding = only(large(), tight)
    assert (finding.check, finding.severity) == ("memory", "stop")
    assert "32.6 GB are needed and 24 GB are there" in finding.saw
    assert "use more ranks" in finding.mend
    zero3 = large(train={"strategy": "zero3", "world_size": 64})
    (finding,) = (it for it in preflight(zero3, tight).findings if it.check == "memory")
    assert "33.6 GB are needed" in finding.saw
    assert "before it is sharded" in finding.mend
    close = on_machine(LARGE_FACTS, accelerators=(replace(H100, memory_bytes=35 * GB),) * 8)
    assert only(large(), close).severity == "warn"


def test_memory_of_the_host_for_all_ranks_on_it() -> None:
    finding = only(small(), on_machine(SMALL_FACTS, memory_bytes=3 * GB))
    assert (finding.check, finding.severity) == ("memory", "stop")
    assert "3.04 GB are needed" in finding.saw
    assert "micro_batch_rows" in finding.mend
    heavy = large(train={"world_size": 2}, adapter={"method": "full"})
    few = on_machine(LARGE_FACTS, accelerators=(H100,) * 2)
    assert "use more ranks" in only(heavy, few).mend


def test_checkpoint_space() -> None:
    facts = in_store(SMALL_FACTS, free_bytes=30_000_000)
    finding = only(small(), facts)
    assert (finding.check, finding.severity) == ("checkpoint-space", "stop")
    assert "4 more checkpoints" in finding.saw
    assert found(small(), in_store(SMALL_FACTS, free_bytes=35_000_000)) == []
    # Three of the four stand already; one more is to come, and one beside those that are kept.
    assert found(small(), with_checkpoints(facts, *(saved(s) for s in (30, 20, 10)))) == []
    kept = small(train={"steps": 400}, preflight={"keep_checkpoints": 2})
    assert found(kept, facts) == []
    assert "3 more" in only(kept, in_store(SMALL_FACTS, free_bytes=20_000_000)).saw
    here = with_checkpoints(in_store(SMALL_FACTS, free_bytes=10_000_000), saved(20), saved(10))
    assert found(kept, here) == []


def test_save_interval() -> None:
    finding = only(small(save={"every_minutes": 300.0}), SMALL_FACTS)
    assert (finding.check, finding.severity) == ("save-interval", "warn")
    assert "5 h apart" in finding.saw
    quick = {"step_s": 10.0}
    assert found(small(save={"every_minutes": 300.0}, preflight=quick), SMALL_FACTS) == []
    slow = small(save={"every_minutes": 300.0, "every_steps": 40}, preflight={"step_s": 500.0})
    assert "5 h apart" in only(slow, SMALL_FACTS).saw
    allowed = small(save={"every_minutes": 300.0}, preflight={"numbers": {"lost_minutes": 300.0}})
    assert found(allowed, SMALL_FACTS) == []


def test_padding_that_is_the_end_token_is_told_apart_and_none_at_all_is_not() -> None:
    assert SMALL_FACTS.tokenizer is not None
    assert SMALL_FACTS.tokenizer.padding == SMALL_FACTS.tokenizer.end
    for padding, end, is_found in ((None, None, True), (None, "</s>", False), ("<p>", None, False)):
        tokenizer = replace(SMALL_FACTS.tokenizer, padding=padding, end=end)
        names = found(small(), replace(SMALL_FACTS, tokenizer=tokenizer))
        assert names == ([("padding", "stop")] if is_found else [])


def test_chat_template() -> None:
    assert SMALL_FACTS.tokenizer is not None
    for changes, said in (
        ({"template_fault": "the chat template alters a text"}, "no marks for answers, and the"),
        ({"template_fault": "none", "has_template": False}, "no chat template"),
    ):
        tokenizer = replace(SMALL_FACTS.tokenizer, **changes)
        finding = only(small(), replace(SMALL_FACTS, tokenizer=tokenizer))
        assert (finding.check, finding.severity) == ("chat-template", "stop")
        assert said in finding.saw


def test_max_length() -> None:
    assert SMALL_FACTS.model is not None
    short = replace(SMALL_FACTS, model=replace(SMALL_FACTS.model, positions=255))
    finding = only(small(), short)
    assert (finding.check, finding.severity) == ("max-length", "stop")
    assert "256" in finding.saw
    for positions in (256, None):
        model = replace(SMALL_FACTS.model, positions=positions)
        assert found(small(), replace(SMALL_FACTS, model=model)) == []


def test_adapter_targets() -> None:
    wrong = small(adapter={"targets": ["q_proj", "query"]})
    finding = only(wrong, SMALL_FACTS)
    assert (finding.check, finding.severity) == ("adapter-targets", "stop")
    assert "names query," in finding.saw
    assert found(small(adapter={"targets": ["query"], "method": "full"}), SMALL_FACTS) == []


def test_activation_checkpointing() -> None:
    config = large(train={"activation_checkpointing": False, "micro_batch_rows": 1})
    huge = with_shape(LARGE_FACTS, parameters=30_000_000_001)
    (finding,) = [
        item
        for item in preflight(config, huge).findings
        if item.check == "activation-checkpointing"
    ]
    assert finding.severity == "warn"
    assert "activation-checkpointing" not in dict(found(large(), huge))
    assert "activation-checkpointing" not in dict(found(config, LARGE_FACTS))


def test_compile_time() -> None:
    compiled = small(train__fsdp2={"compile_layers": True})
    finding = only(compiled, SMALL_FACTS)
    assert (finding.check, finding.severity) == ("compile-time", "warn")
    assert (
        found(
            changed(SMALL, train={"steps": 200}, train__fsdp2={"compile_layers": True}), SMALL_FACTS
        )
        == []
    )
    # 180 s are a tenth of 1800 s: 20,000 steps of 0.09 s, or more.
    for step_s, is_found in ((0.08, True), (0.1, False)):
        given = large(preflight={"step_s": step_s, "upload_bytes_per_s": None})
        assert bool(found(given, LARGE_FACTS)) is is_found


def test_prefetch() -> None:
    one_rank = small(train={"world_size": 1}, train__fsdp2={"prefetch_layers": 1})
    assert only(one_rank, SMALL_FACTS).check == "prefetch"
    # 30 layers of 3.5 million parameters in two bytes: 212 MB on each of two ranks.
    many = small(train__fsdp2={"prefetch_layers": 1000})
    assert found(many, SMALL_FACTS) == []
    limited = small(
        train__fsdp2={"prefetch_layers": 1000}, preflight={"numbers": {"prefetch_share": 0.05}}
    )
    assert "212 MB" in only(limited, SMALL_FACTS).saw
    deepspeed = on_machine(SMALL_FACTS, packages=("deepspeed",))
    zero3 = {"strategy": "zero3"}
    assert found(small(train=zero3), deepspeed) == []
    idle = small(train=zero3, train__zero3={"prefetch_elements": 0})
    assert "each layer waits" in only(idle, deepspeed).saw


def test_wrapping() -> None:
    whole = small(train={"replicas": 2})
    finding = only(whole, SMALL_FACTS)
    assert (finding.check, finding.severity) == ("wrapping", "warn")
    across = large(train={"world_size": 32, "replicas": 2})
    rehearsed = with_checkpoints(LARGE_FACTS, resharded=((32, 16),))
    assert "set train.replicas to 4" in only(across, rehearsed).mend
    within = large(train={"world_size": 32, "replicas": 4})
    assert found(within, rehearsed) == []
    deepspeed = on_machine(SMALL_FACTS, packages=("deepspeed",))
    # 135 million parameters in two bytes, 271 MB, of which a fifteenth of 4 GB is less.
    persist = {
        "train": {"strategy": "zero3"},
        "train__zero3": {"persist_below_elements": 10_000_000},
    }
    strict = {"preflight": {"numbers": {"prefetch_share": 0.065}}}
    assert found(small(**persist), deepspeed) == []
    finding = only(small(**persist, **strict), deepspeed)
    assert finding.check == "wrapping"
    assert "271 MB of 4 GB" in finding.saw
    persist["train__zero3"] = {"persist_below_elements": 3_500_000}
    assert found(small(**persist, **strict), deepspeed) == []


@pytest.mark.parametrize(
    ("changes", "package"),
    [
        ({"train": {"strategy": "zero3"}}, "deepspeed"),
        ({"tracking": {"tensorboard": True}}, "tensorboard"),
        ({"tracking": {"wandb": {"project": "p"}}}, "wandb"),
    ],
)
def test_packages(changes: dict[str, Any], package: str) -> None:
    finding = only(small(**changes), SMALL_FACTS)
    assert (finding.check, finding.severity) == ("packages", "stop")
    assert package in finding.saw
    assert found(small(**changes), on_machine(SMALL_FACTS, packages=(package,))) == []
    assert only(large(), on_machine(LARGE_FACTS, packages=())).check == "packages"
