"""Fair shares for people who declare nothing but a job's name: the policy `fair`."""
