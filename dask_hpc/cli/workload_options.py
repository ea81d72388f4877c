"""Workloads and machines on the command line, shared by all commands that simulate."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from dask_hpc.cli.state import state_of
from dask_hpc.cli.types import FILE, SOURCE, FiniteRange, Seconds, assignments, showing, told_of_options

if TYPE_CHECKING:
    from dask_hpc.sim import Machine, Options, Result, Workload
    from dask_hpc.sim.formats.fields import Field
    from dask_hpc.sim.model.power import NodePower


#: Shorter ones ask a policy more often than any run needs.
_SHORTEST_TICK_S = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What to simulate on what: the options of a command, together."""

    source: str
    nodes: int | None
    malleable_share: float | None
    seed: int
    tick_s: float | None
    decision_s: float | Literal["measured"]
    latency: Literal["none", "published"]
    wide: Literal["drop", "clip", "refuse"]
    options: dict[str, str]
    #: Go on from the state that the trace has at this time; None: simulate all of its jobs.
    at_s: float | None = None
    #: How long a job of that state, or of a running cluster, takes when nobody knows.
    default_s: float | None = None
    #: File with earlier runs, for estimates.
    recorded: Path | None = None
    #: What is said of the machine's nodes, in the words of YAML workloads.
    pool: dict[str, str] = field(default_factory=dict)
    roles: dict[str, str] = field(default_factory=dict)
    power: dict[str, str] = field(default_factory=dict)
    #: Who keeps the machine's corridor; None: policies that do so by themselves.
    corridor_mode: str | None = None
    corridor_levers: str | None = None
    #: How far ahead announced bounds count for jobs of unknown length; None: as on a cluster by default.
    corridor_horizon: float | None = None
    #: Its bounds change by at most so many watts a second; None: they jump as they stand.
    corridor_ramp: float | None = None

    def runner(self) -> tuple[Callable[..., Result], int]:
        """What runs a policy on it, and how many jobs there are.

        It takes policy, options, profile, progress and trace, and returns the result. Whatever is asked for
        is read once: all policies start from the same.
        """
        from dask_hpc.sim import simulate
        from dask_hpc.sim.formats.fields import escaped
        from dask_hpc.sim.formats.machine_fields import MOST_NODES
        from dask_hpc.sim.model.machine import PUBLISHED
        from dask_hpc.sim.what_if import simulate_from

        given = {
            "--option": self.options,
            "--malleable-share": self.malleable_share is not None,
            "--wide": self.wide != "refuse",
            "--recorded": self.recorded is not None,
            "--role": self.roles,
            **self._of_corridor(),
        }
        others = [name for name, is_given in given.items() if is_given]
        view = state_of(self.source, self.at_s, self.default_s, others)
        if view is None:
            workload, machine = self.load()
            return functools.partial(simulate, workload, machine=machine), len(workload.jobs)
        run = functools.partial(
            simulate_from,
            view,
            default_s=self.default_s,
            nodes=self.nodes,
            adaptation=PUBLISHED if self.latency == "published" else None,
            name=escaped(self.source),
            **self._nodes_of(MOST_NODES),
        )
        return run, sum(not job.is_default for job in view.jobs)

    def load(self) -> tuple[Workload, Machine]:
        """The workload, with the share of malleable jobs that was asked for, and its machine."""
        from dask_hpc.sim.workloads.prepare import prepare

        with told_of_options():
            workload, machine = prepare(
                self.source,
                nodes=self.nodes,
                malleable_share=self.malleable_share,
                seed=self.seed,
                wide=self.wide,
                adaptation=self.latency,
                recorded=self.recorded,
                options=self.options,
            )
        machine = replace(machine, **self._nodes_of(machine.nodes, machine.power))
        if machine.corridor is None:
            if given := [name for name, is_given in self._of_corridor().items() if is_given]:
                verb = "needs" if len(given) == 1 else "need"
                raise click.UsageError(
                    f"{', '.join(given)} {verb} a workload whose machine has a power corridor"
                )
        elif self.corridor_ramp is not None:
            machine = replace(machine, corridor=machine.corridor.led(self.corridor_ramp))
        return workload, machine

    def _of_corridor(self) -> dict[str, bool]:
        """Whether each option is given that is about a corridor."""
        given = {
            "mode": self.corridor_mode,
            "levers": self.corridor_levers,
            "horizon": self.corridor_horizon,
            "ramp": self.corridor_ramp,
        }
        return {f"--corridor-{name}": value is not None for name, value in given.items()}

    def _nodes_of(self, nodes: int, drawn: NodePower | None = None) -> dict[str, Any]:
        """What is said of the nodes of a machine of `nodes` nodes, and not left to the workload (`drawn`)."""
        from dask_hpc.sim.formats.machine_fields import read_pool, read_power, read_roles

        with told_of_options():
            power = read_power(_field("--power", self.power))
            if power is not None and drawn is not None:
                power = replace(drawn, **{watts: getattr(power, watts) for watts in self.power})
            found = {
                "pool": read_pool(_field("--pool", self.pool), nodes),
                "roles": read_roles(_field("--role", self.roles), nodes),
                "power": power,
            }
        return {name: value for name, value in found.items() if value is not None}

    def run_options(self, **more: Any) -> Options:
        """How to run it."""
        from dask_hpc.sim import Options

        corridor: dict[str, Any] = {} if self.corridor_mode is None else {"mode": self.corridor_mode}
        if self.corridor_levers is not None:
            corridor["levers"] = _levers(self.corridor_levers)
        if self.corridor_horizon is not None:
            corridor["horizon_s"] = self.corridor_horizon
        extra = {"corridor": corridor} if corridor else {}
        return Options(seed=self.seed, tick_s=self.tick_s, decision_s=self.decision_s, extra=extra, **more)


