"""The tables of job and reconfiguration states."""

from __future__ import annotations

import typing

import pytest

from dask_hpc_policies.model import JobState
from dask_hpc_policies.states import (
    JOB_STATES,
    RECONFIG_STATES,
    IllegalTransition,
    job_step,
    reconfig_step,
)


def test_a_whole_life() -> None:
    state = "pending"
    for event in ("start", "adapt", "adapted", "close", "complete"):
        state = job_step(state, event)
    assert state == "completed"


def test_the_table_has_the_states_of_the_model_and_leads_nowhere_else() -> None:
    assert set(JOB_STATES) == set(typing.get_args(JobState))
    for table in (JOB_STATES, RECONFIG_STATES):
        assert {after for events in table.values() for after in events.values()} <= set(table)


def test_nothing_leaves_an_end_state_and_cancel_is_legal_before() -> None:
    ended = {state for state, events in JOB_STATES.items() if not events}
    assert ended == {"completed", "failed", "cancelled"}
    for state in JOB_STATES:
        if state in ended:
            with pytest.raises(IllegalTransition, match=f"{state}.*'cancel'.*end state"):
                job_step(state, "cancel")
        else:
            assert job_step(state, "cancel") == "cancelled"


@pytest.mark.parametrize("prepared", ["drained", "ready"])
def test_a_reconfiguration_ends_where_it_began(prepared: str) -> None:
    state = "steady"
    for event in ("begin", prepared, "moved", "commit"):
        state = reconfig_step(state, event)
    assert state == "steady"


@pytest.mark.parametrize("state", ["preparing", "redistributing", "committing"])
@pytest.mark.parametrize("event", ["abort", "timeout"])
def test_every_active_state_can_be_aborted_and_restored(state: str, event: str) -> None:
    assert reconfig_step(reconfig_step(state, event), "restored") == "steady"


def test_illegal_steps_name_state_event_and_what_is_legal() -> None:
    with pytest.raises(IllegalTransition, match=r"pending.*'adapt'.*start, close, cancel, fail"):
        job_step("pending", "adapt")
    with pytest.raises(IllegalTransition, match=r"steady.*'commit'.*begin"):
        reconfig_step("steady", "commit")
    with pytest.raises(IllegalTransition, match="'asleep' is no job state"):
        job_step("asleep", "start")
