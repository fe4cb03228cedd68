"""What saving every 20 steps takes from a training: its throughput beside one that saves nothing.

`python -m benchmarks.training`. Each trial is a process that trains a stack of linear layers with
AdamW on one core, as a device would, and saves parameters and both moments. The first save fills
the memory that is kept; then come `STEPS` measured steps, a save at the first of every 20. Storage
is on another machine, at the end of a line of 250 MB/s; see `far_endpoint`.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.command import Measured, Settings, run
from benchmarks.measure import Meter
from benchmarks.places import Place, open_place
from benchmarks.rounds import Target, Trial, run_rounds
from benchmarks.states import MIB
from benchmarks.systems import OURS, SYSTEMS

STEPS = 60
SAVE_EVERY = 20
WARM_STEPS = 3
HIDDEN = 1024
BATCH_ROWS = 256
ADAM_COPIES = 3  # a parameter and its two moments
NO_SAVES = "no saves"
SAVING = (*OURS, "DCP s3fs, async kept")


def measure(settings: Settings) -> Measured:
    """Return one table, and the targets."""
    with open_place("far", settings.folder) as opened:
        trials = [
            Trial(
                system=system,
                work="benchmarks.training:train",
                arguments={
                    "place": opened.place.to_json(),
                    "system": system,
                    "mib": settings.mib,
                },
                after=opened.empty,
            )
            for system in (NO_SAVES, *filter(settings.wants, SAVING))
        ]
        table = run_rounds(
            f"training, a save every {SAVE_EVERY} steps",
            trials,
            settings.rounds,
            compared=("steps_per_s", NO_SAVES),
        )
    kept = [(system, table.ratio(system, "steps_per_s", NO_SAVES)) for system in OURS]
    return [table], [
        Target(f"throughput kept by {system}", ">=", 0.98, ratio) for system, ratio in kept
    ]


def train(*, place: dict[str, Any], system: str, mib: int) -> dict[str, float]:
    """Train, with saves by one system or none; return how fast that was."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    num_layers = max(1, mib * MIB // (ADAM_COPIES * HIDDEN * HIDDEN * 4))
    model = nn.Sequential(*(nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(num_layers)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch = torch.randn(BATCH_ROWS, HIDDEN)
    saving = None if system == NO_SAVES else SYSTEMS["gateway"][system](Place.from_json(place))
    waited_s = 0.0

    def step(number: int, *, save: bool) -> None:
        nonlocal waited_s
        started = time.perf_counter()
        if save and saving is not None:
            saving.finish()
            saving.begin(_state_of(model, optimizer), number)
        waited_s += time.perf_counter() - started
        model(batch).square().mean().backward()
        started = time.perf_counter()
        if save and saving is not None:
            saving.before_update()
        waited_s += time.perf_counter() - started
        optimizer.step()
        optimizer.zero_grad()

    for number in range(WARM_STEPS):
        step(number, save=number == WARM_STEPS - 1)
    if saving is not None:
        saving.finish()
    waited_s = 0.0
    with Meter() as meter:
        for number in range(STEPS):
            step(WARM_STEPS + number, save=number % SAVE_EVERY == 0)
    if saving is not None:
        saving.finish()
        saving.close()
    return {
        "steps_per_s": STEPS / meter.cost.wall_s,
        "client_cpu_s": meter.cost.client_cpu_s,
        "waited_s": waited_s,
    }


def _state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return parameters and moments, by name, as they are: nothing is copied."""
    state: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        state[f"model.{name}"] = parameter.detach()
        for kind, value in optimizer.state[parameter].items():
            state[f"optim.state.{name}.{kind}"] = value
    return state


if __name__ == "__main__":
    what = "Training: what saving every 20 steps takes from its throughput."
    run(what, measure, mib=256, places=(), systems=SAVING)
