"""The round: plan, reserve, verify, commit, draft, observe. Host-neutral; numpy at the seams."""

from lightspec_lightllm.decode.counters import DecodeCounters
from lightspec_lightllm.decode.guard import GuardedPlanner
from lightspec_lightllm.decode.host import Host, Verdict
from lightspec_lightllm.decode.round import Round, RoundRecord
from lightspec_lightllm.decode.select import accept_lengths, select_rows

__all__ = [
    "DecodeCounters",
    "GuardedPlanner",
    "Host",
    "Round",
    "RoundRecord",
    "Verdict",
    "accept_lengths",
    "select_rows",
]
