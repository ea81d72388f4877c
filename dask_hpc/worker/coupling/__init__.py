"""Blocks of a coupled program on their way into a worker."""
