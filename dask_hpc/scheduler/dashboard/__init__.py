"""Pages of the scheduler's dashboard."""
