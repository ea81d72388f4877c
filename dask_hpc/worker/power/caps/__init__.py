"""Caps of what a host draws, written where its administrator allows it, and taken back however things end."""
