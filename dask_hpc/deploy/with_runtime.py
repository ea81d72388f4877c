"""The scheduler side of a cluster, which is in its process: whether it is there, what it answers."""

from __future__ import annotations

from typing import Any, cast

import dask
from distributed.deploy.spec import SpecCluster

from dask_hpc.deploy.dashboard_link import link_template
from dask_hpc.errors import DaskHPCError, InstallError
from dask_hpc.scheduler.install import attach, service_of
from dask_hpc.scheduler.internals import selfcheck
from dask_hpc.scheduler.leaving.releases import Releases
from dask_hpc.scheduler.rpc.service import of
from dask_hpc.show import cluster_html, never_raises

#: Ended jobs that a cluster shows: it is shown over and over.
_ENDED_SHOWN = 5


class WithRuntime(SpecCluster):
    """A cluster with the runtime on its scheduler."""

    _releases: Releases | None = None

    @property
    def dashboard_link(self) -> str:
        """Link to the dashboard; behind JupyterHub through its proxy, unless another is configured."""
        template = link_template(dask.config.get("distributed.dashboard.link"))
        with dask.config.set({"distributed.dashboard.link": template}):
            return super().dashboard_link

    @never_raises
    def _repr_html_(self, cluster_status: str | None = None) -> str | None:
        # the widget of the stock class shows it too, over and over, in the loop
        return super()._repr_html_(cluster_status) + (cluster_html(self, self._summary) or "")

    def _summary(self) -> dict[str, Any]:
        service = of(cast(Any, self.scheduler))
        return {"status": service.status.summary(), "jobs": service.jobs.rows(ended=_ENDED_SHOWN)}

    @property
    def refused(self) -> dict[str, str]:
        """Why nodes that should have gone have stayed, by node."""
        return {} if self._releases is None else dict(self._releases.refused)

    @property
    def has_runtime(self) -> bool:
        """Whether the scheduler side is there: not when somebody has uninstalled it, or does so now."""
        service = service_of(cast(Any, self.scheduler))
        return service is not None and not service.engine.leaving

    def _install(self) -> Releases:
        """Have the scheduler side there, also when somebody has uninstalled it.

        For whoever asks for something now. What goes on of itself does not bring it back.
        """
        if self._releases is None:
            selfcheck.require_cluster(self)
        service = attach(cast(Any, self.scheduler))
        self._releases = service.releases
        self._releases.wrap()
        return self._releases

    async def ask(self, method: str, **arguments: Any) -> Any:
        """What the scheduler side answers.

        Raises
        ------
        InstallError
            When somebody has uninstalled it.
        DaskHPCError
            For what it refuses.
        """
        answer = None
        if self.has_runtime:
            # by whomever it was installed last
            self._install()
            answer = await cast(Any, self.scheduler_comm).hpc(method=method, arguments=arguments)
        if answer is None:
            # it may have gone while the question was on its way
            raise InstallError("the runtime was uninstalled; dask_hpc.install(client) brings it back")
        if "error" in answer:
            raise DaskHPCError(answer["error"][1])
        return answer["result"]
