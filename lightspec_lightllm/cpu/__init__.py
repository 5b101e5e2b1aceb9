"""Kernels for the CPU that the embedded engine and its drafters share."""
