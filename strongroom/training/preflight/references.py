"""Where the rules and numbers of the preflight are known from."""

from __future__ import annotations

HOUSE = "a rule of this house; docs/how-to/check-a-run-before-it-starts.md"
S3_CLASSES = "https://docs.aws.amazon.com/AmazonS3/latest/userguide/storage-class-intro.html"
NCCL = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
LLAMA3 = "Grattafiori et al. 2024, The Llama 3 Herd of Models, https://arxiv.org/abs/2407.21783"
ZERO = "Rajbhandari et al. 2019, ZeRO, https://arxiv.org/abs/1910.02054"
ZERO_INFINITY = "Rajbhandari et al. 2021, ZeRO-Infinity, https://arxiv.org/abs/2104.07857"
RECOMPUTATION = "Korthikanti et al. 2022, https://arxiv.org/abs/2205.05198"
CHECKPOINTING = "Chen et al. 2016, https://arxiv.org/abs/1604.06174"
FSDP2 = "https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html"
TORCHAO = "https://docs.pytorch.org/ao/stable/workflows/training.html"
CUDA = "NVIDIA CUDA C++ Programming Guide, compute capabilities"
SCALING_RULE = "Malladi et al. 2022, SDEs and scaling rules, https://arxiv.org/abs/2205.10287"
LARGE_BATCH = "McCandlish et al. 2018, Large-batch training, https://arxiv.org/abs/1812.06162"
LORA = "Hu et al. 2021, LoRA, https://arxiv.org/abs/2106.09685"
