"""Checks of a running cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dask_hpc.doctor.checks import Finding
from dask_hpc.errors import InstallError

if TYPE_CHECKING:
    from distributed import Client

#: Packages of which client, scheduler and workers must have one version.
PACKAGES = ("dask-hpc", "distributed", "python")


def check_versions(client: Client) -> list[Finding]:
    """Does the scheduler answer, and have all the same packages?"""
    versions: Any = client.get_versions(packages=["dask-hpc"])
    return [
        Finding("scheduler", "ok", f"answers, {len(versions['workers'])} workers"),
        *(
            compare(package, versions["client"], versions["scheduler"], versions["workers"])
            for package in PACKAGES
        ),
    ]


def check_runtime(client: Client) -> list[Finding]:
    """Is the runtime switched on there, and does the dashboard show it?"""
    import dask_hpc

    try:
        status = dask_hpc.runtime(client).status()
    except InstallError as error:
        remedy = "one version of dask-hpc here and there, then dask_hpc.install(client)"
        return [Finding("runtime", "warn", f"cannot be reached from here: {error}", remedy)]
    found = [Finding("runtime", "ok", f"switched on, policy {status['policy']['policy']}"), panels(status)]
    for part, why in status["section_failures"].items():
        found.append(Finding(f"part {part}", "warn", f"cannot tell its state: {why}"))
    return found


def panels(status: dict[str, Any]) -> Finding:
    """Does the scheduler's dashboard show jobs and decisions?

    Parameters
    ----------
    status
        What `Runtime.status` gives.
    """
    if problem := status["panels_problem"]:
        remedy = "install the tested releases of distributed and bokeh; the runtime works without the panels"
        return Finding("dashboard panels", "warn", f"none: {problem}", remedy)
    if not status["panels"]:
        return Finding("dashboard panels", "ok", "none: the scheduler has no dashboard, or no bokeh")
    return Finding("dashboard panels", "ok", ", ".join(status["panels"]))


def compare(
    package: str, client: dict[str, Any], scheduler: dict[str, Any], workers: dict[str, dict[str, Any]]
) -> Finding:
    """Do client, scheduler and all workers have one version of `package`?

    Parameters
    ----------
    client, scheduler, workers
        As `distributed.Client.get_versions` gives them; a version is None when the package is absent.
    """
    here = client["packages"].get(package)
    elsewhere = {"the scheduler": scheduler, **{f"worker {address}": one for address, one in workers.items()}}
    found = {where: one["packages"].get(package) for where, one in elsewhere.items()}
    others = {where: version for where, version in found.items() if version != here}
    name = f"{package} there"
    if others:
        where, version = next(iter(others.items()))
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        text = f"{version or 'absent'} on {where}{more}, {here or 'absent'} here"
        return Finding(
            name, "fail", text, f"install one version of {package} for client, scheduler and workers"
        )
    if here is None:
        return Finding(
            name, "warn", "runs from a source tree: versions cannot be compared", "pip install dask-hpc"
        )
    return Finding(name, "ok", f"{here} everywhere")
