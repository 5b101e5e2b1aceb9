"""Attention of rounds in which requests have different numbers of rows, for LightLLM's backends that take one number.

FlashAttention 3 and the linear attention of gated delta nets group a request's rows into one sequence, and LightLLM
finds the groups by counting 1 + K rows each. The states here find them on the device, from the rows' marks
(`lightspec_lightllm.ops.segments`), in shapes that depend on the number of rows alone, so that captured graphs replay
with any grouping. Triton's and FlashInfer's backends take each row as a sequence and need nothing.

Tested on a CPU: the states' tensors, their copy into captured ones, and what attention computes from them, with plain
torch in place of FlashAttention's kernel and LightLLM's own kernels of linear attention in Triton's interpreter.
Nothing here has run on a GPU yet; what to look at first there is how FlashAttention takes sequences without a query.
"""
