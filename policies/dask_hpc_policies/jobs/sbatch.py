"""A job declaration read from the ``#SBATCH`` lines of a batch script.

Rules of the file: text in, mapping out. What the script says is returned and nothing is added, so a
script without sizes gives a job without sizes. Each value is judged here, by line; whether values go
together (bounds in order, a start size that the constraint allows) is for `jobspec.job_spec` to say.

=============================================  ==================  =====================================
option                                         field               value
=============================================  ==================  =====================================
``--nodes``, ``-N``                            nodes               ``4``, ``1k``, ``1m`` as sbatch has it
``--nodes``, ``-N`` with a range               min_nodes,          ``2-4``: sized at start, never resized
                                               max_nodes, rigid    (moldable), as in Slurm
``--min-nodes-invasic``, ``-invasive``         min_nodes           nodes; 0: not given
``--max-nodes-invasic``, ``-invasive``         max_nodes           nodes; 0: not given
``--node-constraints``                         constraint          ``ncube`` is cube, ``none`` is any
``--min-power``, ``--max-power``               min_power_w,        watts per node
                                               max_power_w
``--consider-rigid``                           rigid               1, 0, or nothing for 1
``--time``, ``-t``                             walltime            any format of sbatch, kept to the second
``--job-name``, ``-J``                         name                text
=============================================  ==================  =====================================

Both bounds make a job malleable, one alone is refused. The options are those of Chadha (2019, section
4.2, listing 4.2) and John (2024, listings 4.1 and 5.1). Lines are taken as sbatch takes them: only
those that begin with ``#SBATCH``, only above the first command, quotes and trailing comments as in a
shell, a later option in place of an earlier one. Options have to be written in full.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from dask_hpc_policies.jobs import constraints
from dask_hpc_policies.jobs.jobspec import InvalidJob, check_nodes
from dask_hpc_policies.params import parse_power, suggestion

#: What sbatch calls a script that it does not have the name of.
_NAMELESS = "sbatch"
# sbatch itself looks at these seven characters only; `#SBATCH_OFF` is there to switch a line off
_DIRECTIVE = re.compile(r"#SBATCH(?=[\s-]|$)")
_COUNT = r"([0-9]{1,10})([km]?)"
_NODES = re.compile(rf"{_COUNT}(?:-{_COUNT})?", re.IGNORECASE)
_MULTIPLES = {"": 1, "k": 1024, "m": 1024**2}
_DIGITS = re.compile(r"[0-9]{1,10}")
_UNLIMITED = ("UNLIMITED", "INFINITE", "-1")
#: Words that divide the options of a heterogeneous job.
_DIVIDERS = ("hetjob", "packjob")
_CONSTRAINTS = {name: name for name in constraints.CONSTRAINTS} | {"ncube": "cube", "none": "any"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Option:
    #: Key of the result.
    field: str
    #: The value for a text, None for "not given"; ValueError when it is none.
    read: Callable[[str], Any]
    #: What it takes, in words.
    allowed: str
    #: Value of the option alone; None when it needs one.
    alone: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    line: int
    option: str
    text: str
    value: Any

    def __str__(self) -> str:
        return _place(self.line, self.option, self.text)


def job_fields(script: str, name: str = "") -> dict[str, Any]:
    """The fields of the job that the text of a batch script declares.

    Options that are not in the table of this module are Slurm's own and have no effect; so has the
    number of steps in the script.

    Parameters
    ----------
    script
        The whole text of the script.
    name
        Name of the job when the script gives none; as with sbatch that is the name of its file, and
        ``"sbatch"`` when there is no file.

    Returns
    -------
    dict
        What `jobspec.job_spec_from_mapping` takes: `name`, and of `nodes`, `min_nodes`, `max_nodes`
        (nodes), `constraint`, `walltime` (seconds), `min_power_w`, `max_power_w` (watts per node) and
        `rigid` those that the script gives.

    Raises
    ------
    InvalidJob
        Naming line, option, value and what is allowed: for a value that the option does not take, a
        quote that is not closed, one bound without the other, a range of nodes for a malleable job,
        a script of several jobs (``#SBATCH hetjob``), and what looks like a misspelt option of those
        that sbatch does not have.

    Examples
    --------
    >>> job_fields("#!/bin/sh\\n#SBATCH -J heat -N 4 --time=0:30:00 # half an hour\\nsrun heat\\n")
    {'name': 'heat', 'walltime': 1800, 'nodes': 4}
    """
    said: dict[str, _Said] = {}
    for line, words in _directives(script):
        for option, text in _options(line, words):
            said[_OPTIONS[option].field] = _Said(
                line=line, option=option, text=text, value=_read(line, option, text)
            )
    given = {field: one for field, one in said.items() if one.value is not None}
    _check_bounds(given)
    start = _start(given) if "nodes" in given else {}
    rest = {field: one.value for field, one in given.items() if field != "nodes"}
    # last the start: a range of nodes is never resized, whatever --consider-rigid says
    return {"name": name or _NAMELESS} | rest | start


def _directives(script: str) -> Iterator[tuple[int, list[str]]]:
    """Number and words of every ``#SBATCH`` line above the first command."""
    for number, line in enumerate(script.split("\n"), start=1):
        directive = _DIRECTIVE.match(line)
        if directive:
            try:
                yield number, shlex.split(line[directive.end() :], comments=True)
            except ValueError as error:
                raise InvalidJob(
                    f"line {number}: {line.strip()!r} cannot be read ({error}); "
                    "close every quote, and put a backslash only in front of a character"
                ) from None
        elif line.strip() and not line.lstrip().startswith("#"):
            return


def _options(line: int, words: list[str]) -> Iterator[tuple[str, str]]:
    """Spelling and text of the options of this module among the words of one line."""
    rest = list(reversed(words))
    while rest:
        word = rest.pop()
        if word.startswith("--"):
            option, attached, text = word.partition("=")
        else:
            option, attached, text = word[:2], word[2:], word[2:]
        if word.lower() in _DIVIDERS:
            raise InvalidJob(
                f"line {line}: {word} divides the script into several jobs of one allocation; "
                "it must be one job a script (take the line out, and the options of the other parts)"
            )
        if option not in _OPTIONS:
            _check_spelling(line, option)
            continue
        if not attached:
            alone = _OPTIONS[option].alone
            if alone is not None and (not rest or rest[-1].startswith("-")):
                text = alone
            elif rest:
                text = rest.pop()
            else:
                raise InvalidJob(f"line {line}: {option} has no value; it must be {_OPTIONS[option].allowed}")
        yield option, text


def _check_spelling(line: int, option: str) -> None:
    """Refuse what looks like an option that Slurm does not have and this module does."""
    near = difflib.get_close_matches(option, _OURS, n=1, cutoff=0.85)
    near += [ours for ours in _OURS if ours.startswith(option) and len(option) > len("--min")]
    if near:
        raise InvalidJob(
            f"line {line}: {option} is no option of sbatch, and would have no effect; did you mean "
            f"{near[0]}? (options have to be written in full)"
        )


def _read(line: int, option: str, text: str) -> Any:
    try:
        return _OPTIONS[option].read(text)
    except ValueError:
        near = suggestion(text, _CONSTRAINTS) if option == "--node-constraints" else ""
        raise InvalidJob(f"{_place(line, option, text)} must be {_OPTIONS[option].allowed}{near}") from None


def _place(line: int, option: str, text: str) -> str:
    # -N='4' would be read as the text '=4'
    return f"line {line}: {option}{'=' if option.startswith('--') else ' '}{text!r}"


def _check_bounds(given: dict[str, _Said]) -> None:
    for here, missing in (("min_nodes", "max"), ("max_nodes", "min")):
        if here in given and f"{missing}_nodes" not in given:
            raise InvalidJob(
                f"{given[here]} is one bound of two: a malleable job needs --{missing}-nodes-invasic as "
                f"well, 1 or more (0 counts as not given); add it, or take {given[here].option} out"
            )


def _start(given: dict[str, _Said]) -> dict[str, Any]:
    low, high = given["nodes"].value
    if low == high:
        return {"nodes": low}
    if "min_nodes" in given:
        raise InvalidJob(
            f"{given['nodes']} must be one number of nodes, the size at start, because "
            f"{given['min_nodes'].option} (line {given['min_nodes'].line}) and "
            f"{given['max_nodes'].option} (line {given['max_nodes'].line}) give the bounds"
        )
    # Slurm picks a size when the job starts and keeps it
    return {"min_nodes": low, "max_nodes": high, "rigid": True}


def _read_nodes(text: str) -> tuple[int, int]:
    match = _NODES.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    low = int(match[1]) * _MULTIPLES[match[2].lower()]
    high = int(match[3]) * _MULTIPLES[match[4].lower()] if match[3] else low
    for count in (low, high):
        check_nodes("", "nodes", count)
    if low > high:
        raise ValueError(text)
    return low, high


def _read_bound(text: str) -> int | None:
    if not _DIGITS.fullmatch(text.strip()):
        raise ValueError(text)
    count = int(text)
    if count:
        check_nodes("", "nodes", count)
    return count or None


def _read_walltime_s(text: str) -> int | None:
    if text.upper() in _UNLIMITED:
        return None
    days, dash, clock = text.rpartition("-")
    parts = clock.split(":")
    if len(parts) > 3 or not all(_DIGITS.fullmatch(part) for part in [days] * bool(dash) + parts):
        raise ValueError(text)
    # hours come first after days and in a full clock, minutes otherwise
    units_s = (3600, 60, 1) if dash or len(parts) == 3 else (60, 1)
    seconds = sum(int(part) * unit for part, unit in zip(parts, units_s, strict=False))
    return int(days or 0) * 86400 + seconds or None


def _read_constraint(text: str) -> str:
    if text not in _CONSTRAINTS:
        raise ValueError(text)
    return _CONSTRAINTS[text]


def _read_switch(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError(text)
    return text == "1"


def _read_name(text: str) -> str:
    if not text.strip():
        raise ValueError(text)
    return text


def _bound(field: str) -> _Option:
    return _Option(
        field=field, read=_read_bound, allowed="a whole number from 1 to 1000000000 nodes, or 0 for not given"
    )


def _power(field: str) -> _Option:
    return _Option(
        field=field, read=parse_power, allowed="watts per node, a number of at least 0 such as 200 or 1.5kW"
    )


_NODES_OPTION = _Option(
    field="nodes",
    read=_read_nodes,
    allowed="a whole number from 1 to 1000000000 nodes (k: times 1024, m: times 1048576), "
    "or a range such as 2-4",
)
_TIME_OPTION = _Option(
    field="walltime",
    read=_read_walltime_s,
    allowed="minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes or "
    "days-hours:minutes:seconds, or UNLIMITED or 0 for none",
)
_NAME_OPTION = _Option(field="name", read=_read_name, allowed="a text that is not empty")
_OPTIONS: dict[str, _Option] = {
    "--nodes": _NODES_OPTION,
    "-N": _NODES_OPTION,
    "--min-nodes-invasic": _bound("min_nodes"),
    "--min-nodes-invasive": _bound("min_nodes"),
    "--max-nodes-invasic": _bound("max_nodes"),
    "--max-nodes-invasive": _bound("max_nodes"),
    "--node-constraints": _Option(
        field="constraint", read=_read_constraint, allowed="one of " + ", ".join(_CONSTRAINTS)
    ),
    "--min-power": _power("min_power_w"),
    "--max-power": _power("max_power_w"),
    "--consider-rigid": _Option(
        field="rigid", read=_read_switch, allowed="1 (never resized), 0, or nothing for 1", alone="1"
    ),
    "--time": _TIME_OPTION,
    "-t": _TIME_OPTION,
    "--job-name": _NAME_OPTION,
    "-J": _NAME_OPTION,
}
#: Those that only malleable extensions of Slurm know.
_OURS = [name for name in _OPTIONS if name not in ("--nodes", "--time", "--job-name") and name[:2] == "--"]
