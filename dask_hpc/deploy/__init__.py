"""Clusters that grow and shrink without losing what their workers hold."""
