"""What the preflight looks for: every check by name, why it matters and its source. Data alone.

`preflight.ignore` in a configuration names checks whose finding does not stop a launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strongroom.training.preflight.references import (
    CHECKPOINTING,
    FSDP2,
    HOUSE,
    LLAMA3,
    LORA,
    NCCL,
    RECOMPUTATION,
    S3_CLASSES,
    SCALING_RULE,
    TORCHAO,
    ZERO,
    ZERO_INFINITY,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One check: what it looks for, why that matters, and where it is known from."""

    name: str
    looks_for: str
    why: str
    source: str


_RULES = (
    # --- the twelve pitfalls of practice ----------------------------------------------
    Rule(
        name="synchronous-saves",
        looks_for="saves that hold training until they are durable",
        why="while a checkpoint is written no rank computes; a staged one costs a copy",
        source="docs/performance.md",
    ),
    Rule(
        name="verification-off",
        looks_for="a run whose checkpoints nobody verifies",
        why="a damaged checkpoint is then found when it is needed, and none is fit for promotion",
        source="docs/design.md",
    ),
    Rule(
        name="optimizer-left-out",
        looks_for="checkpoints of the run that lack optimizer state",
        why="resumed without its moments AdamW takes other steps: the run is another from there on",
        source="https://github.com/pytorch/pytorch/issues/140898",
    ),
    Rule(
        name="storage-tier",
        looks_for="a storage class that does not fit how long checkpoints are kept",
        why="a class bills its least days however early an object is deleted, and one in a single "
        "zone is lost with that zone",
        source=S3_CLASSES,
    ),
    Rule(
        name="resharding-untested",
        looks_for="a run that may have to go on with other ranks than any resume was tested with",
        why="ranks are lost and do not always come back; what was never loaded at another size is "
        "first tried in an emergency",
        source=LLAMA3,
    ),
    Rule(
        name="data-state-left-out",
        looks_for="checkpoints of the run that lack data cursor, random state, schedule or counts",
        why="a run that goes on from there repeats rows or skips them, and nothing says so",
        source="docs/design.md",
    ),
    Rule(
        name="fabric",
        looks_for="NCCL told past the fabric that is there, or a fabric that is slow",
        why="every step waits for its slowest collective; over IP sockets instead of RDMA that is "
        "many times longer",
        source=NCCL,
    ),
    Rule(
        name="cpu-offload",
        looks_for="offload where there is nothing to offload from, no need, or too slow a link",
        why="what lives on the host crosses PCIe in every pass; where that takes longer than the "
        "computation, accelerators wait",
        source=ZERO_INFINITY,
    ),
    Rule(
        name="blocking-upload",
        looks_for="checkpoints that take longer to store than they are apart",
        why="with one being written and one waiting, the next save holds training, or is left out",
        source="docs/how-to/choose-how-to-save.md",
    ),
    Rule(
        name="batch-and-learning-rate",
        looks_for="tokens of a step and learning rate out of line with the reference given",
        why="a learning rate is right for a batch; with AdamW it goes with the batch's square root",
        source=SCALING_RULE,
    ),
    Rule(
        name="precision",
        looks_for="FP8 or BF16 where the hardware has none, and BF16 where FP8 would serve",
        why="a dtype without hardware is emulated and slow, or refused; one left idle is paid for",
        source=TORCHAO,
    ),
    Rule(
        name="resume-without-optimizer",
        looks_for="weights of a training taken up again without its optimizer",
        why="the first steps are taken with moments of zero: the loss jumps, and the run does not "
        "continue the one it came from",
        source="https://github.com/huggingface/transformers/issues/35782",
    ),
    # --- what cannot work, or wastes much ---------------------------------------------
    Rule(
        name="memory",
        looks_for="ranks that need more memory than there is",
        why="the run ends out of memory, at its start or at its longest batch",
        source=f"{ZERO}; {RECOMPUTATION}",
    ),
    Rule(
        name="checkpoint-space",
        looks_for="a store without room for the run's checkpoints",
        why="the save that finds no space fails, and the run with it",
        source=HOUSE,
    ),
    Rule(
        name="save-interval",
        looks_for="checkpoints so far apart that a crash loses much",
        why="what was computed since the last checkpoint is computed again",
        source=HOUSE,
    ),
    Rule(
        name="padding",
        looks_for="a tokenizer with neither a padding nor an end token",
        why="rows of a batch cannot be brought to one length, and answers have no end",
        source="https://github.com/huggingface/trl/pull/6357",
    ),
    Rule(
        name="chat-template",
        looks_for="a chat template by which it cannot be told what is trained on",
        why="without marks for answers in the template the trained tokens are found by rendering "
        "prompts; where that fails, every row is refused",
        source="https://github.com/marin-community/marin/issues/7237",
    ),
    Rule(
        name="max-length",
        looks_for="rows longer than the positions that the model was made for",
        why="positions that were never trained give noise, or an index out of range",
        source=HOUSE,
    ),
    Rule(
        name="adapter-targets",
        looks_for="adapter targets that the model has no linear layers for",
        why="the ranks would start, load the model, and refuse",
        source=LORA,
    ),
    Rule(
        name="activation-checkpointing",
        looks_for="a large model that keeps all activations",
        why="activations outgrow everything else; computing them again costs a third more",
        source=f"{CHECKPOINTING}; {RECOMPUTATION}",
    ),
    Rule(
        name="compile-time",
        looks_for="compilation that a run is too short to earn back",
        why="layers are compiled anew at each start, for minutes",
        source=HOUSE,
    ),
    Rule(
        name="prefetch",
        looks_for="prefetching that gathers too much, or nothing",
        why="layers gathered ahead hide the wait for parameters, and take the room that sharding "
        "saved",
        source=FSDP2,
    ),
    Rule(
        name="wrapping",
        looks_for="sharding that shards nothing, or across the slow links",
        why="shards are gathered in every pass: they belong on the fast links of one machine",
        source=f"{FSDP2}; {ZERO}",
    ),
    Rule(
        name="packages",
        looks_for="settings whose package is not installed",
        why="the ranks would start, and refuse",
        source=HOUSE,
    ),
)

RULES: Mapping[str, Rule] = {rule.name: rule for rule in _RULES}
"""Every check, by name, in the order in which they are made."""
