"""Slurm: the output of its commands as values, and the commands themselves.

`notation` reads one value (a time, a list of hosts, the id of a job), `text` the output of a whole
command into the `rows` that it consists of; these three are pure. `commands` runs the commands.
"""
