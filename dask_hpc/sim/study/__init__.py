"""Studies: many scenarios, one table, and the conditions that must hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dask_hpc.sim.study.study import StudyResult, builtin_studies, load_study, run_study

if TYPE_CHECKING:
    from dask_hpc.sim.study.figure import figure_of, study_figure

__all__ = ["StudyResult", "builtin_studies", "figure_of", "load_study", "run_study", "study_figure"]


def __getattr__(name: str) -> Any:
    # a figure alone needs matplotlib
    if name in ("figure_of", "study_figure"):
        from dask_hpc.sim.study import figure

        return getattr(figure, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
