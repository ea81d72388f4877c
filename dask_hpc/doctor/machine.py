"""Checks of this machine.

Rules of the file: connects to no cluster of Dask and never raises. What a check looks at comes in as an
argument with the real thing as default, so that every verdict can be produced on purpose.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import dask.config
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from dask_hpc import capabilities
from dask_hpc.checkpoint.disk import MORE, local_folder, usable_folder
from dask_hpc.config import problems, settings
from dask_hpc.config.policy import configured_policy
from dask_hpc.deploy.dashboard_link import HUB_LINK, link_template
from dask_hpc.doctor.checks import Finding
from dask_hpc.errors import SlurmError
from dask_hpc.slurm.commands import SINFO, command_environment
from dask_hpc.slurm.text import parse_sinfo

#: Releases that were tested, used when the package's own metadata is not installed.
TESTED_DASK = SpecifierSet(">=2026.7.1,<2026.9")
#: Oldest Python that works.
OLDEST_PYTHON = (3, 11)
#: Results held in shared memory need room; below this many bytes containers usually have the 64 MiB default.
SMALL_SHM_BYTES = 256 * 2**20
#: How long one of Slurm's commands may take; they give up by themselves after 10 s or a minute.
SLURM_TIMEOUT_S = 15.0

_SLURM_COMMANDS = ("sbatch", "squeue", "scancel", "scontrol", "sinfo", "sacct")


def check_python(version: tuple[int, int, int] = sys.version_info[:3]) -> Finding:
    """Is Python new enough?"""
    text = f"Python {'.'.join(map(str, version))}"
    if version[:2] >= OLDEST_PYTHON:
        return Finding("python", "ok", text)
    oldest = ".".join(map(str, OLDEST_PYTHON))
    return Finding(
        "python", "fail", f"{text}; needs {oldest} or newer", f"make an environment with Python {oldest}"
    )


def tested_releases() -> SpecifierSet:
    """Releases of distributed that this version was tested with."""
    try:
        requirements = importlib.metadata.requires("dask-hpc") or []
    except importlib.metadata.PackageNotFoundError:
        return TESTED_DASK
    parsed = (Requirement(text) for text in requirements)
    return next(
        (one.specifier for one in parsed if one.name == "distributed" and not one.marker), TESTED_DASK
    )


def _text(releases: SpecifierSet) -> str:
    """Lower bound first, as people write it."""
    return ",".join(sorted(map(str, releases), reverse=True))


def check_dask(dask_version: str | None = None, distributed_version: str | None = None) -> Finding:
    """Are dask and distributed of one release that was tested?"""
    dask_version = dask_version or importlib.metadata.version("dask")
    distributed_version = distributed_version or importlib.metadata.version("distributed")
    tested = tested_releases()
    allowed = _text(tested)
    text = f"dask {dask_version}, distributed {distributed_version}"
    remedy = f"pip install 'dask{allowed}' 'distributed{allowed}'"
    if Version(dask_version) != Version(distributed_version):
        return Finding("dask", "fail", f"{text}: they must be of one release", remedy)
    if Version(distributed_version) not in tested:
        return Finding("dask", "fail", f"{text}: tested with {allowed}", remedy)
    return Finding("dask", "ok", text)


def check_internals(check: Callable[[], list[str]] | None = None) -> Finding:
    """Are the internals of Dask's scheduler that we wrap as we expect them?"""
    remedy = (
        f"install a tested release of distributed ({_text(tested_releases())}); the runtime refuses this one"
    )
    if check is None:
        try:
            from dask_hpc.scheduler.internals import selfcheck

            check = selfcheck.check
        except ImportError as error:
            # a name that we import from Dask is gone: the worst a release can do
            return Finding("scheduler internals", "fail", f"cannot be loaded: {error}", remedy)
    problems = check()
    if not problems:
        return Finding("scheduler internals", "ok", "as expected")
    return Finding("scheduler internals", "fail", "; ".join(problems), remedy)


def check_module(module: str, name: str, use: str, extra: str) -> Finding:
    """Is an optional package there?"""
    if importlib.util.find_spec(module) is None:
        return Finding(name, "warn", f"{module} is not installed: no {use}", f"pip install {extra}")
    return Finding(name, "ok", f"{module} {importlib.metadata.version(module)}")


def check_settings(environment: Mapping[str, str] = os.environ) -> list[Finding]:
    """Are all settings known, and their values allowed, those of the policy included?"""
    wrong = problems()
    if not wrong:
        try:
            configured_policy(settings())
        except ValueError as error:
            wrong = {"policy": str(error)}
    if not wrong:
        return [Finding("settings", "ok", "all known and allowed")]
    found = []
    for key, why in wrong.items():
        variable = "_".join(("DASK_HPC", *(f"_{part}" for part in key.split(".") if part)))
        variable = variable.replace("-", "_").upper()
        files = f"the files of {dask.config.PATH}"
        place = variable if variable in environment else f"{files} or dask.config.set"
        name = f"setting {key}" if key else "settings"
        found.append(Finding(name, "fail", why, f"correct or remove it in {place}"))
    return found


def check_dashboard() -> Finding:
    """Can there be a dashboard?"""
    return check_module("bokeh", "dashboard", "dashboard", "'bokeh>=3.1'")


def check_plots() -> Finding:
    """Can there be plots?"""
    return check_module("matplotlib", "plots", "plots", "'dask-hpc[plot]'")


