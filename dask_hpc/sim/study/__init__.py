"""Studies: many scenarios, one table, and the conditions that must hold."""

from __future__ import annotations

from dask_hpc.sim.study.figure import figure_of, study_figure
from dask_hpc.sim.study.study import StudyResult, builtin_studies, load_study, run_study

__all__ = ["StudyResult", "builtin_studies", "figure_of", "load_study", "run_study", "study_figure"]
