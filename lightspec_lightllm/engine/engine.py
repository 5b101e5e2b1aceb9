"""The engine: requests in, rows through the model, tokens out. What a round commits is its caller's business."""

from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from lightspec_lightllm.engine.attention import Block, plan_attention
from lightspec_lightllm.engine.model import Batch, KVCache, Model
from lightspec_lightllm.engine.options import EngineOptions, SamplingParams
from lightspec_lightllm.engine.sampling import sample_rows, token_logprob
from lightspec_lightllm.engine.scheduler import Scheduler
from lightspec_lightllm.engine.sequence import Sequence
from lightspec_lightllm.engine.slots import SlotPool
from lightspec_lightllm.engine.threads import choose_threads
from lightspec_lightllm.engine.tokenizer import Tokenizer
from lightspec_lightllm.errors import RequestError, SlotError

IntArray = npt.NDArray[np.int64]
PrefillListener = Callable[[Sequence, int, torch.Tensor], None]
ReleaseListener = Callable[[int], None]

_PROBE_REQUESTS, _PROBE_ROWS = 4, 2
"""A forward as it is served most, by which threads are chosen. A single row, for which all weights are read, says
little: two threads take 0.74 to 0.86 of one's time for it where they take 0.6 to 0.7 of it for eight."""


@dataclass(frozen=True)
class Forward:
    """Result of a forward over B rows, request-major.

    logits         float32 [B, vocab]
    hidden         float32 [B, captured layers * hidden_size], None when the model captures none
    prompt_tokens  prompt positions computed since the forward before, beside the B rows or by schedule()
    joined         sequences whose prompt was completed beside the rows: they run from now on, or have ended
    """

    logits: torch.Tensor
    hidden: torch.Tensor | None
    prompt_tokens: int = 0
    joined: tuple[Sequence, ...] = ()