def check_dashboard_link(environment: Mapping[str, str] = os.environ, template: str | None = None) -> Finding:
    """Behind JupyterHub, does the dashboard's link go through the proxy?"""
    if template is None:
        import distributed  # noqa: F401  (its defaults hold the template)

        template = str(dask.config.get("distributed.dashboard.link"))
    if "JUPYTERHUB_SERVICE_PREFIX" not in environment:
        return Finding("dashboard link", "ok", f"{template} (not behind JupyterHub)")
    if "JUPYTERHUB_" in template or "proxy/" in template:
        return Finding("dashboard link", "ok", template)
    proxy = "pip install jupyter-server-proxy in the server's environment"
    if (ours := link_template(template, environment)) != template:
        text = f"{ours} for dask_hpc's clusters; for others {template}, which is dead behind JupyterHub"
    else:
        text = f"{template} does not lead through JupyterHub's proxy: the link in notebooks is dead"
    remedy = f"export DASK_DISTRIBUTED__DASHBOARD__LINK='{HUB_LINK}' and {proxy}"
    return Finding("dashboard link", "warn", text, remedy)


def check_sensors(root: Path = Path("/"), seconds: float = 0.2) -> Finding:
    """Is it known what this machine draws, and by what?"""
    if problems():
        return Finding("power sensors", "ok", "not looked at before the settings are right")
    from dask_hpc.worker.node import node_settings
    from dask_hpc.worker.power.look import look

    wanted = node_settings()
    found = look(wanted, seconds, root).figure
    if found.watts is None:
        return Finding("power sensors", "warn", f"power is not measured here: {found.reason}", found.remedy)
    text = f"{found.watts:.0f} W, {found.label} by {found.source}"
    if found.source == "replay":
        return Finding("power sensors", "warn", f"{text}: of a file, not of this machine", "hpc.power.source")
    if found.reason:
        return Finding("power sensors", "warn", f"{text}; {found.reason}", "dask hpc power sensors says more")
    if found.label == "modelled":
        return Finding("power sensors", "warn", f"{text} of load; nothing measures it", "hpc.power.source")
    return Finding("power sensors", "ok", text)


def check_slurm(path: str | None = None, environment: Mapping[str, str] | None = None) -> Finding:
    """Which Slurm commands are there, of what version, and does Slurm answer with its partitions?"""
    settings = command_environment(environment)
    path = path or settings.get("PATH")
    module = "load the site's Slurm module"
    found = {name: where for name in _SLURM_COMMANDS if (where := shutil.which(name, path=path))}
    if not found:
        return Finding("slurm", "ok", "not found: only LocalCluster")
    missing = [name for name in _SLURM_COMMANDS if name not in found]
    asked = next(iter(found.values()))
    try:
        version = _output([asked, "--version"], settings)
    except (OSError, subprocess.SubprocessError) as error:
        text = f"{asked} --version failed: {_said(error)}"
        return Finding("slurm", "warn", text, f"{module}, and check SLURM_CONF")
    if missing:
        return Finding("slurm", "warn", f"{version}; not on PATH: {', '.join(missing)}", module)
    remedy = "ask whether Slurm's controller runs, and check SLURM_CONF"
    try:
        groups = parse_sinfo(_output([found["sinfo"], *SINFO[1:]], settings))
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("slurm", "warn", f"{version}; does not answer: {_said(error)}", remedy)
    except SlurmError as error:
        return Finding("slurm", "warn", f"{version}; {error}", remedy)
    nodes = Counter({group.partition: 0 for group in groups})
    for group in groups:
        nodes[group.partition] += group.nodes
    default = {group.partition for group in groups if group.is_default}
    partitions = (
        f"{name} ({'default, ' if name in default else ''}{n} {'node' if n == 1 else 'nodes'})"
        for name, n in nodes.items()
    )
    return Finding("slurm", "ok", f"{version}; partitions {', '.join(partitions) or 'none'}")


def _output(command: list[str], environment: Mapping[str, str]) -> str:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=SLURM_TIMEOUT_S,
        check=True,
        env=environment,
    )
    return done.stdout.strip()


def _said(error: OSError | subprocess.SubprocessError) -> str:
    """Why a command failed, in its own words if it had any; the last line is where Slurm gives up."""
    if isinstance(error, subprocess.TimeoutExpired):
        return f"it did not end within {error.timeout:g} s"
    if isinstance(error, subprocess.CalledProcessError):
        lines = error.stderr.strip().splitlines()
        return lines[-1] if lines else f"exit code {error.returncode}"
    return str(error)


def check_shared_memory(folder: Path = Path("/dev/shm"), small_bytes: int = SMALL_SHM_BYTES) -> Finding:
    """Has shared memory room?"""
    if not folder.is_dir():
        return Finding("shared memory", "warn", f"no {folder}", "")
    usage = shutil.disk_usage(folder)
    text = f"{usage.free / 2**20:,.0f} of {usage.total / 2**20:,.0f} MiB free in {folder}"
    if usage.total < small_bytes:
        if (disk := usable_folder()) is None:
            text += f"; versions in memory that do not fit are refused, {local_folder()} is in memory too"
            return Finding("shared memory", "warn", text, MORE)
        free = shutil.disk_usage(disk).free / 2**20
        text += f"; versions in memory that do not fit are on disk, in {disk} ({free:,.0f} MiB free)"
        return Finding("shared memory", "warn", text, MORE)
    return Finding("shared memory", "ok", text)


def check_capabilities() -> Finding:
    """Do the capabilities that other packages have installed load?"""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loaded = capabilities.load()
    installed = {point.name for point in importlib.metadata.entry_points(group=capabilities.GROUP)}
    if missing := sorted(installed - set(loaded)):
        why = "; ".join(str(one.message) for one in caught) or f"cannot be loaded: {', '.join(missing)}"
        return Finding("capabilities", "warn", why, "mend or uninstall the packages that bring them")
    return Finding("capabilities", "ok", ", ".join(loaded) or "none of other packages")
