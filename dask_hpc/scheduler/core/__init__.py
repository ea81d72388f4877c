"""The engine: puts the parts together, asks the policy, keeps the life of jobs."""
