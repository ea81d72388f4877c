"""Policies that keep what they know between calls: the same decisions, faster."""
