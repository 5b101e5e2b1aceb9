"""Dynamic speculative decoding for LightLLM: a planner that sizes every round while serving."""

__version__ = "0.1.0"
