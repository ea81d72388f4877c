"""What happened, as a page: the model of a run, its pictures, the HTML."""

from __future__ import annotations

from dask_hpc.report.figure import compared_figure, node_map_figure
from dask_hpc.report.page import build_report, write_report
from dask_hpc.report.timeline import Timeline, build_timeline

__all__ = ["Timeline", "build_report", "build_timeline", "compared_figure", "node_map_figure", "write_report"]
