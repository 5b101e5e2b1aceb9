"""What proposes tokens on LightLLM: one file per kind behind one interface."""

from lightspec_lightllm.adapters.lightllm.drafters.interface import LightLLMDrafter, Proposal, VerifiedRows
from lightspec_lightllm.adapters.lightllm.drafters.mtp import make_mtp_drafter

__all__ = ["LightLLMDrafter", "Proposal", "VerifiedRows", "make_mtp_drafter"]
