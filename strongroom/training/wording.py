"""The events of a training in plain words, for whoever follows it. Never imports torch."""

from __future__ import annotations

from strongroom.canonical import JsonObject
from strongroom.training.reporting import ReportKind

WORDS = {
    ReportKind.STARTED: (
        "training starts {origin}, attempt {attempt}, {strategy} on {world_size} rank(s){spread}; "
        "{exactness}"
    ),
    ReportKind.STEP: "step {step} of {num_steps}: loss {loss:.4f}, {tokens_per_s:.0f} tokens/s",
    ReportKind.COMMITTED: ("checkpoint committed at step {step}: {short_id}, {num_bytes:,} bytes"),
    ReportKind.SAVE_SKIPPED: "no checkpoint at step {step}: {reason}",
    ReportKind.PASSED_OVER: (
        "step {step} is passed over: loss {loss}, gradient norm {grad_norm}; {reason}"
    ),
    ReportKind.ROLLED_BACK: (
        "back from step {from_step} to step {to_step}: loss {loss}, gradient norm {grad_norm}; "
        "{reason}"
    ),
    ReportKind.STOPPED: "training was asked to stop and did, at step {step}",
    ReportKind.FINISHED: "training finished at step {step}",
    ReportKind.FAILED: "rank {rank} failed: {error}: {message}",
    ReportKind.RESTARTING: (
        "restart {restart} of {max_restarts}, in {delay_s:g} s, on {world_size} rank(s), "
        "after {reason}"
    ),
    ReportKind.FINDING: "preflight, {check}: {message}",
    ReportKind.TRACKER_FAILED: "training goes on without {tracker}: {message}",
}


def in_words(event: JsonObject, num_steps: int) -> str:
    """Say an event of a run of `num_steps` steps; see `reporting` for what events there are."""
    words = WORDS[ReportKind(event["kind"])]
    return words.format(**event, **_more(event), num_steps=num_steps)


def _more(event: JsonObject) -> dict[str, str]:
    """Return what an event's own fields do not say in words."""
    match event["kind"]:
        case ReportKind.STARTED:
            origin = event["resumed_from"]
            return {
                "origin": "from the base model" if origin is None else f"again from {origin}",
                "spread": f" in {event['replicas']} replicas" if event["replicas"] > 1 else "",
                "exactness": "exact"
                if event["exact"]
                else f"not exact: {'; '.join(event['inexact'])}",
            }
        case ReportKind.COMMITTED:
            return {"short_id": event["checkpoint_id"][7:19]}
        case _:
            return {}
