"""Checkpoints by the clock: which running jobs write a version of their state now.

What is known of the versions of jobs is the section ``checkpoints`` of the picture: by the id of the job, the
fields of `resilience.commit_times.History`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dask_hpc_policies.codec import decode
from dask_hpc_policies.decision import Checkpoint, Reason, ReasonCode
from dask_hpc_policies.model import ClusterSnapshot
from dask_hpc_policies.params import Duration, Parameter
from dask_hpc_policies.resilience.commit_times import History, Rule, due
from dask_hpc_policies.rules.losses import SEVERITIES, Severity

#: Name of the section.
SECTION = "checkpoints"
_LONGEST_S = 86400.0 * 36_500
#: The worst failure that a version outlives which is kept there: in the memory of its host, in that of
#: another one, on the file system.
SURVIVES: Mapping[str, Severity] = {"L1": "process", "L2": "host", "L3": "several"}
EVERY = Duration(
    "every_s", 600.0, lo=0.01, hi=_LONGEST_S, label="Interval",
    help="time from the end of one checkpoint of a job to the beginning of the next",
)  # fmt: skip
NODE_MTBF = Duration(
    "node_mtbf_s", None, lo=1.0, hi=_LONGEST_S, none_ok=True, label="Mean time between failures",
    help="of one node; with the measured cost of a checkpoint it gives the interval; none: every_s is it",
)  # fmt: skip


def suffices(survives: Severity, level: str | None) -> bool:
    """Whether what outlives these failures is kept at `level` at least; None: anywhere."""
    if level is None:
        return True
    return level in SURVIVES and SEVERITIES.index(survives) >= SEVERITIES.index(SURVIVES[level])


def parameters(method: str) -> tuple[Parameter, ...]:
    """What a policy takes that finds the interval by that estimate, or has a fixed one."""
    return (EVERY,) if method == "fixed" else (EVERY, NODE_MTBF)


def checkpoints(view: ClusterSnapshot, params: Mapping[str, Any], method: str) -> tuple[Checkpoint, ...]:
    """A checkpoint for every running job that is due for one."""
    known = view.sections.get(SECTION) or {}
    if not known:
        return ()
    rule = Rule(params["every_s"], params.get("node_mtbf_s"), method)
    found = []
    for job in view.running:
        if job.id in known:
            why = due(view.now_s, decode(History, known[job.id]), rule, job.nodes)
            if why is not None:
                found.append(Checkpoint(job=job.id, reason=Reason(ReasonCode.CHECKPOINT_DUE, why)))
    return tuple(found)