class Engine:
    """Serves requests on one model. The loop is schedule, forward, sample, commit.

    Prompts are read in the forward that verifies: a forward of its own would read all weights for a few rows.

    prefill_listener  called as (sequence, start, hidden) for every prefilled stretch of positions, where the model
                      captures layers; again from position 0 when a paused request resumes
    release_listener  called as (request_id) when a request gives up its slots: finished, cancelled or paused
    num_threads       CPU threads in use, given or measured

    ``usual_threads`` are those that served here before, if that is known: see `threads.choose_threads`.
    """

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        options: EngineOptions | None = None,
        *,
        usual_threads: int | None = None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.options = options or EngineOptions()
        self.max_context = min(self.options.max_context, model.config.max_positions)
        self.slots = SlotPool(
            self.options.num_slots, self.options.max_requests, self.max_context + self.options.max_rows
        )
        self.cache = KVCache(model.config, self.options.num_slots)
        self.prefill_listener: PrefillListener | None = None
        self._scheduler = Scheduler(self.slots, self.options)
        self._chunks: list[tuple[Sequence, int]] = []  # of prompts, for the next forward
        self._prompt_tokens = 0
        self._next_id = 0
        self._num_submitted = 0
        self.num_threads = self.options.threads or choose_threads(self._probe, usual_threads)
        torch.set_num_threads(self.num_threads)

    @property
    def release_listener(self) -> ReleaseListener | None:
        return self._scheduler.release_listener

    @release_listener.setter
    def release_listener(self, listener: ReleaseListener | None) -> None:
        self._scheduler.release_listener = listener

    @property
    def running(self) -> list[Sequence]:
        """Sequences that take part in the next forward, in arrival order."""
        return self._scheduler.with_status("running")

    @property
    def waiting(self) -> list[Sequence]:
        """Sequences that are not running yet, or not at the moment: waiting, prefilling or paused."""
        return self._scheduler.with_status("waiting", "prefilling", "paused")

    @property
    def has_work(self) -> bool:
        return bool(self._scheduler.live)

    def take_finished(self) -> list[Sequence]:
        """Sequences that finished since the last call, however they did."""
        return self._scheduler.take_finished()

    def submit(
        self,
        prompt: list[int] | str,
        params: SamplingParams,
        request_id: int | None = None,
        *,
        top_logprobs: int | None = None,
    ) -> Sequence:
        """Queue a request. A string is tokenized as it stands; `tokenizer.chat` applies the chat template.

        With ``top_logprobs`` the sequence also gets the probability of each generated token and of so many likeliest.

        Raises RequestError when the request could never be served.
        """
        tokens = self.tokenizer.encode(prompt) if isinstance(prompt, str) else [int(token) for token in prompt]
        if request_id is None:
            request_id = self._next_id
        if request_id in self._scheduler.live:
            raise RequestError(f"request id {request_id} is in use; give another or wait until it has finished")
        if not tokens:
            raise RequestError("the prompt is empty; give at least one token")
        vocab_size = self.model.config.vocab_size
        if not (min(tokens) >= 0 and max(tokens) < vocab_size):
            raise RequestError(f"prompt tokens must be in 0..{vocab_size - 1}, got {min(tokens)}..{max(tokens)}")
        total = len(tokens) + params.max_tokens
        if total > self.max_context:
            raise RequestError(
                f"prompt of {len(tokens)} tokens + max_tokens {params.max_tokens} exceeds the context of "
                f"{self.max_context}; shorten the prompt or lower max_tokens"
            )
        if total + self.options.max_rows > self.options.num_slots:
            raise RequestError(
                f"prompt of {len(tokens)} tokens + max_tokens {params.max_tokens} + {self.options.max_rows} draft rows "
                f"exceeds the pool of {self.options.num_slots} slots; shorten the request or raise num_slots"
            )
        sequence = Sequence(request_id, tokens, params, self._num_submitted, self.tokenizer, top_logprobs=top_logprobs)
        self._num_submitted += 1
        self._next_id = max(self._next_id, request_id + 1)
        self._scheduler.add(sequence)
        return sequence

    def cancel(self, request_id: int) -> None:
        """Finish a request at the next schedule(), freeing its slots then. Finished or unknown ids are ignored."""
        self._scheduler.cancel(request_id)

    def schedule(self, rows: int) -> list[Sequence]:
        """One scheduling step; afterwards every returned sequence has `rows` slots past its computed positions.

        Applies cancels, admits and resumes requests, and reserves. Up to prefill_chunk prompt tokens are put into the
        next forward. With no sequence to bring it about, or when those of the last schedule() found none, they are
        computed at once. A prompt that is complete gets its first token. When the pool is short the youngest requests
        are paused: they free all slots and are prefilled again later. Returns the running sequences in arrival order.
        """
        if not 1 <= rows <= self.options.max_rows:
            raise RequestError(f"rows must be in 1..{self.options.max_rows} (max_rows), got {rows}")
        scheduler, missed = self._scheduler, bool(self._chunks)
        self._chunks = []
        scheduler.apply_cancels()
        if not scheduler.live:
            self._prompt_tokens = 0
        scheduler.admit(rows)
        chunks = scheduler.next_chunks()
        running = scheduler.reserve(rows)
        chunks = scheduler.still_prefilling(chunks)
        if chunks and (missed or not running):
            self._prompt_tokens += self._compute([], [], np.zeros(0, dtype=np.int64), chunks).prompt_tokens
            return scheduler.reserve(rows)
        self._chunks = chunks
        return running

    def forward(self, seqs: Many[Sequence], tokens: IntArray, rows: npt.NDArray[np.integer]) -> Forward:
        """Run rows[i] rows of sequence i: tokens[i, 0] is its newest token, tokens[i, 1:rows[i]] are drafts.

        The prompt tokens that schedule() put into it are computed besides.
        """
        if not seqs:
            raise RequestError("a forward needs at least one sequence")
        counts = np.asarray(rows, dtype=np.int64)
        for sequence, count in zip(seqs, counts.tolist(), strict=True):
            if sequence.status != "running":
                raise SlotError(
                    f"request {sequence.request_id} is {sequence.status}; those that schedule() returned bring rows"
                )
            if not 1 <= count <= sequence.num_reserved:
                raise SlotError(
                    f"request {sequence.request_id} brings {count} rows, {sequence.num_reserved} are reserved; "
                    "rows must be in 1..reserved, and schedule() reserves them"
                )
            sequence.num_forwarded = count
        flat = np.asarray(tokens)[np.arange(tokens.shape[1]) < counts[:, None]]
        chunks, self._chunks = self._chunks, []
        found = self._compute(seqs, counts.tolist(), flat, chunks)
        read, self._prompt_tokens = self._prompt_tokens, 0
        return replace(found, prompt_tokens=found.prompt_tokens + read)

    def sample(self, forward: Forward, seqs: Many[Sequence], rows: npt.NDArray[np.integer]) -> IntArray:
        """The token every row decides on, int64 [B], with each request's own parameters."""
        tokens = sample_rows(
            forward.logits.numpy(),
            [sequence.params for sequence in seqs],
            [sequence.request_id for sequence in seqs],
            [len(sequence.tokens) for sequence in seqs],
            np.asarray(rows).tolist(),
        )
        ends = np.cumsum(rows)
        for sequence, end, count in zip(seqs, ends.tolist(), np.asarray(rows).tolist(), strict=True):
            if sequence.top_logprobs is not None:
                sequence.row_logprobs = [
                    token_logprob(forward.logits[row].numpy(), int(tokens[row]), sequence.top_logprobs)
                    for row in range(end - count, end)
                ]
        return tokens

    def commit(self, seqs: Many[Sequence], tokens: IntArray, counts: npt.NDArray[np.integer]) -> IntArray:
        """Append tokens[i, :counts[i]] to sequence i, up to its end; returns how many were kept, int64 [N].

        Gives back the reserved slots that the kept tokens do not need, once per schedule(), and everything a finished
        sequence holds.
        """
        for sequence, count in zip(seqs, np.asarray(counts).tolist(), strict=True):
            if sequence.status != "running" or sequence.num_reserved == 0:
                raise SlotError(
                    f"request {sequence.request_id} has no reserved rows to commit; schedule() reserves them"
                )
            if not 0 <= count <= sequence.num_forwarded:
                raise SlotError(
                    f"request {sequence.request_id} commits {count} tokens of {sequence.num_forwarded} forwarded rows"
                )
        kept = np.zeros(len(seqs), dtype=np.int64)
        for index, (sequence, count) in enumerate(zip(seqs, np.asarray(counts).tolist(), strict=True)):
            for token in tokens[index, :count].tolist():
                sequence.append(token)
                kept[index] += 1
                if sequence.status == "finished":
                    break
            sequence.keep_logprobs(int(kept[index]))
            self._scheduler.settle(sequence)
        return kept

    def slot_table(self, sequence: Sequence) -> torch.Tensor:
        """Slots of the sequence's positions, computed and reserved: an int64 view."""
        if sequence.slot_row < 0:
            raise SlotError(f"request {sequence.request_id} is {sequence.status} and holds no slots")
        return self.slots.table[sequence.slot_row, : self.slots.length(sequence.slot_row)]

    def check(self) -> None:
        """Raise SlotError unless slots are conserved and every sequence holds exactly what its state says."""
        self.slots.check()
        self._scheduler.check()

    def _compute(
        self, seqs: Many[Sequence], counts: list[int], flat: IntArray, chunks: list[tuple[Sequence, int]]
    ) -> Forward:
        """counts[i] rows of sequence i, of tokens `flat`, and the next `length` prompt positions of each of `chunks`,
        in one forward."""
        num_rows = sum(counts)
        ends = num_rows + np.cumsum([length for _, length in chunks], dtype=np.int64)
        last = [end - 1 for chunk, end in zip(chunks, ends.tolist(), strict=True) if _ends(*chunk)]
        texts = [s.tokens[s.num_computed : s.num_computed + length] for s, length in chunks]
        blocks = [self._block(*span) for span in (*zip(seqs, counts, strict=True), *chunks)]
        logit_rows = torch.tensor([*range(num_rows), *last], dtype=torch.int64) if chunks else None
        logits, hidden = self._run(blocks, np.concatenate((flat, *texts)), logit_rows)
        read = [
            None if hidden is None else hidden[end - n : end] for (_, n), end in zip(chunks, ends.tolist(), strict=True)
        ]
        joined = self._take_in(chunks, logits[num_rows:], read)
        own = None if hidden is None else hidden[:num_rows]
        return Forward(logits[:num_rows], own, sum(length for _, length in chunks), joined)

    def _take_in(
        self, chunks: list[tuple[Sequence, int]], logits: torch.Tensor, hidden: list[torch.Tensor | None]
    ) -> tuple[Sequence, ...]:
        """Sample the first tokens of the prompts that are complete, from `logits`, and note what was computed.

        Returns the sequences whose prompt is complete.
        """
        first = [chunk[0] for chunk in chunks if _ends(*chunk)]
        tokens = self.sample(Forward(logits, None), first, np.ones(len(first), dtype=np.int64))
        for (sequence, length), states in zip(chunks, hidden, strict=True):
            start = sequence.num_computed
            sequence.num_computed += length
            if states is not None and self.prefill_listener is not None:
                self.prefill_listener(sequence, start, states)
        for sequence, token in zip(first, tokens.tolist(), strict=True):
            sequence.append(token)
            sequence.keep_logprobs(1)
        for sequence, _ in chunks:
            self._scheduler.settle(sequence)
        return tuple(sequence for sequence, _ in chunks if sequence.status != "prefilling")

    def _block(self, sequence: Sequence, count: int) -> Block:
        """The next `count` positions of a sequence, from those that are computed on."""
        row, context = sequence.slot_row, sequence.num_computed + count
        return Block(count, context, self.slots.slots(row)[:context], self.slots.run_start(row, context))

    def _run(
        self, blocks: list[Block], flat: IntArray, logit_rows: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        config = self.model.config
        plan = plan_attention(blocks, config.num_heads, config.num_kv_heads)
        positions = np.concatenate([np.arange(block.context - block.rows, block.context) for block in blocks])
        slots = np.concatenate([block.slots[block.context - block.rows :] for block in blocks])
        tokens = np.ascontiguousarray(flat, dtype=np.int64)
        batch = Batch(torch.from_numpy(tokens), torch.from_numpy(positions), torch.from_numpy(slots), plan)
        return self.model.forward(batch, self.cache, logit_rows)

    def probe_forward(self, rows: Many[int], context: int) -> None:
        """Run one forward of rows[i] rows of request i on meaningless tokens, for timing. Only while there is no work.

        `context` is the KV length of each request, its rows included. Raises RequestError when it does not fit.
        """
        if self.has_work:
            raise RequestError("a timing forward overwrites the cache; run it while the engine has no work")
        num_requests = len(rows)
        stride = -(-context // 256) * 256
        if num_requests * stride > self.options.num_slots:
            stride = context
        if num_requests * stride > self.options.num_slots or not 1 <= min(rows) <= max(rows) <= context:
            raise RequestError(
                f"{num_requests} requests of {context} tokens and {min(rows)} to {max(rows)} rows do not fit "
                f"{self.options.num_slots} slots"
            )
        starts = [index * stride for index in range(num_requests)]
        spans = zip(starts, rows, strict=True)
        blocks = [Block(count, context, np.arange(start, start + context), start) for start, count in spans]
        flat = np.arange(sum(rows)) * 7919 % self.model.config.vocab_size
        self._run(blocks, flat, None)

    def _probe(self) -> None:
        """A decode step as it is served most: a few rows of a few requests."""
        options = self.options
        count = min(_PROBE_REQUESTS, options.max_requests, options.num_slots)
        context = min(128, self.max_context, options.num_slots // count)
        self.probe_forward([min(_PROBE_ROWS, options.max_rows, context)] * count, context)


def _ends(sequence: Sequence, length: int) -> bool:
    """Whether the next `length` positions complete a prompt whose first token is yet to be sampled."""
    return sequence.num_generated == 0 and sequence.num_computed + length == sequence.prompt_length
