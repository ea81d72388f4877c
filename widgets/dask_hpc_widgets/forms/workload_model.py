"""What is simulated on what, as typed: a builtin workload with its options or a file, the machine, the seed.

Rules of the file: pure state, but for a look whether the file is there. No widget, and nothing is read. What
is typed stays text until it is valid.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dask_hpc.sim.generators.generator import Generator
from dask_hpc.sim.workloads.sources import BUILTIN, READERS, reader
from dask_hpc_policies.params import (
    Choice,
    Float,
    Int,
    Parameter,
    ParameterError,
    Parameters,
    shown,
    suggestion,
)

#: The generators that can be chosen, by name.
GENERATORS: Mapping[str, Generator] = {
    name: made for name, made in BUILTIN.items() if isinstance(made, Generator)
}
#: In place of the name of a generator: the workload is in a file.
FILE = ""
_BUILTIN = "builtin:"
_BEGIN_WITH = "five-jobs"

#: Settings of every workload, as the command line has them.
SETTINGS = Parameters(
    (
        Int(
            "nodes", None, lo=1, hi=1_000_000, unit="nodes", none_ok=True, label="Machine",
            help="none: as many as the workload was made for",
        ),
        Choice(
            "wide", "refuse", ("refuse", "drop", "clip"), label="Jobs wider than the machine",
            help="refuse to run, leave them out, or cut them to the machine",
        ),
        Float(
            "malleable_share", 0.0, lo=0.0, hi=1.0, label="Malleable share",
            help="this share of the rigid jobs is declared malleable",
        ),
        Choice(
            "adaptation", "none", ("none", "published"), label="Cost of a resize",
            help="how long a resize holds a job up: not at all, or times that were published (Chadha 2019)",
        ),
        Int("seed", 0, lo=0, hi=2**31 - 1, label="Seed", help="of everything random"),
    )
)  # fmt: skip


class WorkloadModel:
    """What a person has chosen.

    Parameters
    ----------
    source
        ``builtin:NAME``, or the path of a file; it need not exist yet.

    Raises
    ------
    TypeError, ValueError
        For what is no text and no path; when there is no such builtin workload.
    """

    def __init__(self, source: str | Path = _BUILTIN + _BEGIN_WITH) -> None:
        if not isinstance(source, (str, Path)):
            raise TypeError(f"workload is {shown(source)}; needed: {_BUILTIN}NAME, or the path of a file")
        text = str(source)
        #: What is typed for the file, also while a builtin workload is chosen.
        self.path = "" if text.startswith(_BUILTIN) else text
        self._texts = SETTINGS.format({one.name: one.default for one in SETTINGS})
        self.choose(text.removeprefix(_BUILTIN) if text.startswith(_BUILTIN) else FILE)

    def choose(self, name: str) -> None:
        """Take another builtin workload, or `FILE`; its options get their defaults.

        Raises
        ------
        ValueError
            When there is no such builtin workload.
        """
        if name != FILE and name not in GENERATORS:
            known = ", ".join(GENERATORS)
            raise ValueError(
                f"unknown workload {name!r}; builtin ones are {known}{suggestion(name, GENERATORS)}"
            )
        self.name = name
        #: Options of the builtin workload, and what is typed for each.
        self.options = Parameters(() if name == FILE else GENERATORS[name].options)
        self.option_texts = self.options.format({one.name: one.default for one in self.options})

    @property
    def settings(self) -> tuple[Parameter, ...]:
        """The settings that mean something here: an option for the malleable share does without another."""
        return tuple(
            one for one in SETTINGS if one.name != "malleable_share" or "malleable" not in self.options
        )

    @property
    def setting_texts(self) -> dict[str, str]:
        """What is typed for each setting."""
        return {one.name: self._texts[one.name] for one in self.settings}

    def type_setting(self, name: str, text: str) -> None:
        """Take what is typed for a setting."""
        self._texts[name] = text

    @property
    def source(self) -> str:
        """What `dask_hpc.sim.load` takes; a path begins where the kernel runs."""
        if self.name != FILE:
            return _BUILTIN + self.name
        return str(Path(self.path.strip()).expanduser())

    @property
    def path_error(self) -> str:
        """What is wrong with the path, as far as its name tells; empty when nothing is or none is needed."""
        if self.name != FILE:
            return ""
        text = self.path.strip()
        if not text:
            return (
                f"no file is named; give the path of one that ends in {', '.join(READERS)} (.gz may follow)"
            )
        try:
            reader(text)
            path = Path(self.source)
            if not path.is_file():
                return (
                    f"{text}: {'not a file' if path.exists() else f'no such file (looked in {Path.cwd()})'}"
                )
        except (ValueError, RuntimeError, OSError) as error:
            return str(error)
        return ""

    @property
    def option_errors(self) -> dict[str, str]:
        """What is wrong with options, by name."""
        return _errors(self.options, self.option_texts)

    @property
    def setting_errors(self) -> dict[str, str]:
        """What is wrong with settings, by name."""
        return _errors(self.settings, self.setting_texts)

    @property
    def wrong(self) -> list[str]:
        """Labels of everything that is wrong."""
        path = ["Workload file"] if self.path_error else []
        options = [one.label or one.name for one in self.options if one.name in self.option_errors]
        return [*path, *options, *(one.label for one in self.settings if one.name in self.setting_errors)]

    def arguments(self) -> dict[str, Any]:
        """What `dask_hpc.sim.workloads.prepare.prepare` takes, by name.

        Raises
        ------
        ParameterError
            When a field is not valid.
        """
        if self.path_error:
            raise ParameterError(self.path_error)
        found = {one.name: one.validate(self._texts[one.name]) for one in self.settings}
        # none at all is not the same as none of them: that would be a note of the workload
        found["malleable_share"] = found.get("malleable_share") or None
        options = {one.name: one.validate(self.option_texts[one.name]) for one in self.options}
        return {"source": self.source, "options": options, **found}


def _errors(declared: tuple[Parameter, ...] | Parameters, texts: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for one in declared:
        try:
            one.validate(texts[one.name])
        except ParameterError as error:
            found[one.name] = str(error)
    return found
