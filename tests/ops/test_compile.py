"""The interpreter accepts what a compiler does not: every kernel is also compiled for GPUs, without one at hand."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

# A process of its own: kernels decorated for the interpreter cannot be compiled.
SCRIPT = """
import sys
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from lightspec_lightllm.ops.kernels import drafts, grouping, sampling, selection

INTS = {"num_requests", "num_rows", "width", "vocab"}
WIDE = {"seed_ptr", "position_ptr", "token_ptr"}
FLOATS = {"scores_ptr", "logits_ptr", "log_prob_ptr"}

def kind(kernel, name, logits):
    if name.isupper():
        return "constexpr"
    if name in INTS or name.endswith("_stride"):
        return "i32"
    if name == "out_ptr":
        return "*i64" if kernel is selection._accepted_last_row else "*fp32"
    if name == "logits_ptr":
        return f"*{logits}"
    return "*i64" if name in WIDE else "*fp32" if name in FLOATS else "*i32"

def build(kernel, num_warps, logits="fp32", **constants):
    names = kernel.arg_names
    source = ASTSource(fn=kernel, signature={n: kind(kernel, n, logits) for n in names}, constexprs=constants)
    for capability in (80, 90):
        built = compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": num_warps})
        assert built.asm["cubin"] and built.metadata.shared <= 48 * 1024, (kernel, built.metadata.shared)

build(selection._select_rows, 1, BLOCK_N=1, BLOCK_W=1)
build(selection._select_rows, 1, BLOCK_N=1, BLOCK_W=16)
build(selection._select_rows, 4, BLOCK_N=256, BLOCK_W=8)
build(selection._select_rows, 16, BLOCK_N=1024, BLOCK_W=16)
build(selection._accepted_last_row, 4, BLOCK_N=256)
build(grouping._segments, 1, BLOCK_B=2)
build(grouping._segments, 8, BLOCK_B=2048)
build(grouping._segments, 16, BLOCK_B=4096)
build(grouping._copy_page_table, 4, BLOCK=1024)
build(sampling._mask_invalid_tokens, 1, BLOCK=128)
build(sampling._exponential_noise, 4, BLOCK=512)
for logits in ("fp32", "fp16", "bf16"):
    build(drafts._draft_scores, 8, logits, BLOCK=4096)
"""


@pytest.mark.slow
def test_every_kernel_compiles_within_the_shared_memory_of_any_gpu(tmp_path: Path) -> None:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed (pip install triton==3.8.0)")
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
