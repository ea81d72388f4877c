"""Workloads that are generated: the studies of the literature, and random ones.

Rules of the package: everything follows from the options and the seed. What is published is cited in the
docstring of the generator; what is not, and had to be chosen, is said to be ours.
"""
