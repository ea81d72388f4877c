"""What may be told of a run while it goes on: nobody listens unless a recorder does.

Rules of the file: telling changes nothing. A copy of a run (`Engine.fork`) is not listened to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from dask_hpc.sim.engine.active import ActiveJob
from dask_hpc.sim.engine.pipeline import Pipeline
from dask_hpc_policies.decision import Action, Decision, Outcome, Reason
from dask_hpc_policies.model import ClusterSnapshot, NodeState
from dask_hpc_policies.rules.losses import Severity


class Listener:
    """Is told everything, and does nothing with it."""

    def passed(
        self, view: ClusterSnapshot, before: Any, decision: Decision, allowed: Decision, latency_s: float
    ) -> None:
        """The policy was asked about `view` with the state `before`, and answered after so many seconds.

        Guards have let `allowed` through of the decision.
        """

    def job(self, active: ActiveJob, reason: str = "") -> None:
        """The job is in another state, or has another size."""

    def ended(self, active: ActiveJob, state: str) -> None:
        """The job has ended."""

    def nodes(
        self, ids: Sequence[int], holder: ActiveJob | None, state: NodeState | Literal["removed"]
    ) -> None:
        """Nodes have changed hands, or come, or gone."""

    def lost(self, severity: Severity, nodes: Sequence[int], exposure_node_s: float) -> None:
        """These nodes, or what ran there, have failed, after so many node-seconds."""

    def transfer(
        self, active: ActiveJob, id: str, path: str, size_bytes: float, moved_bytes: float, state: str
    ) -> None:
        """A transfer beside computing has begun, has ended, or was cut off (``cut``)."""

    def stepped(self, pipeline: Pipeline) -> None:
        """Steps of a flow may have come to their ends (`Pipeline.told`)."""

    def ended_at_once(self, outcome: Outcome) -> None:
        """An action that allots nothing was carried out."""

    def begun(self, active: ActiveJob, action: Action) -> None:
        """An action on the job was accepted."""

    def done(self, active: ActiveJob) -> None:
        """The action on the job was carried out."""

    def refused(self, action: Action, why: Reason) -> None:
        """An action cannot be carried out, or could not in the end."""

    def aborted(self, active: ActiveJob) -> None:
        """The job has ended, or was interrupted, before the action on it was carried out."""

    def __deepcopy__(self, _: object) -> Listener:
        return Listener()
