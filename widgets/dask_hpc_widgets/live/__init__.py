"""What the panel does to a running cluster: tuning, effects, what-if."""
