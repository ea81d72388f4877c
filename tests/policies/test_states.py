"""The tables of job and reconfiguration states."""

from __future__ import annotations

import typing

import pytest

from dask_hpc_policies.model import JobState
from dask_hpc_policies.states import (
    JOB_STATES,
    RECONFIG_STATES,
    SESSION_INNER,
    SESSION_STATES,
    IllegalTransition,
    job_step,
    reconfig_step,
    session_step,
)


def test_a_whole_life() -> None:
    state = "pending"
    for event in ("start", "adapt", "adapted", "close", "complete"):
        state = job_step(state, event)
    assert state == "completed"


def test_the_table_has_the_states_of_the_model_and_leads_nowhere_else() -> None:
    assert set(JOB_STATES) == set(typing.get_args(JobState))
    for table in (JOB_STATES, RECONFIG_STATES, SESSION_STATES):
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


@pytest.mark.parametrize(
    "calls",
    [
        "init restart resize restore done commit done probe_agents done finalize done",
        "init add restart_all done commit done finalize done",
        "init add commit done commit done finalize done",
        "init finalize done",
    ],
)
def test_a_session_goes_the_ways_of_the_table_of_the_source(calls: str) -> None:
    state = "new"
    for event in calls.split():
        state = session_step(state, event)
    assert state == "ended"


def test_a_session_is_begun_once_goes_back_once_and_first_and_ends_for_good() -> None:
    allowed = {
        event: {state for state, events in SESSION_STATES.items() if event in events}
        for event in ("init", "restart", "restart_all", "restore", "commit", "finalize")
    }
    between = {"configuring", "restoring", "redistributing", "idle"}
    assert allowed == {
        "init": {"new"}, "restart": {"configuring"}, "restart_all": {"configuring"},
        "restore": {"restoring", "redistributing"}, "commit": between, "finalize": between,
    }  # fmt: skip
    assert SESSION_STATES["ended"] == {}
    # no way leads back
    assert not [events for events in SESSION_STATES.values() if events.get("done") == "configuring"]


def test_what_a_session_may_do_is_named_as_a_program_calls_it() -> None:
    for state, events in SESSION_STATES.items():
        for event in ("init", "restart", "restore", "commit"):
            if event not in events:
                with pytest.raises(IllegalTransition, match=f"that is {state} cannot '{event}'") as refused:
                    session_step(state, event)
                named = str(refused.value).rpartition(": ")[2].split(", ")
                assert named == ([each for each in events if each not in SESSION_INNER] or ["nothing"])
    with pytest.raises(IllegalTransition, match="'asleep' is no session state"):
        session_step("asleep", "init")


def test_illegal_steps_name_state_event_and_what_is_legal() -> None:
    with pytest.raises(IllegalTransition, match=r"pending.*'adapt'.*start, close, cancel, fail"):
        job_step("pending", "adapt")
    with pytest.raises(IllegalTransition, match=r"steady.*'commit'.*begin"):
        reconfig_step("steady", "commit")
    with pytest.raises(IllegalTransition, match="'asleep' is no job state"):
        job_step("asleep", "start")
