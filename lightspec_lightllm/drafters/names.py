"""Names of the drafters, for whoever only needs to check one."""

DRAFTER_NAMES = ("ngram", "head", "hybrid")
