"""Any program: whatever it calls in whatever order, and crashes, a run goes on from its newest version."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from examples import examples
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dask_hpc import CheckpointSession
from dask_hpc.checkpoint.store import Store
from dask_hpc.errors import CheckpointError
from dask_hpc_policies.states import SESSION_STATES

NAMES = st.sampled_from(["a", "b"])
LENGTHS = {"a": 3, "b": 5}


class Programs(RuleBasedStateMachine):
    """Runs of one program, with what they must find: the versions, and what the last calls allow."""

    def __init__(self) -> None:
        super().__init__()
        self.temporary = tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        #: Content of each version, by number.
        self.versions: dict[int, dict[str, list[float]]] = {}
        self.begin()

    def begin(self) -> None:
        self.session = CheckpointSession("run", store=self.temporary.name)
        self.state = "new"
        self.arrays: dict[str, np.ndarray] = {}
        #: The version that was gone back to, and the newest that this run may replace.
        self.back: int | None = None
        self.known = 0

    def call(self, event: str, *arguments: Any) -> tuple[bool, Any]:
        """Whether a call was legal, and what it gave."""
        if event not in SESSION_STATES[self.state]:
            with pytest.raises(CheckpointError, match=f"that is {self.state} cannot '{event}'"):
                getattr(self.session, event)(*arguments)
            return False, None
        return True, getattr(self.session, event)(*arguments)

    @property
    def newest(self) -> int:
        return max(self.versions, default=0)

    @rule()
    def init(self) -> None:
        if self.call("init")[0]:
            self.state = "configuring"

    @rule(name=NAMES, number=st.integers(-9, 9))
    def add(self, name: str, number: int) -> None:
        legal, array = self.call("add", name, np.full(LENGTHS[name], float(number)))
        if legal:
            self.arrays[name] = array

    @rule(name=NAMES, number=st.integers(-9, 9))
    def compute(self, name: str, number: int) -> None:
        if name in self.arrays:
            self.arrays[name] += number

    @rule(on=st.booleans())
    def enable_async(self, on: bool) -> None:
        self.call("enable_async", on)

    @rule()
    def commit(self) -> None:
        legal = "commit" in SESSION_STATES[self.state]
        if legal and (not self.arrays or self.newest > self.known):
            # refused in the background, too
            with pytest.raises(CheckpointError, match=r"nothing to write|neither written nor gone on from"):
                self.session.commit().wait()
            if self.arrays:
                # some of that may have begun
                self.crash()
            return
        legal, commit = self.call("commit")
        if legal:
            commit.wait()
            self.known = commit.version
            assert self.known == self.newest + 1
            self.versions[self.known] = {name: list(array) for name, array in self.arrays.items()}
            self.state = "idle"

    @rule()
    def restart(self) -> None:
        legal, found = self.call("restart")
        if legal:
            self.went_back(found)
            self.state = "idle" if found is None else "restoring"

    @rule()
    def restart_all(self) -> None:
        fits = set(self.arrays) <= set(self.versions.get(self.newest, self.arrays))
        if "restart_all" in SESSION_STATES[self.state] and (not self.arrays or not fits):
            with pytest.raises((CheckpointError, ValueError), match=r"add\(name|has no array"):
                self.session.restart_all()
            return
        legal, found = self.call("restart_all")
        if legal:
            self.went_back(found)
            self.state = "idle"
            for name, array in self.arrays.items() if found else ():
                assert list(array) == self.versions[self.newest][name]

    def went_back(self, found: int | None) -> None:
        assert found == (self.newest or None)
        self.back, self.known = found, self.newest

    @rule(name=NAMES)
    def restore(self, name: str) -> None:
        if self.state == "restoring" and name not in self.versions[self.back or 0]:
            with pytest.raises(ValueError, match="has no array"):
                self.session.restore(name)
            return
        legal, found = self.call("restore", name)
        if legal:
            assert list(found) == self.versions[self.back or 0][name]

    @rule()
    def probe_agents(self) -> None:
        legal, found = self.call("probe_agents")
        if legal:
            assert (found.changed, found.problem) == (False, None)
            self.state = "idle"

    @rule(persist=st.booleans())
    def finalize(self, persist: bool) -> None:
        if self.call("finalize", persist)[0]:
            self.state = "ended"
            if not persist:
                self.versions = {n: content for n, content in self.versions.items() if n > self.known}

    @rule()
    def crash(self) -> None:
        """The process has ended, and a new run begins."""
        self.begin()

    @invariant()
    def the_session_knows_where_it_is(self) -> None:
        assert self.session.state == self.state

    @invariant()
    def the_last_two_versions_are_there(self) -> None:
        there = [each.version for each in Store(self.temporary.name).versions() if each.complete]
        assert there == sorted(self.versions)[-2:]

    def teardown(self) -> None:
        self.temporary.cleanup()


TestPrograms = Programs.TestCase
TestPrograms.settings = examples(40, stateful_step_count=25)
