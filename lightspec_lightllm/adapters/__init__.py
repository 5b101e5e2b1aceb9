"""Hosts: what rounds run on. `simulated` needs numpy alone, `embedded` a CPU and torch."""
