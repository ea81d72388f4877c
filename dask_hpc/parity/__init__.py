"""One workload live and simulated, side by side."""
