"""Draw a lineage graph: inputs, run, attempts, checkpoints and stages, from left to right.

A run may have thousands of checkpoints. Drawn are those that matter to the subject: itself, those
resumed from or in a stage, the first and last of each attempt, then the nearest; a box says how
many were left out. The table beside the drawing names what it came from in full.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import groupby

from strongroom.governance import drawing
from strongroom.governance.drawing import Element, add, add_text
from strongroom.governance.lineage import INPUT_KINDS, Lineage, Node, NodeKind

WIDTH = 960.0
COLUMN_X = {"inputs": 1.0, "run": 196.0, "attempts": 438.0, "checkpoints": 588.0, "stages": 834.0}
COLUMN_WIDTH = {
    "inputs": 147.0,
    "run": 194.0,
    "attempts": 102.0,
    "checkpoints": 198.0,
    "stages": 125.0,
}
HEADINGS = {
    "inputs": "made from",
    "run": "by the run",
    "attempts": "launched as",
    "checkpoints": "which saved",
    "stages": "now in stage",
}
HEAD = 34.0
BOX, GAP, GROUP_GAP, MORE_BOX = 50.0, 10.0, 22.0, 26.0
STATE_FONT = 11.0
MOST_PER_ATTEMPT, MOST_PER_OTHER_ATTEMPT = 5, 3
MOST_ATTEMPTS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class _Box:
    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        return self.y + self.height / 2

    @property
    def right(self) -> float:
        return self.x + self.width


@dataclass(frozen=True, kw_only=True, slots=True)
class _More:
    """Stands for nodes that are not drawn."""

    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Group:
    """One attempt and what is drawn of its checkpoints; without attempt: attempts left out."""

    attempt: Node | None
    items: tuple[Node | _More, ...]


def draw_lineage(lineage: Lineage) -> str:
    """Return the graph as SVG."""
    groups = _groups(lineage)
    body = sum(_group_height(group) for group in groups) + GROUP_GAP * (len(groups) - 1)
    inputs = lineage.of_kind(*INPUT_KINDS)
    height = HEAD + max(body, _stack_height(len(inputs))) + 8
    svg = drawing.canvas(
        WIDTH,
        height,
        name="lineage",
        title="Lineage of the checkpoint",
        description=_describe(lineage),
    )
    _add_arrowheads(svg)
    boxes: dict[str, _Box] = {}
    edges = add(svg, "g", "edges")
    for column, words in HEADINGS.items():
        middle = COLUMN_X[column] + COLUMN_WIDTH[column] / 2
        add_text(svg, middle, 14, words, "heading", anchor="middle")
    _add_stack(svg, boxes, inputs, "inputs", height)
    _add_stack(svg, boxes, lineage.of_kind(NodeKind.RUN), "run", height)
    _add_groups(svg, boxes, groups, HEAD + (height - HEAD - 8 - body) / 2)
    stages = lineage.of_kind(NodeKind.STAGE)
    if stages:
        _add_stack(svg, boxes, stages, "stages", height)
    else:
        _add_note(svg, _stack(1, "stages", height)[0], "none yet")
    _add_edges(edges, lineage, boxes)
    return drawing.write(svg)


def _groups(lineage: Lineage) -> list[_Group]:
    attempts = lineage.of_kind(NodeKind.ATTEMPT)
    saved = {edge.target: edge.source for edge in lineage.edges if edge.relation == "saved"}
    subject = lineage.subject
    keep = {subject.key} | {
        edge.source for edge in lineage.edges if edge.relation in {"was resumed by", "is in stage"}
    }
    drawn = _choose(
        attempts, keep={saved[subject.key]}, near=saved[subject.key], most=MOST_ATTEMPTS
    )
    groups = []
    for item in drawn:
        if isinstance(item, _More):
            groups.append(_Group(attempt=None, items=(item,)))
            continue
        own = [n for n in lineage.of_kind(NodeKind.CHECKPOINT) if saved[n.key] == item.key]
        most = MOST_PER_ATTEMPT if subject in own else MOST_PER_OTHER_ATTEMPT
        chosen = _choose(own, keep=keep, near=subject.key, most=most)
        groups.append(_Group(attempt=item, items=tuple(chosen)))
    return groups


def _choose(
    nodes: Sequence[Node], *, keep: AbstractSet[str], near: str, most: int
) -> Iterator[Node | _More]:
    """Yield the nodes to draw in order: `keep`, then ends, then the nearest to `near`, to `most`.

    Each stretch of nodes left out is one `_More`.
    """
    place = next((i for i, node in enumerate(nodes) if node.key == near), len(nodes) - 1)
    ends = {0, len(nodes) - 1}

    def rank(index: int) -> tuple[bool, bool, int]:
        return (nodes[index].key not in keep, index not in ends, abs(index - place))

    drawn = set(sorted(range(len(nodes)), key=rank)[:most])
    for is_drawn, run in groupby(range(len(nodes)), key=lambda index: index in drawn):
        indices = list(run)
        if is_drawn:
            yield from (nodes[index] for index in indices)
        else:
            yield _More(count=len(indices))


def _item_height(item: Node | _More) -> float:
    return MORE_BOX if isinstance(item, _More) else BOX


def _group_height(group: _Group) -> float:
    heights = [_item_height(item) for item in group.items] or [BOX]
    return sum(heights) + GAP * (len(heights) - 1)


def _stack_height(count: int) -> float:
    return count * BOX + (count - 1) * GAP


def _stack(count: int, column: str, height: float) -> list[_Box]:
    """Return `count` boxes of a column, centred in the height below the headings."""
    top = HEAD + (height - HEAD - 8 - _stack_height(count)) / 2
    return [
        _Box(
            x=COLUMN_X[column],
            y=top + index * (BOX + GAP),
            width=COLUMN_WIDTH[column],
            height=BOX,
        )
        for index in range(count)
    ]


def _add_stack(
    svg: Element, boxes: dict[str, _Box], nodes: Sequence[Node], column: str, height: float
) -> None:
    for node, box in zip(nodes, _stack(len(nodes), column, height), strict=True):
        _add_node(svg, boxes, node, box)


def _add_groups(svg: Element, boxes: dict[str, _Box], groups: Sequence[_Group], top: float) -> None:
    for group in groups:
        y = top
        for item in group.items:
            box = _Box(
                x=COLUMN_X["checkpoints"],
                y=y,
                width=COLUMN_WIDTH["checkpoints"],
                height=_item_height(item),
            )
            if isinstance(item, _More):
                what = "checkpoint" if group.attempt else "attempt"
                plural = "" if item.count == 1 else "s"
                _add_note(svg, box, f"{item.count:,} more {what}{plural}")
            else:
                _add_node(svg, boxes, item, box)
            y += box.height + GAP
        height = _group_height(group)
        if group.attempt is not None:
            middle = top + (height - BOX) / 2
            _add_node(
                svg,
                boxes,
                group.attempt,
                _Box(x=COLUMN_X["attempts"], y=middle, width=COLUMN_WIDTH["attempts"], height=BOX),
            )
            if not group.items:
                _add_note(
                    svg,
                    _Box(
                        x=COLUMN_X["checkpoints"],
                        y=middle + (BOX - MORE_BOX) / 2,
                        width=COLUMN_WIDTH["checkpoints"],
                        height=MORE_BOX,
                    ),
                    "no checkpoint",
                )
        top += height + GROUP_GAP


_TONES = {"verified": "good", "quarantined": "bad", "failed verification": "bad"}


def _add_node(svg: Element, boxes: dict[str, _Box], node: Node, box: _Box) -> None:
    boxes[node.key] = box
    kind = "node " + (_TONES.get(node.state, "") if node.kind is NodeKind.CHECKPOINT else "")
    group = add(svg, "g", (kind + (" subject" if node.subject else "")).strip())
    add(group, "rect", "box", x=box.x, y=box.y, width=box.width, height=box.height, rx=7)
    room = box.width - 24
    left = box.x + 12
    if node.digest is None:
        add_text(group, left, box.middle + 5, node.title, "name", fit=(room, 14))
        return
    if node.state:
        add(group, "circle", "dot", cx=box.right - 14, cy=box.y + 16, r=4)
        add_text(group, box.right - 24, box.y + 20, node.state, "state", anchor="end")
        room -= 18 + len(node.state) * STATE_FONT * drawing.CHARACTER_EM
    add_text(group, left, box.y + 21, node.title, "name", fit=(room, 14))
    add_text(group, left, box.y + 39, node.digest.short, "digest")
    add(group, "title").text = f"{node.kind} {node.title}, {node.digest}"


def _add_note(svg: Element, box: _Box, words: str) -> None:
    group = add(svg, "g", "note")
    add(group, "rect", "box", x=box.x, y=box.y, width=box.width, height=box.height, rx=7)
    middle = box.x + box.width / 2
    add_text(group, middle, box.middle + 4, words, "words", anchor="middle")


def _add_edges(edges: Element, lineage: Lineage, boxes: dict[str, _Box]) -> None:
    subject = lineage.subject.key
    path = _ancestry(lineage)
    for edge in lineage.edges:
        if edge.source not in boxes or edge.target not in boxes:
            continue
        start, end = boxes[edge.source], boxes[edge.target]
        on_path = edge.target in path or edge.source == subject
        kind = "edge on-path" if on_path else "edge"
        if edge.relation == "was resumed by":
            # Backwards, from a checkpoint to the attempt that went on from it: below the others.
            start_at = (start.x, start.middle + 14)
            end_at = (end.right + 2, end.middle - 14)
            kind += " resumed"
        else:
            start_at = (start.right, start.middle)
            end_at = (end.x - 2, end.middle)
        bend = (start_at[0] + end_at[0]) / 2
        line = add(
            edges,
            "path",
            kind,
            d=_curve(start_at, bend, end_at),
            marker_end="url(#lineage-arrow-on-path)" if on_path else "url(#lineage-arrow)",
        )
        source, target = lineage.title_of(edge.source), lineage.title_of(edge.target)
        add(line, "title").text = f"{source} {edge.relation} {target}"


def _ancestry(lineage: Lineage) -> set[str]:
    """Return the keys of the subject and of everything it came from."""
    found = {lineage.subject.key}
    grown = True
    while grown:
        sources = {edge.source for edge in lineage.edges if edge.target in found}
        grown = not sources <= found
        found |= sources
    return found


def _curve(start: tuple[float, float], bend: float, end: tuple[float, float]) -> str:
    def point(x: float, y: float) -> str:
        return f"{drawing.number(x)} {drawing.number(y)}"

    return f"M{point(*start)} C{point(bend, start[1])} {point(bend, end[1])} {point(*end)}"


def _add_arrowheads(svg: Element) -> None:
    definitions = add(svg, "defs")
    for name in ("lineage-arrow", "lineage-arrow-on-path"):
        marker = add(
            definitions,
            "marker",
            id=name,
            viewBox="0 0 8 8",
            refX=7,
            refY=4,
            markerWidth=7,
            markerHeight=7,
            orient="auto-start-reverse",
        )
        add(marker, "path", name, d="M0 0.5 L7.5 4 L0 7.5 z")


def _describe(lineage: Lineage) -> str:
    titles = {node.key: f"{node.kind} {node.title}" for node in lineage.nodes}
    path = _ancestry(lineage)
    relations = [
        f"{titles[edge.source]} {edge.relation} {titles[edge.target]}"
        for edge in lineage.edges
        if edge.target in path or edge.source == lineage.subject.key
    ]
    return "; ".join(relations) + "."
