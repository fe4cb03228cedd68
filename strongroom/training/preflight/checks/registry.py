"""Which function makes which check, in the order of the rules."""

from __future__ import annotations

from collections.abc import Mapping

from strongroom.training.preflight.checks import (
    hardware,
    learning,
    network,
    saving,
    state,
    text,
)
from strongroom.training.preflight.findings import Check

CHECKS: Mapping[str, Check] = {
    "synchronous-saves": saving.synchronous_saves,
    "verification-off": state.verification_off,
    "optimizer-left-out": state.optimizer_left_out,
    "storage-tier": saving.storage_tier,
    "resharding-untested": state.resharding_untested,
    "data-state-left-out": state.data_state_left_out,
    "fabric": network.fabric,
    "cpu-offload": hardware.cpu_offload,
    "blocking-upload": saving.blocking_upload,
    "batch-and-learning-rate": learning.batch_and_learning_rate,
    "precision": hardware.precision,
    "resume-without-optimizer": state.resume_without_optimizer,
    "memory": hardware.memory,
    "checkpoint-space": saving.checkpoint_space,
    "save-interval": saving.save_interval,
    "padding": text.padding,
    "chat-template": text.chat_template,
    "max-length": text.max_length,
    "adapter-targets": text.adapter_targets,
    "activation-checkpointing": learning.activation_checkpointing,
    "compile-time": learning.compile_time,
    "prefetch": learning.prefetch,
    "wrapping": learning.wrapping,
    "packages": hardware.packages,
}