def _levers(text: str) -> tuple[str, ...]:
    """Levers, as words separated by commas."""
    from dask_hpc_policies.ranges import LEVERS

    words = tuple(word.strip() for word in text.split(","))
    if unknown := [word for word in words if word not in LEVERS]:
        raise click.UsageError(f"--corridor-levers: {unknown[0]!r}; allowed: {', '.join(LEVERS)}")
    return words


def _field(option: str, given: dict[str, str]) -> Field | None:
    """What was given with an option as a file would have it; None when nothing was."""
    from dask_hpc.sim.formats.fields import Field, text_number

    values = {name: text if (number := text_number(text)) is None else number for name, text in given.items()}
    return Field(values, option) if values else None


def _names() -> None:
    from dask_hpc.sim.generators.generator import Generator
    from dask_hpc.sim.workloads.sources import BUILTIN

    for name, made in BUILTIN.items():
        if not isinstance(made, Generator):
            continue
        click.echo(f"builtin:{name}\n  {made.summary}")
        for option in made.options:
            unit = f" {option.unit}" if option.unit else ""
            click.echo(f"  --option {option.name}={option.default}{unit}: {option.help}")


#: Options about the workload that other commands have as well.
option_option = assignments(
    "--option",
    "options",
    example="malleable=0.5",
    help="An option of a builtin workload (dask hpc simulate --list shows them).",
)
share_option = click.option(
    "--malleable-share",
    type=FiniteRange(0, 1),
    metavar="X",
    help="Declare this share of the rigid jobs malleable.",
)
seed_option = click.option(
    "--seed",
    type=click.IntRange(0, 2**63 - 1),
    default=0,
    show_default=True,
    help="Seed of everything random.",
)
wide_option = click.option(
    "--wide",
    type=click.Choice(["refuse", "drop", "clip"]),
    default="refuse",
    show_default=True,
    help="What becomes of jobs that need more nodes than there are.",
)
#: What to simulate.
_WORKLOAD = (
    click.argument("workload", type=SOURCE),
    showing(_names, "Show the builtin workloads and their options."),
    click.option("--nodes", type=click.IntRange(1, 10_000_000), metavar="N",
                 help="Nodes of the machine; without it, what the workload says."),
    option_option,
    share_option,
    seed_option,
    wide_option,
    click.option("--recorded", type=FILE, metavar="FILE",
                 help="Earlier runs as estimates: a trace, sacct output, or a result of simulate as JSON."),
)  # fmt: skip
#: How.
_RUN = (
    click.option("--tick", metavar="SECONDS", type=Seconds(_SHORTEST_TICK_S),
                 help="Ask the policy at fixed times as well; without it, at events alone."),
    click.option("--decision-latency", metavar="SECONDS|measured", type=Seconds(words=["measured"]),
                 default="0 s", show_default=True, help="Time from asking the policy to its answer taking "
                 "effect; measured: what it really takes on this computer."),
    click.option("--adaptation", type=click.Choice(["none", "published"]), default="none",
                 show_default=True,
                 help="How long a resize holds a job up; none: of a running cluster, as measured there."),
    assignments("--pool", "pool", example="initial_nodes=4",
                help="How nodes come when a policy asks for them: initial_nodes, wait_s, wait_sigma, boot_s, "
                "walltime_s."),
    assignments("--role", "roles", example="staging=2", help="Nodes that play a role and that no job gets."),
    assignments("--power", "power", example="idle_w=100",
                help="Watts of a node by state (off_w, booting_w, idle_w, busy_w, down_w), of its network "
                "card in use (nic_w), of its share of a switch (switch_w), for energy_j."),
    click.option("--corridor-mode", type=click.Choice(["monitor", "enforce"]),
                 help="Under the power corridor of the workload: only look at the draw, or hold every policy "
                 "to it; without it, only power-aware is."),
    click.option("--corridor-levers", metavar="WORDS",
                 help="What may be done to keep it, separated by commas, as hpc.power.levers."),
    click.option("--corridor-horizon", type=FiniteRange(0), metavar="S",
                 help="With lookahead=yes: how far ahead bounds count for a job of unknown length, "
                 "as hpc.power.forecast.horizon; without it, 30 s."),
    click.option("--corridor-ramp", type=FiniteRange(0, min_open=True), metavar="W",
                 help="The bounds of that corridor change by at most so many watts a second."),
    click.option("--at", metavar="SECONDS", type=Seconds(),
                 help="Go on from the state that a recorded trace has at this time."),
    click.option("--default-time", metavar="SECONDS", type=Seconds(),
                 help="How long jobs of a running cluster, or of --at, take that do not say."),
)  # fmt: skip


