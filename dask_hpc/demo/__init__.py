"""The main job: several workloads that share one cluster, run, checked and reported by one command."""
