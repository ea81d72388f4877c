"""The power corridor, seen from a client: methods that `Runtime` has."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal

from dask_hpc.channel import Channel
from dask_hpc.client.arguments import path_of

#: Whole numbers from here on do not fit into a message.
_TOO_LARGE = 2**63


class PowerMethods:
    """What a runtime's handle knows of power."""

    #: The way to the scheduler.
    channel: Channel

    def corridor(
        self,
        *,
        lower_w: float | str | None = None,
        upper_w: float | str | None = None,
        over: float | str | timedelta | None = None,
        schedule: Sequence[Sequence[float | str]] | None = None,
        file: str | os.PathLike[str] | None = None,
        series: str | os.PathLike[str] | None = None,
        rules: Sequence[Mapping[str, Any]] | None = None,
        ramp_w_s: float | str | None = None,
        mode: Literal["enforce", "advise", "monitor"] | None = None,
        clear: bool = False,
    ) -> Any:
        """Keep what all nodes together draw between two bounds, in place of those that were set before.

        Jobs are resized, held or started smaller (``hpc.power.levers``; with ``cap`` hosts are capped, too),
        and plain work has the nodes that there are watts for; nothing that executes is interrupted. The
        policy ``power-aware`` keeps the corridor by itself; what any other decides is held to it. The runtime
        stays awake until the corridor is cleared.

        Parameters
        ----------
        lower_w, upper_w
            Watts, or text such as ``"1.7 kW"``; one alone leaves the other side open.
        over
            What has been drawn is held to the bounds as its mean over this time (seconds, or text), also in
            ``outside_ws``; None: as it is. What sizes of jobs let expect is held to them at every moment all
            the same: a mean that leaves room does not let a plan draw more for a while. By the mean alone
            decides ``power-aware`` with ``mode="reactive"``.
        schedule
            Rows ``[t_s, lower_w, upper_w]``: the bounds from so many seconds from now on.
        file
            Absolute path, on the scheduler's machine, of a YAML file with these arguments, which is looked at
            every ``hpc.tick``; one that cannot be taken changes nothing.
        series
            Absolute path, on the scheduler's machine, of a series of bounds, or of prices or carbon with
            `rules` (CSV, or day-ahead prices of ENTSO-E as XML), which is watched like `file`; it stands in
            place of bounds and schedule. ``dask hpc power plan`` shows what comes of it.
        rules
            What prices or carbon mean: mappings such as ``{"above": 100, "upper_w": "2 kW"}`` (with ``of``:
            ``"price"``, the default, or ``"carbon"``; ``below``; ``lower_w``), of which the first that fits
            counts.
        ramp_w_s
            Bounds change by at most so many watts a second: upper ones fall in time and rise afterwards,
            lower ones the other way round, and a draw that is outside at the beginning is led inside.
        mode
            ``enforce`` (the default): decisions are held to it. ``advise``: what would be done is told
            (`power`, `decisions`). ``monitor``: the draw is looked at.
        clear
            No corridor any more.

        Returns
        -------
        dict
            As of `power`.

        Raises
        ------
        CorridorError, ValueError
            For bounds that cannot be, or while nobody knows what a node draws; nothing is changed then.
        """
        lower_w, upper_w, over, ramp_w_s = _sent((lower_w, upper_w, over, ramp_w_s))
        return self.channel.sync(
            "corridor",
            lower_w=lower_w,
            upper_w=upper_w,
            over=over,
            schedule=_sent(schedule),
            file=None if file is None else path_of("file", file),
            series=None if series is None else path_of("series", series),
            rules=_sent(rules),
            ramp_w_s=ramp_w_s,
            mode=mode,
            clear=clear,
        )

    def power(self) -> Any:
        """What is drawn, between which bounds, and what it has come to since the corridor was set.

        Returns
        -------
        dict
            ``draw_w`` and ``label`` (``measured``, ``modelled``, or ``unavailable``, when the watts are
            None), ``lower_w``, ``upper_w``, ``min_w`` and ``max_w`` (expected at the present sizes),
            ``unexplained_w`` (of these, watts that have been drawn steadily beyond all that is known of jobs
            and nodes: a hint that is wrong, another user's load; None: not known),
            ``energy_j``, which is ``idle_j``, ``plain_j``, ``earlier_jobs_j`` and the rows of ``jobs``
            together, ``outside_ws`` (watts outside over time), ``outside_s``; ``forecast`` (of the measured
            draw: ``model``, ``mean_w``, ``min_w``, ``max_w``, ``error``, a share); ``recent``, rows of
            seconds from now, draw, both bounds and both watts expected; ``bill``: of the ``total``, ``idle``
            nodes, ``plain`` work, ``earlier_jobs``, by id ``jobs``, by name ``nodes``, ``absent_nodes`` and
            by what nodes did ``states`` (off, boot, idle, compute, communicate, checkpoint, restart,
            recovery) each ``energy_j``, ``energy_kwh``, ``known_s``, ``least_w``, ``mean_w``, ``most_w``,
            ``energy_delay_js``, ``cost`` and ``carbon_g`` (by ``hpc.power.price`` and ``hpc.power.carbon``)
            and ``label``; None is not known; ``caps``, a row a host that was asked for one: ``host``,
            ``watts``, ``state`` (refused, ready, dry-run, written, released), ``values``, ``reason``;
            ``withheld``: ``nodes`` that plain work may not have
            now, and the ``reason``; ``history``: by name of jobs that have completed on one size, the 50
            latest names, ``runs`` (nodes, seconds, mean watts of the job), the latest 8, and ``fitted`` to
            the latest 32, where there are two sizes, ``alone_s`` and ``shared_s`` (seconds
            ``alone_s + shared_s / nodes``), ``base_w`` and
            ``node_w`` (watts ``base_w + node_w * nodes``) and by how much, as a share, they miss a run at
            most, ``error_s`` and ``error_w``. The rest as they are called.
        """
        return self.channel.sync("power")


def _sent(value: Any) -> Any:
    """A value, with all in it, as messages hold it: plain numbers in place of those of other libraries.

    Whole numbers that are too large for a message are as good as infinite.
    """
    if isinstance(value, Mapping):
        return {name: _sent(one) for name, one in value.items()}
    if hasattr(value, "tolist"):
        # of NumPy, an array or a number
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_sent(one) for one in value]
    if isinstance(value, int) and abs(value) >= _TOO_LARGE:
        return math.inf if value > 0 else -math.inf
    return value
