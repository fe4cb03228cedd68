"""A recipe that trains in seconds: a tiny model, a few rows, and the YAML file that names them."""

from __future__ import annotations

from pathlib import Path

from tests.support.tiny_model import make_chat_rows, make_tiny_model

STEPS = 6
EVERY_STEPS = 2

RECIPE = """
model: {{source: "{model}", dtype: float32}}
adapter: {{rank: 4, targets: [q_proj, v_proj]}}
data:
  sources: [{{uri: rows.jsonl, language: en}}]
  held_out_fraction: 0.2
  max_tokens: 128
train:
  steps: {steps}
  batch_rows: 4
  learning_rate: 0.02
  world_size: {world_size}
save: {{every_steps: {every_steps}}}
evaluation: {{max_rows: 8}}
"""


def make_tiny_recipe(
    folder: Path, *, steps: int = STEPS, every_steps: int = EVERY_STEPS, world_size: int = 1
) -> Path:
    """Write model, rows and `tiny.yaml` into `folder`; return the YAML file."""
    model = make_tiny_model(folder / "model")
    make_chat_rows(folder / "rows.jsonl", 60)
    path = folder / "tiny.yaml"
    path.write_text(
        RECIPE.format(model=model, steps=steps, every_steps=every_steps, world_size=world_size)
    )
    return path
