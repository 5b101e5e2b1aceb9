"""The specification of every operation, in plain torch: readable, for any device, and free to wait for it.

Shapes: N requests, B rows, V tokens of the vocabulary, R rows of the host's per-request tables, W drafts at most.
"""

from __future__ import annotations

import math

import torch

from lightspec_lightllm.errors import PlanError
from lightspec_lightllm.ops.types import Segments, SelectedRows

_WORD = (1 << 32) - 1
_PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_PHILOX_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_PHILOX_ROUNDS = 10


def select_rows(
    req_idx: torch.Tensor, seq_len: torch.Tensor, num_drafts: torch.Tensor, scores: torch.Tensor, num_rows: int
) -> SelectedRows:
    """The rows that a budget buys: every request's own row, and the best drafts for the rest.

    Drafts are taken by descending score, where equal the shallower draft first and the earlier request after that.
    The score of draft j is the lowest of the scores of drafts 1..j, so that what is kept of a request is a prefix of
    its drafts. NaN counts as -inf; a draft of score -inf is taken last, but it is taken.

    Args:
        req_idx: int32[N], the request's row in `scores`.
        seq_len: int32[N], tokens in the KV cache including the one that each request's own row computes.
        num_drafts: int32[N], drafts waiting, 0..W.
        scores: float32[R, W], ``scores[req_idx[n], j - 1]`` is the score of draft j.
        num_rows: B, from N to N plus the drafts waiting.

    Raises:
        PlanError: `num_rows` is outside these bounds. The kernel checks it against N and N * (1 + W) only, since it
            cannot know the drafts waiting without a wait; beyond them its last rows are undefined.
    """
    num_requests, width = len(req_idx), scores.shape[1]
    device = req_idx.device
    depth = torch.arange(width, device=device)
    waiting = depth < num_drafts[:, None]
    extra, available = num_rows - num_requests, int(waiting.sum())
    if not 0 <= extra <= available:
        raise PlanError(f"num_rows: expected {num_requests}..{num_requests + available}, got {num_rows}")

    own = scores[req_idx.long()]
    falling = torch.where(own.isnan(), -math.inf, own).cummin(dim=1).values
    # Depth-major, so that stable sorting leaves equal scores in the order (draft, request).
    order = falling.T.flatten().argsort(descending=True, stable=True)
    taken = order[waiting.T.flatten()[order]][:extra]
    kept = torch.bincount(taken % num_requests, minlength=num_requests)

    counts = 1 + kept
    start_loc = counts.cumsum(0) - counts
    request = torch.repeat_interleave(torch.arange(num_requests, device=device), counts)
    mtp_index = torch.arange(num_rows, device=device) - start_loc[request]
    return SelectedRows(
        req_idx=req_idx[request].int(),
        mtp_index=mtp_index.int(),
        seq_len=(seq_len[request] + mtp_index).int(),
        request=request.int(),
        start_loc=start_loc.int(),
        num_rows=counts.int(),
    )


def accepted_last_row(start_loc: torch.Tensor, accept_len: torch.Tensor) -> torch.Tensor:
    """int64[N], the row of each request's last accepted token: ``start_loc + accept_len - 1``, ready for a gather.

    Args:
        start_loc: int32[N], first row of each request.
        accept_len: int32[N], accept lengths, 1 at least.
    """
    return start_loc.long() + accept_len.long() - 1


def segments(mtp_index: torch.Tensor, seq_len: torch.Tensor, req_idx: torch.Tensor) -> Segments:
    """Rows grouped into the sequences of a variable-length attention.

    A row of mark 0 begins a segment, and so does the first row; the rows after it up to the next mark of 0 are its
    further queries. Rows that pad a batch carry the mark 0 and are segments of their own.

    Args:
        mtp_index: int32[B], the rows' marks.
        seq_len: int32[B], tokens that a row sees, itself included; within a segment each row sees one more.
        req_idx: int32[B], the rows' requests.
    """
    num_rows = len(mtp_index)
    is_first = mtp_index == 0
    is_first[0] = True
    first = is_first.nonzero().flatten()
    last = torch.cat([first[1:], first.new_tensor([num_rows])]) - 1
    found = len(first)

    cu_q = torch.full((num_rows + 1,), num_rows, dtype=torch.int32, device=mtp_index.device)
    cu_q[:found] = first.int()
    att_seq_len = torch.zeros_like(cu_q[1:])
    att_seq_len[:found] = seq_len[last].int()
    request = torch.full_like(att_seq_len, -1)
    request[:found] = req_idx[first].int()
    cu_k = torch.zeros_like(cu_q)
    cu_k[1:] = att_seq_len.cumsum(0)
    return Segments(cu_q, cu_k, att_seq_len, request, cu_q.new_tensor([found]))


