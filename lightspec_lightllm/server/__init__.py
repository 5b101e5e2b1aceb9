"""HTTP front of the embedded engine, its metrics and its dashboard."""
