"""The explorer's state: workload, machine, policies to compare."""
