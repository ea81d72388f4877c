"""What a policy sees of coupled runs: the section ``coupling`` of the picture, as plain data.

Rules of the file: frozen dataclasses that survive `codec.encode` and `codec.decode`, so that a trace with
them replays. Who builds the picture, a scheduler or the simulator, fills them in: estimates are those of
`learner`, whose priors are what the user said. All numbers of an analysis are of one value of it; one that
has a value at every second step only costs half of that a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dask_hpc_policies.codec import decode
from dask_hpc_policies.model import ClusterSnapshot
from dask_hpc_policies.placement.application import Mode, Where

#: Name of the section.
SECTION = "coupling"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisView:
    """One analysis of a flow."""

    name: str
    #: Where the user said that it is to run.
    declared: Where = "auto"
    #: Where it runs from its next value on; ``auto``: it has no place yet.
    where: Where = "auto"
    #: It has a value at every so many-th step.
    every: int = 1
    #: Work of one value on one core; None: neither measured nor said.
    one_core_s: float | None = None
    #: Share of that work which no second core speeds up (Amdahl), 0 to 1.
    serial_fraction: float = 0.0
    #: Most memory that it takes at once on all of its nodes together, and what it reads, which is sent when
    #: it runs in transit; None: neither measured nor said.
    memory_bytes: float | None = None
    input_bytes: float | None = None
    #: Values that were measured; 0: what is said here are hints.
    samples: int = 0
    #: Standard deviation of the measured one-core times over their mean.
    spread: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationView:
    """The simulation that the flow comes from: one step of it, output included."""

    #: None: neither measured nor said.
    one_core_s: float | None = None
    serial_fraction: float = 0.0
    #: Most memory of a step on all of its nodes together.
    memory_bytes: float = 0.0
    samples: int = 0
    spread: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformView:
    """The nodes that a flow may use, alike."""

    #: All of them: the simulation's and staging nodes.
    nodes: int = 1
    #: Cores of each.
    cores: int = 1
    #: Memory of each for the simulation and analyses in situ, and for what it is staged; None: not limited.
    memory_bytes: float | None = None
    staging_memory_bytes: float | None = None
    #: What reaches a staging node in a second; None: not known, taken for no time at all.
    bandwidth_bytes_s: float | None = None
    #: Whether the simulation stays on the nodes, or the cores of them, that it has: one that is no program of
    #: ours cannot be told to go elsewhere.
    nodes_fixed: bool = False
    cores_fixed: bool = False
    #: Cores of each of its nodes that the simulation cannot use: they are helper cores in any case.
    least_helper_cores: int = 0
    #: What analyses in transit read is sent once, while they compute values of earlier steps.
    pipelined: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredView:
    """Medians over the latest steps."""

    #: From step to step, and its phases: the simulation, analyses in situ, analyses in transit.
    step_s: float
    simulation_s: float
    in_situ_s: float
    in_transit_s: float
    #: Number of those steps.
    steps: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Where the analyses of a flow run."""

    #: Their names, in the order of the flow.
    in_situ: tuple[str, ...] = ()
    in_transit: tuple[str, ...] = ()
    #: Nodes of the simulation, and cores of each that analyses in situ have.
    nodes: int = 1
    helper_cores: int = 0
    #: Staging nodes; None: all that the simulation has not.
    staging_nodes: int | None = None

    def staging(self, nodes: int) -> int:
        """Staging nodes, of so many nodes in all."""
        return nodes - self.nodes if self.staging_nodes is None else self.staging_nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanView:
    """The best split that was found outside the policy (`replan.plan_of`), and what it was found for."""

    found_for: Mapping[str, float]
    #: None: nothing fits.
    split: Split | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowView:
    """One coupled run."""

    #: Whether analyses in situ run on helper cores beside the simulation, or on all while it pauses.
    mode: Mode = "asynchronous"
    #: Steps that the simulation has handed over so far.
    steps: int = 0
    #: Nodes of the simulation now; all others of the platform are staging nodes, or may be.
    nodes: int = 1
    #: Staging nodes now, of a flow that does not need to have all others; None: it has them.
    staging_nodes: int | None = None
    #: Cores of each of them that analyses in situ have now; 0 in synchronous mode.
    helper_cores: int = 0
    simulation: SimulationView = SimulationView()
    platform: PlatformView = PlatformView()
    analyses: tuple[AnalysisView, ...] = ()
    #: None: no step is over yet.
    measured: MeasuredView | None = None
    #: A change of its split is under way.
    changing: bool = False
    #: For flows that a policy does not plan by itself (`replan.is_quick`).
    plan: PlanView | None = None
    #: The job whose nodes the simulation has, and how many that job has: those that it gets or gives up are
    #: the simulation's. None: nobody is to resize it for the flow.
    job: str | None = None
    job_nodes: int = 0
    #: Idle nodes that are lent to others, and may be wanted for staging again.
    lent_nodes: int = 0

    @property
    def present(self) -> Split:
        """The split that it has; an analysis without a place is in neither part."""
        return Split(
            in_situ=tuple([one.name for one in self.analyses if one.where == "in-situ"]),
            in_transit=tuple([one.name for one in self.analyses if one.where == "in-transit"]),
            nodes=self.nodes,
            helper_cores=self.helper_cores,
            staging_nodes=self.staging_nodes,
        )


def seen(view: ClusterSnapshot) -> Mapping[str, FlowView]:
    """The flows of `view` by name.

    Raises
    ------
    ValueError
        When the section is not what `FlowView` describes.
    """
    data = view.sections.get(SECTION) or {}
    return {name: decode(FlowView, flow) for name, flow in data.items()}
