"""Measures strategies against each other on real prompts: same engine, same prompts, alternating arms."""
