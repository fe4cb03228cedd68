"""Whether an optimizer can go on with what a checkpoint holds of it: seen, and not believed.

Weights that load say nothing of the optimizer beside them (huggingface/accelerate#3971). So each
trained parameter gets a fresh AdamW, which loads the state by torch's own means and takes a step
with a gradient of zero. One parameter after another: memory is needed for one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from strongroom.canonical import JsonObject
from strongroom.checkpoint.reading.reader import CheckpointReader

KINDS = ("step", "exp_avg", "exp_avg_sq")
SETTINGS = ("lr", "betas", "eps", "weight_decay")


def optimizer_faults(reader: CheckpointReader, parameters: Mapping[str, Tensor]) -> list[str]:
    """Say what keeps AdamW from going on with a checkpoint; nothing if it can.

    Args:
        reader: of the checkpoint.
        parameters: what is trained, by name, as the checkpoint has it; left as it is.

    Raises:
        InputError, IntegrityError: some of the state is missing, or not what the manifest promises.
    """
    state = reader.manifest.state
    groups = state["optimizer"]["param_groups"]
    faults = _group_faults(groups, set(parameters))
    if faults:
        return faults
    counts: dict[str, Any] = {}
    for name, parameter in parameters.items():
        entries = [reader.manifest.tensor(f"optim.state.{name}.{kind}") for kind in KINDS]
        held = reader.read_all(entries, threads=reader.threads)
        loaded = {kind: held[entry.name] for kind, entry in zip(KINDS, entries, strict=True)}
        (group,) = (group for group in groups if name in group["params"])
        counts[name] = loaded["step"].tolist()
        faults += [f"optim.state.{name}: {fault}" for fault in _faults(parameter, loaded, group)]
    return [*faults, *_count_faults(counts, _steps_learnt(state))]


def _group_faults(groups: list[JsonObject], trained: set[str]) -> list[str]:
    """Every trained parameter is in one group, and every group has its settings."""
    where = "state.optimizer.param_groups"
    for group in groups:
        if missing := [name for name in (*SETTINGS, "params") if name not in group]:
            return [f"{where}: expected {', '.join(missing)} in each, got a group without"]
    counts = Counter(str(name) for group in groups for name in group["params"])
    if counts == Counter(trained):
        return []
    wrong = {name: count for name, count in counts.items() if name not in trained or count > 1}
    return [
        f"{where}: expected each trained parameter in one group, got none with "
        f"{sorted(trained - set(counts))}, and too many with {sorted(wrong)}"
    ]


def _count_faults(counts: Mapping[str, Any], steps: int) -> list[str]:
    """Parameters were updated at every step, but for one that got no gradient in some."""
    faults = [
        f"optim.state.{name}.step: expected at most {steps}, as many steps as were learnt from, "
        f"got {count}"
        for name, count in counts.items()
        if not (isinstance(count, (int, float)) and 0 <= count <= steps)
    ]
    if not faults and max(counts.values()) != steps:
        faults.append(
            f"optim.state: expected {steps} updates, as many steps as were learnt from, got at "
            f"most {max(counts.values())}"
        )
    return faults


def _steps_learnt(state: JsonObject) -> int:
    """Return how many updates an optimizer has made: steps that were passed over are none."""
    step, passed_over = int(state["counters"]["step"]), state.get("passed_over", ())
    return step - sum(1 for each in passed_over if each <= step)


def _faults(parameter: Tensor, state: dict[str, Tensor], group: JsonObject) -> list[str]:
    """Load one parameter's state into an AdamW of its own, and take a step."""
    updated = nn.Parameter(parameter.detach().clone())
    optimizer = torch.optim.AdamW([updated])
    (own,) = optimizer.state_dict()["param_groups"]
    settings = {name: group[name] for name in SETTINGS}
    try:
        optimizer.load_state_dict({"state": {0: state}, "param_groups": [{**own, **settings}]})
        updated.grad = torch.zeros_like(updated)
        optimizer.step()
    except (TypeError, ValueError, RuntimeError, ArithmeticError) as error:
        return [f"expected AdamW to go on with it, got {type(error).__name__}: {error}"]
    count = updated.numel() - int(updated.isfinite().sum())
    return [f"expected a finite update, got {count} values that are not"] if count else []
