"""Checkpoints, scheduler side: commits under way, and the results that they protect."""