def copy_page_table(page_table: torch.Tensor, req_to_token: torch.Tensor, parts: Segments) -> None:
    """Copy each segment's token slots, ``page_table[s, i] = req_to_token[parts.req_idx[s], i]`` for i below its length.

    Entries at and after a segment's length are left undefined.

    Args:
        page_table: int32[B, C], C at least the longest segment; written.
        req_to_token: int32[R, T], slots of each request's tokens.
        parts: the segments; empty ones are skipped.
    """
    for segment, (request, length) in enumerate(
        zip(parts.req_idx.tolist(), parts.att_seq_len.tolist(), strict=True),
    ):
        page_table[segment, :length] = req_to_token[request, :length]


def mask_invalid_tokens(logits: torch.Tensor, b_req_idx: torch.Tensor, table: torch.Tensor) -> None:
    """Set the logits of each row's invalid tokens to -inf, in place.

    Args:
        logits: float[B, V], written.
        b_req_idx: int32[B], the rows' requests.
        table: int32[R, M], the invalid tokens of each request, padded with -1; tokens from V on are ignored.
    """
    tokens = table[b_req_idx.long()].long()
    row, column = ((tokens >= 0) & (tokens < logits.shape[1])).nonzero(as_tuple=True)
    logits[row, tokens[row, column]] = -math.inf


def draft_scores(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The likeliest token of each row and the log of its probability.

    Of equal logits the lowest token. NaN counts as -inf; a row without any finite logit gives token 0 and -inf.

    Args:
        logits: float32, float16 or bfloat16 [B, V].

    Returns:
        Tokens int64[B]; log probabilities float32[B], equal in kernel and twin up to the rounding of a sum.
    """
    values = logits.float()
    values = torch.where(values.isnan(), -math.inf, values)
    highest, token = values.max(dim=1).values, values.argmax(dim=1)
    log_prob = -(values - highest[:, None]).exp().sum(dim=1).log()
    return token, torch.where(highest == -math.inf, -math.inf, log_prob)


def exponential_noise(seed: torch.Tensor, position: torch.Tensor, vocab: int, out: torch.Tensor) -> None:
    """Draws from Exp(1) for the rows with a seed; ``argmax(probs / out)`` then samples each row's distribution.

    A draw is a function of (seed, position, token) alone: not of the batch, the row or the number of drafts. Its bits
    are word ``token % 4`` of Philox4x32-10 with the seed as key and the counter (token // 4, position, 0); they become
    ``-log(u)`` for ``u = (upper 23 bits + 1/2) / 2**23``. Bits and `u` are the same everywhere, the logarithm is the
    device's own. A draw is never zero or infinite.

    Args:
        seed: int64[B]; a row with a negative one is left as it is.
        position: int64[B], what tells one draw of a seed from the next; not negative.
        vocab: V.
        out: float32[B, V], written.
    """
    rows = (seed >= 0).nonzero().flatten()
    if len(rows) > 0:
        out[rows, :vocab] = -uniforms(seed[rows], position[rows], vocab).log()


def uniforms(seed: torch.Tensor, position: torch.Tensor, vocab: int) -> torch.Tensor:
    """float32[rows, vocab] in (0, 1): odd multiples of 2**-24, from the upper 23 bits of each Philox word.

    Half a step off zero and one, so that neither the draw nor its logarithm is ever 0 or infinite; every value is
    exact in float32.
    """
    block = torch.arange((vocab + 3) // 4, device=seed.device)
    zero = torch.zeros_like(seed)[:, None]
    counter = (block[None, :], (position & _WORD)[:, None], (position >> 32 & _WORD)[:, None], zero)
    words = philox(counter, ((seed & _WORD)[:, None], (seed >> 32 & _WORD)[:, None]))
    word = torch.stack(words, dim=-1).flatten(1)[:, :vocab]
    return ((word >> 9).float() + 0.5) * 2.0**-23


def philox(
    counter: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], key: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Philox4x32-10 (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, 2011) on int64 tensors of words.

    An int64 product of two words keeps all 64 bits, whatever its sign.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_PHILOX_ROUNDS):
        product0, product1 = c0 * _PHILOX_MULTIPLIERS[0], c2 * _PHILOX_MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (product1 >> 32 & _WORD) ^ c1 ^ k0,
            product1 & _WORD,
            (product0 >> 32 & _WORD) ^ c3 ^ k1,
            product0 & _WORD,
        )
        k0, k1 = k0 + _PHILOX_KEY_STEPS[0] & _WORD, k1 + _PHILOX_KEY_STEPS[1] & _WORD
    return c0, c1, c2, c3
