"""Which task belongs to which job, and when it may start."""
