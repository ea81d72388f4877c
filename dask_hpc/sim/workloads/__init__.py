"""Workloads by name, from files and from records of what has run."""
