"""Draw held-out loss over the steps of a run, with its base model as a line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from strongroom.governance import drawing
from strongroom.governance.drawing import Element, add, add_text

WIDTH, HEIGHT = 960.0, 340.0
LEFT, RIGHT, TOP, BOTTOM = 52.0, 184.0, 30.0, 52.0
LABEL_GAP = 18.0
"""Least distance in height between two labels at the right edge."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LossPoint:
    """Held-out loss of one evaluated checkpoint, in nats per completion token."""

    step: int
    loss: float
    subject: bool = False
    """Whether the page is about this checkpoint."""


def draw_loss(points: Sequence[LossPoint], *, base_loss: float) -> str | None:
    """Return the drawing as SVG, or None where there is no finite loss to show.

    Args:
        points: one for each evaluated checkpoint; those that are not finite are left out.
        base_loss: of the base model on the same rows; no line is drawn where it is not finite.
    """
    shown = sorted((p for p in points if math.isfinite(p.loss)), key=lambda p: (p.step, p.subject))
    if not shown:
        return None
    has_base = math.isfinite(base_loss)
    losses = [point.loss for point in shown] + ([base_loss] if has_base else [])
    scale = _Scale(
        steps=drawing.ticks(0, max(point.step for point in shown), most=9),
        losses=drawing.ticks(min(losses), max(losses), most=5),
    )
    svg = drawing.canvas(
        WIDTH,
        HEIGHT,
        name="loss",
        title="Held-out loss over training steps",
        description=_describe(shown, base_loss if has_base else None),
    )
    _add_axes(svg, scale)
    labels = _add_series(svg, scale, shown)
    if has_base:
        y = scale.y(base_loss)
        add(svg, "line", "base-line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y)
        labels.append((y, f"base model {base_loss:.3f}", "base-label"))
    _add_labels(svg, labels)
    return drawing.write(svg)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Scale:
    steps: list[float]
    losses: list[float]

    def x(self, step: float) -> float:
        share = (step - self.steps[0]) / (self.steps[-1] - self.steps[0])
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, loss: float) -> float:
        share = (loss - self.losses[0]) / (self.losses[-1] - self.losses[0])
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _add_axes(svg: Element, scale: _Scale) -> None:
    decimals = _decimals(scale.losses)
    for loss in scale.losses:
        y = scale.y(loss)
        add(svg, "line", "grid", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y)
        add_text(svg, LEFT - 10, y + 5, f"{loss:.{decimals}f}", "tick", anchor="end")
    floor = HEIGHT - BOTTOM
    add(svg, "line", "axis", x1=LEFT, x2=WIDTH - RIGHT, y1=floor, y2=floor)
    for step in scale.steps:
        if step != int(step):
            continue
        x = scale.x(step)
        add(svg, "line", "axis", x1=x, x2=x, y1=floor, y2=floor + 5)
        add_text(svg, x, floor + 22, f"{int(step):,}", "tick", anchor="middle")
    middle = (LEFT + WIDTH - RIGHT) / 2
    add_text(svg, middle, HEIGHT - 6, "training step", "axis-name", anchor="middle")
    add_text(svg, 4, 14, "held-out loss, nats per token (lower is better)", "axis-name")


def _add_series(
    svg: Element, scale: _Scale, shown: Sequence[LossPoint]
) -> list[tuple[float, str, str]]:
    line = " ".join(
        f"{drawing.number(scale.x(p.step))},{drawing.number(scale.y(p.loss))}" for p in shown
    )
    add(svg, "polyline", "series", points=line)
    labels = []
    for point in shown:
        x, y = scale.x(point.step), scale.y(point.loss)
        if point.subject:
            add(svg, "line", "drop", x1=x, x2=x, y1=y, y2=HEIGHT - BOTTOM)
            add(svg, "circle", "halo", cx=x, cy=y, r=10)
            labels.append((y, f"this checkpoint {point.loss:.3f}", "subject-label"))
        mark = add(svg, "circle", "point subject" if point.subject else "point", cx=x, cy=y, r=5)
        add(mark, "title").text = f"step {point.step:,}: {point.loss:.4f}"
    return labels


def _add_labels(svg: Element, labels: list[tuple[float, str, str]]) -> None:
    """Write the labels at the right edge, pushed apart where they would touch."""
    taken = -math.inf
    for y, words, kind in sorted(labels):
        taken = max(y + 5, taken + LABEL_GAP)
        add_text(svg, WIDTH - RIGHT + 12, taken, words, kind, fit=(RIGHT - 8, 13))


def _decimals(values: Sequence[float]) -> int:
    step = values[1] - values[0]
    return max(0, min(6, -math.floor(math.log10(step) + 1e-9)))


def _describe(shown: Sequence[LossPoint], base_loss: float | None) -> str:
    words = "; ".join(f"step {point.step}: {point.loss:.4f}" for point in shown)
    base = "unknown" if base_loss is None else f"{base_loss:.4f}"
    return f"Held-out loss by step: {words}. Base model: {base}."
