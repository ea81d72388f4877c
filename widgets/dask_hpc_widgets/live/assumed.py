"""How long a job takes of which nothing is known: one number for all that the panel predicts.

Rules of the file: the field, and what is in it. Simulate, Try all, what blocks a job, and what Apply says
that it does at once all take the same.
"""

from __future__ import annotations

from dask_hpc_policies.params import Duration
from dask_hpc_widgets.base import controls as widgets

#: What the field begins with, in seconds: that of `dask_hpc.sim.waiting`, which `job.why_waiting` takes.
DEFAULT_S = 60.0
_SECONDS = Duration("Unknown jobs take", DEFAULT_S, lo=0.001, hi=86_400.0 * 365, label="Unknown jobs take")


class Assumed:
    """The field in which a person says it.

    Attributes
    ----------
    field
        The widget.
    """

    def __init__(self) -> None:
        self.field = widgets.Text(
            value=_SECONDS.format(_SECONDS.default),
            description=_SECONDS.label,
            tooltip="All that is predicted here takes this for jobs of which nothing is known. "
            f"Allowed: {_SECONDS.allowed}.",
            style={"description_width": "13rem"},
            layout={"width": "auto", "max_width": "25rem"},
        )

    def seconds(self) -> float:
        """What is in the field, in seconds.

        Raises
        ------
        ParameterError
            When that is no time.
        """
        return float(_SECONDS.validate(self.field.value))
