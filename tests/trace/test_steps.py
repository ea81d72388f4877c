"""What the steps of flows have taken is read back from a trace and shown; the rest is not known."""

from __future__ import annotations

from dask_hpc.report.page import build_report
from dask_hpc.trace.files import Trace
from dask_hpc.trace.records import STEP, Header, JobEvent, Other, Record, decode_line, encode_line
from dask_hpc.trace.replay import replay
from dask_hpc.trace.steps import step_medians, step_rows


def told(step: int, **figures: object) -> Record:
    """A record as it is read from a file."""
    data = {"flow": "heat", "t_s": 1.0, "step": step, **figures}
    return decode_line(encode_line(Other(kind=STEP, data=data)))


RECORDS = (
    told(0, step_s=None, in_situ_s=0.5, in_situ_work_share=0.25, helper_cores=4),
    told(1, step_s=2.0, in_situ_s=1.5, in_situ_work_share=0.75, helper_cores=4, idle_helper_core_s=6.5),
    told(2, step_s="long", in_situ_s=True, another=3, in_transit_s=10**400),
    Other(kind=STEP, data={"step": 3}),
    Other(kind="draw", data={"flow": "heat"}),
)


def test_steps_are_read_back_and_what_cannot_be_is_not_known() -> None:
    rows = step_rows(RECORDS)["heat"]
    assert [(row["step"], row["step_s"], row["in_situ_s"]) for row in rows] == [
        (0, None, 0.5),
        (1, 2.0, 1.5),
        (2, None, None),
    ]
    row = step_medians(RECORDS)["heat"]
    assert (row["steps"], row["step_s"], row["in_situ_s"], row["in_situ_work_share"]) == (3, 2.0, 1.0, 0.5)
    assert (row["idle_helper_core_s"], row["in_transit_s"]) == (6.5, None)


def test_a_replay_and_the_page_of_a_run_tell_of_them() -> None:
    assert replay(Trace("t", Header(), RECORDS)).flows["heat"]["idle_helper_core_s"] == 6.5
    page = build_report([Header(), JobEvent(t_s=0.0, job="a", state="pending"), *RECORDS])
    assert all(text in page for text in ("Steps of flows", "heat", "50%", "6.5 s", "n/a"))
    assert "Steps of flows" not in build_report([Header()])
