"""Failures on purpose: workers, hosts and stores that go while checkpoints are written and read."""
