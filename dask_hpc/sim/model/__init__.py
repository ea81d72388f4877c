"""What is simulated: jobs, machines, workloads."""
