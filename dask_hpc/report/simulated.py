"""What a run of the simulator came to, as spans: who had which nodes from when to when.

Rules of the file: pure; knows no simulator. Where a run has not noted which nodes a job had, only how many,
nodes are alike and rows are given to jobs in their order.
"""

from __future__ import annotations

from collections.abc import Sequence

from dask_hpc.report.spans import NodeSpan, Spans, packed
from dask_hpc.report.timeline import run_spans
from dask_hpc_policies.metrics import JobRun


def simulated_spans(
    runs: Sequence[JobRun],
    nodes: int,
    node_log: Sequence[tuple[int, str, float, float]] = (),
    from_s: float | None = None,
) -> Spans:
    """Spans of all jobs and nodes of a run.

    Parameters
    ----------
    runs
        One a job, in order of submission.
    nodes
        Size of the machine.
    node_log
        Node, id of the job, from and to in seconds; empty: not known.
    from_s
        Moment of the live cluster that the run goes on from: all of it is a prediction. None: of none.
    """
    predicted = from_s is not None
    start_s = min((run.submit_s for run in runs), default=0.0) if from_s is None else from_s
    end_s = max([start_s, *(t_s for run in runs for t_s, _ in run.nodes)])
    jobs = tuple(span for run in runs for span in run_spans(run, end_s, predicted))
    rows = tuple(str(index) for index in range(nodes))
    if node_log:
        spans = tuple(
            NodeSpan(node=str(node), start_s=begin_s, end_s=to_s, job=job, predicted=predicted)
            for node, job, begin_s, to_s in node_log
        )
    else:
        places = packed(jobs, rows)
        rows, spans = places.nodes, places.node_spans
    return Spans(
        start_s=start_s,
        end_s=end_s,
        now_s=from_s,
        nodes=rows,
        node_spans=spans,
        labels={run.id: run.name or run.id for run in runs},
        job_spans=jobs,
    )
