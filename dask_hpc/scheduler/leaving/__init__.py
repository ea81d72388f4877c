"""Nodes that leave the pool: chosen, drained, their data and actors moved, retired."""
