"""What rung 2 asks of a manifest: pure decisions, one function a question, every fault listed.

No torch here, and no storage: values and shard headers are for `rungs` to read.
"""

from __future__ import annotations

from functools import partial
from itertools import count, takewhile

from strongroom.canonical import JsonObject
from strongroom.checkpoint.manifest import Manifest
from strongroom.checkpoint.shard import METADATA_FILE, shard_name
from strongroom.checkpoint.tiling import tile_faults
from strongroom.data.cursor import Cursor
from strongroom.errors import FormatError

RNG_KINDS = ("torch", "python", "numpy")
ACCELERATOR_KIND = "cuda"
"""A fourth random state, where training ran on an accelerator."""
COUNTERS = ("step", "tokens", "samples")
ROWS_MAX = 2**20
"""Most rows whose order is made again here, which takes memory in proportion: a forged manifest may
name any number. Resuming makes the order of as many rows as the data has."""


def structure_faults(manifest: Manifest) -> list[str]:
    """Say what keeps the checkpoint from being whole and of one moment; nothing if it is."""
    return [
        *_file_faults(manifest),
        *(fault for tensor in manifest.tensors for fault in tile_faults(tensor)),
        *_model_faults(manifest),
        *_optimizer_faults(manifest),
        *_rng_faults(manifest),
        *_state_faults(manifest),
    ]


def _file_faults(manifest: Manifest) -> list[str]:
    """Every rank has shards numbered from 0 without a gap, at least one."""
    names = {file.name for file in manifest.own_files}
    if manifest.world_size > len(names):  # which a forged manifest may put at any number
        return [f"files: expected a shard of each of {manifest.world_size} ranks, got {len(names)}"]
    expected = {METADATA_FILE}
    for rank in range(manifest.world_size):
        expected.add(shard_name(rank))
        expected.update(takewhile(names.__contains__, map(partial(shard_name, rank), count(1))))
    if expected == names:
        return []
    return [
        f"files: expected shards of each of {manifest.world_size} ranks, numbered without a gap, "
        f"and {METADATA_FILE}, missing {sorted(expected - names)}, "
        f"too many {sorted(names - expected)}"
    ]


def _model_faults(manifest: Manifest) -> list[str]:
    faults = []
    if not any(tensor.name.startswith("model.") for tensor in manifest.tensors):
        faults.append("tensors: expected parameters under 'model.', got none")
    base_model = _section(manifest.state, "model").get("base_model")
    if base_model != str(manifest.inputs.base_model):
        faults.append(
            f"state.model.base_model: expected {manifest.inputs.base_model}, got {base_model!r}"
        )
    return faults


def _optimizer_faults(manifest: Manifest) -> list[str]:
    """Every trained parameter has the same kinds of state, each a scalar or of its own shape.

    An empty section is lost state, not a fresh start (pytorch/pytorch#140898).
    """
    shapes = {tensor.name: tensor.shape for tensor in manifest.tensors}
    kinds: dict[str, set[str]] = {
        name.removeprefix("model."): set() for name in shapes if name.startswith("model.")
    }
    faults = []
    for name, shape in shapes.items():
        if not name.startswith("optim.state."):
            continue
        parameter, _, kind = name.removeprefix("optim.state.").rpartition(".")
        if parameter not in kinds:
            faults.append(f"{name}: is state of a parameter that the checkpoint does not hold")
            continue
        kinds[parameter].add(kind)
        if shape not in {(), shapes[f"model.{parameter}"]}:
            faults.append(
                f"{name}: expected a scalar or the shape of its parameter, "
                f"{list(shapes[f'model.{parameter}'])}, got {list(shape)}"
            )
    wanted = set().union(*kinds.values())
    faults += [
        f"optim.state.{parameter}: expected {', '.join(sorted(wanted)) or 'optimizer state'}, "
        f"got {', '.join(sorted(got)) or 'none'}"
        for parameter, got in kinds.items()
        if got != wanted or not got
    ]
    groups = _section(manifest.state, "optimizer").get("param_groups")
    if not groups:
        faults.append("state.optimizer.param_groups: expected at least one group, got none")
    elif not _are_groups(groups):
        faults.append(f"state.optimizer.param_groups: expected a list of objects, got {groups!r}")
    return faults


def _are_groups(groups: object) -> bool:
    return isinstance(groups, list) and all(
        isinstance(group, dict) and isinstance(group.get("params", []), list) for group in groups
    )


def _rng_faults(manifest: Manifest) -> list[str]:
    if manifest.world_size > len(manifest.tensors):
        return [f"random state: expected some of each of {manifest.world_size} ranks"]
    got = {tensor.name for tensor in manifest.tensors if tensor.name.startswith("rng.")}
    is_accelerated = any(name.endswith(f".{ACCELERATOR_KIND}") for name in got)
    kinds = (*RNG_KINDS, ACCELERATOR_KIND) if is_accelerated else RNG_KINDS
    expected = {f"rng.{rank}.{kind}" for rank in range(manifest.world_size) for kind in kinds}
    if expected == got:
        return []
    return [
        f"random state: expected {', '.join(kinds)} of each of {manifest.world_size} ranks, "
        f"missing {sorted(expected - got)}, too many {sorted(got - expected)}"
    ]


def _state_faults(manifest: Manifest) -> list[str]:
    faults = _cursor_faults(_section(manifest.state, "cursor"))
    if not _section(manifest.state, "scheduler"):
        faults.append("state.scheduler: expected the schedule's state, got none")
    counters = _section(manifest.state, "counters")
    faults += [
        f"state.counters.{name}: expected an integer, got {counters.get(name)!r}"
        for name in COUNTERS
        if type(counters.get(name)) is not int
    ]
    if counters.get("step") != manifest.name.step.number:
        faults.append(
            f"state.counters.step: expected {manifest.name.step.number}, "
            f"got {counters.get('step')!r}"
        )
    passed_over = manifest.state.get("passed_over", [])
    if not (isinstance(passed_over, list) and all(type(step) is int for step in passed_over)):
        faults.append(f"state.passed_over: expected a list of steps, got {passed_over!r}")
    faults += [
        f"metrics.{name}: expected a number, got none"
        for name in ("train_loss", "probe_loss")
        if name not in manifest.metrics
    ]
    return faults


def _cursor_faults(document: JsonObject) -> list[str]:
    try:
        Cursor.from_json(document, max_ordered_rows=ROWS_MAX)
    except FormatError as error:
        return [f"state.{error}"]
    return []


def _section(state: JsonObject, name: str) -> JsonObject:
    section = state.get(name)
    return section if isinstance(section, dict) else {}
