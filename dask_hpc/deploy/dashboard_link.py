"""Links to the dashboard that work where the notebook runs."""

from __future__ import annotations

import os
from collections.abc import Mapping

#: What Dask's configuration says when nobody has changed it.
STOCK_LINK = "{scheme}://{host}:{port}/status"
#: Through the proxy of the notebook's server (jupyter-server-proxy).
HUB_LINK = "{JUPYTERHUB_SERVICE_PREFIX}proxy/{port}/status"


def link_template(template: str, environment: Mapping[str, str] = os.environ) -> str:
    """The template that links are made of: behind JupyterHub, Dask's own leads nowhere.

    Parameters
    ----------
    template
        ``distributed.dashboard.link`` of the configuration; it is taken as it is when a user has set it.
    environment
        Where JupyterHub says where the server is.
    """
    behind_hub = "JUPYTERHUB_SERVICE_PREFIX" in environment
    return HUB_LINK if behind_hub and template == STOCK_LINK else template
