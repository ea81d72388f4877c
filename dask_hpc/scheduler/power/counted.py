"""Mean watts of a worker from what it has counted: heartbeats are rarer than samples, and miss others.

Rules of the file: seconds are those of the host's stopwatch, which no clock that is set moves. A counter that
has begun anew, or that stood still, says nothing: then the watts of the last sample count.
"""

from __future__ import annotations

from dask_hpc_policies.ranges import MOST_NODE_W

#: Seconds, joules counted by then, and the mean watts since it was heard of before.
Counted = tuple[float, float, float]
#: A mean over more seconds says nothing of now.
_MOST_S = 300.0


def counted(before: Counted | None, at_s: float, energy_j: float, watts: float) -> Counted:
    """What a worker has counted by now.

    Parameters
    ----------
    before
        The same when it was heard of last; None: it was not, or did not measure then.
    watts
        Of its last sample alone.
    """
    if before is None:
        return at_s, energy_j, watts
    length_s, used_j = at_s - before[0], energy_j - before[1]
    if length_s == 0:
        return before
    # no comparison holds for what is no number
    if used_j > 0 and 0 < length_s <= _MOST_S and used_j / length_s <= MOST_NODE_W:
        watts = used_j / length_s
    return at_s, energy_j, watts
