"""A checkpoint's lineage as a tree: run, inputs, attempts, and what each of them saved.

An attempt that resumed hangs under the checkpoint it resumed from, so the path from the top to a
checkpoint is how it came to be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from strongroom.canonical import JsonObject
from strongroom.cli.blocks import Cell, Tone, Tree

if TYPE_CHECKING:
    from strongroom.governance.lineage import Lineage, Node

TONES: dict[str, Tone] = {"verified": "good", "quarantined": "bad", "failed verification": "bad"}


def lineage_tree(lineage: Lineage) -> Tree:
    """Return the tree."""
    from strongroom.governance.lineage import INPUT_KINDS, NodeKind

    (run,) = lineage.of_kind(NodeKind.RUN)
    inputs = Tree(
        Cell("made from"), tuple(Tree(_label(node)) for node in lineage.of_kind(*INPUT_KINDS))
    )
    resumed = {edge.target for edge in lineage.edges if edge.relation == "was resumed by"}
    attempts = [node for node in lineage.of_kind(NodeKind.ATTEMPT) if node.key not in resumed]
    return Tree(_label(run), (inputs, *(_branch(lineage, node) for node in attempts)))


def lineage_document(lineage: Lineage) -> JsonObject:
    """Return the graph as JSON."""
    return {
        "subject": lineage.subject.key,
        "nodes": list(lineage.nodes),
        "edges": list(lineage.edges),
    }


def _branch(lineage: Lineage, node: Node) -> Tree:
    keys = [edge.target for edge in lineage.edges if edge.source == node.key]
    children = [child for child in lineage.nodes if child.key in keys]
    return Tree(_label(node), tuple(_branch(lineage, child) for child in children))


def _label(node: Node) -> Cell:
    digest = "" if node.digest is None else f"  {node.digest.short}"
    state = f"  {node.state}" if node.state else ""
    here = "  <- this one" if node.subject else ""
    kind = "" if node.title.startswith(str(node.kind)) else f"{node.kind} "
    return Cell(f"{kind}{node.title}{digest}{state}{here}", TONES.get(node.state, "plain"))