def source_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument WORKLOAD and the options that say what it is; the command gets them as `setup`."""
    return _with(command, _WORKLOAD)


def workload_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument WORKLOAD and all options of a run; the command gets them as `setup`."""
    return _with(command, (*_WORKLOAD, *_RUN))


def _with(command: Callable[..., Any], decorators: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        setup = Setup(
            source=kwargs.pop("workload"),
            nodes=kwargs.pop("nodes"),
            malleable_share=kwargs.pop("malleable_share"),
            seed=kwargs.pop("seed"),
            tick_s=kwargs.pop("tick", None),
            decision_s=kwargs.pop("decision_latency", 0.0),
            latency=kwargs.pop("adaptation", "none"),
            wide=kwargs.pop("wide"),
            options=kwargs.pop("options"),
            at_s=kwargs.pop("at", None),
            default_s=kwargs.pop("default_time", None),
            recorded=kwargs.pop("recorded"),
            pool=kwargs.pop("pool", {}),
            roles=kwargs.pop("roles", {}),
            power=kwargs.pop("power", {}),
            corridor_mode=kwargs.pop("corridor_mode", None),
            corridor_levers=kwargs.pop("corridor_levers", None),
            corridor_horizon=kwargs.pop("corridor_horizon", None),
            corridor_ramp=kwargs.pop("corridor_ramp", None),
        )
        return command(*args, setup=setup, **kwargs)

    for decorate in reversed(decorators):
        wrapped = decorate(wrapped)
    return wrapped
