"""What runs on workers: the agent that hears of their end, and what moves or keeps their data."""
