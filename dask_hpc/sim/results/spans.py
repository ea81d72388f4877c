"""What a run of the simulator came to, as spans: who had which nodes from when to when.

Rules of the file: pure. Where the run has not noted which nodes a job had (`Options.node_ids`), only how
many, nodes are alike and rows are given to jobs in their order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dask_hpc.report.spans import NodeSpan, Spans, packed
from dask_hpc.report.timeline import run_spans

if TYPE_CHECKING:
    from dask_hpc.sim.run import Result


def result_spans(result: Result) -> Spans:
    """Spans of all jobs and nodes of a run. What goes on from a live cluster (`what_if`) is a prediction."""
    runs = result.runs
    submits = [run.submit_s for run in runs]
    start_s = min(submits, default=0.0) if result.from_s is None else result.from_s
    ends = [run.end_s for run in runs if run.end_s is not None]
    end_s = max([start_s, *ends, *(t_s for run in runs for t_s, _ in run.nodes)])
    predicted = result.from_s is not None
    jobs = tuple(span for run in runs for span in run_spans(run, end_s, predicted))
    if result.node_log:
        ids = [job.id for job in result.workload.jobs]
        nodes = tuple(str(index) for index in range(result.machine.nodes))
        spans = tuple(
            NodeSpan(node=str(node), start_s=from_s, end_s=to_s, job=ids[key], predicted=predicted)
            for node, key, from_s, to_s in result.node_log
        )
    else:
        rows = packed(jobs, [str(index) for index in range(result.machine.nodes)])
        nodes, spans = rows.nodes, rows.node_spans
    return Spans(
        start_s=start_s,
        end_s=end_s,
        now_s=result.from_s,
        nodes=nodes,
        node_spans=spans,
        labels={run.id: run.name or run.id for run in runs},
        job_spans=jobs,
    )
