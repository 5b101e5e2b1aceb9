"""Tiny targets and drafters with weights that are random where it does not matter and chosen where it does.

Two kinds of target:

* ``mixed``: the layers change the residual stream enough for attention to decide many tokens, little enough for a
  drafter without attention to be right about half of the time.
* ``cycle``: the next token is the successor of the last one in one long cycle, whatever the layers add (they do add
  something, so that KV is not trivial): the text is known beforehand, and a drafter can be always right.

Drafters see the last token's embedding and a hidden state:

* ``always``: looks up the last token as the target does; on a ``cycle`` target it is always right.
* ``never``: proposes what the target thinks least likely; never right.
* ``half``: as ``always``, on a ``mixed`` target: right about half of the time.
* ``random``: random weights; right about once in the vocabulary's size.
"""

from tests.adapters.lightllm.harness.models.catalog import Models, write_models
from tests.adapters.lightllm.harness.models.cycle import NUM_SPECIAL, VOCAB_SIZE, cycle_text

__all__ = ["NUM_SPECIAL", "VOCAB_SIZE", "Models", "cycle_text", "write_models"]
