"""One request on its way through the engine."""

from typing import Literal

from lightspec_lightllm.engine.options import SamplingParams
from lightspec_lightllm.engine.sampling import TokenLogprob
from lightspec_lightllm.engine.tokenizer import TextStream, Tokenizer

Status = Literal["waiting", "prefilling", "running", "paused", "finished"]
FinishReason = Literal["stop", "length", "cancelled"]


class Sequence:
    """A request's tokens, text and state.

    While it runs, KV is computed for tokens[:-1]; row 0 of a forward is tokens[-1] at position len(tokens) - 1.

    tokens         prompt and generated tokens
    num_computed   positions whose KV is computed and kept
    num_reserved   rows, or prompt positions, past num_computed that the coming forward may compute; 0 between a commit
                   and the next scheduling
    slot_row       row of the slot table while it holds slots, else -1
    arrival        order of submission
    top_logprobs   likeliest tokens to report with each generated one; None: report no probabilities
    logprobs       of the generated tokens, where they are reported
    row_logprobs   of the tokens that the last forward's rows decided on, until they are committed
    """

    def __init__(
        self,
        request_id: int,
        prompt: list[int],
        params: SamplingParams,
        arrival: int,
        tokenizer: Tokenizer,
        *,
        top_logprobs: int | None = None,
    ):
        self.request_id = request_id
        self.tokens = list(prompt)
        self.prompt_length = len(prompt)
        self.params = params
        self.arrival = arrival
        self.status: Status = "waiting"
        self.finish_reason: FinishReason | None = None
        self.num_computed = 0
        self.num_reserved = 0
        self.num_forwarded = 0
        self.slot_row = -1
        self.top_logprobs = top_logprobs
        self.logprobs: list[TokenLogprob] = []
        self.row_logprobs: list[TokenLogprob] = []
        self._tokenizer = tokenizer
        self._stream = TextStream(tokenizer)
        self._text = ""

    def __repr__(self) -> str:
        return f"Sequence({self.request_id}, {self.status}, {self.prompt_length} + {self.num_generated} tokens)"

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.prompt_length

    @property
    def generated(self) -> list[int]:
        return self.tokens[self.prompt_length :]

    @property
    def prefill_target(self) -> int:
        """Positions to compute before it runs: the prompt, or on a resume all but the newest token."""
        return len(self.tokens) - (1 if self.num_generated else 0)

    @property
    def text(self) -> str:
        """Generated so far. While it runs, characters that may turn out to begin a stop string are held back."""
        if self.status == "finished" or not self.params.stop:
            return self._text
        return self._text[: len(self._text) - self._held_back()]

    def append(self, token: int) -> None:
        """Take one generated token; finishes the sequence at end-of-sequence, a stop string or max_tokens."""
        self.tokens.append(token)
        if token == self._tokenizer.eos_token_id and not self.params.ignore_eos:
            self.finish("stop")
            return
        searched = len(self._text)
        self._text += self._stream.append(token)
        cut = self._find_stop(searched)
        if cut is not None:
            self._text = self._text[:cut]
            self._stream = TextStream(self._tokenizer)  # nothing unfinished follows the cut
            self.finish("stop")
        elif self.num_generated >= self.params.max_tokens:
            self.finish("length")

    def keep_logprobs(self, count: int) -> None:
        """Take those of the first ``count`` rows; the other rows' tokens were not kept."""
        self.logprobs += self.row_logprobs[:count]
        self.row_logprobs = []

    def finish(self, reason: FinishReason) -> None:
        """End here; a character whose bytes are not all there becomes U+FFFD."""
        self._text += self._stream.finish()
        self.finish_reason = reason
        self.status = "finished"

    def _find_stop(self, searched: int) -> int | None:
        """Where the first stop string begins that ends in the text after `searched`."""
        found = [self._text.find(stop, max(0, searched - len(stop) + 1)) for stop in self.params.stop]
        return min((place for place in found if place >= 0), default=None)

    def _held_back(self) -> int:
        longest = 0
        for stop in self.params.stop:
            for length in range(min(len(stop) - 1, len(self._text)), longest, -1):
                if self._text.endswith(stop[:length]):
                    longest = length
                    break
        return longest
