"""Triton kernels of `lightspec_lightllm.ops`, which imports this, and so triton, when one is first wanted on a GPU."""

from lightspec_lightllm.ops.kernels.drafts import draft_scores
from lightspec_lightllm.ops.kernels.grouping import copy_page_table, segments
from lightspec_lightllm.ops.kernels.sampling import exponential_noise, mask_invalid_tokens
from lightspec_lightllm.ops.kernels.selection import accepted_last_row, select_rows

__all__ = [
    "accepted_last_row",
    "copy_page_table",
    "draft_scores",
    "exponential_noise",
    "mask_invalid_tokens",
    "segments",
    "select_rows",
]
