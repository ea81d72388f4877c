"""Checkpoints of programs that have their arrays themselves: to the store, and to the memories of hosts."""
