"""What number formats of weights are called: in options, in configs, and by users of Python.

Owns the two tables; ``load_model`` takes any of the names, commands offer the short ones.
"""

import torch

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
"""The names in options and configs."""

DTYPE_NAMES = DTYPES | {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "half": torch.float16,
    "float32": torch.float32,
}
"""All names, those of torch and transformers among them."""
