"""When the trace is told what the draw has come to: when it has changed, and now and then.

Rules of the file: what is told is the account, sums since it was opened, so that nothing is lost between two
records; a cluster whose draw does not change writes one a minute.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dask_hpc.scheduler.power.account import Account
from dask_hpc_policies.power.bill import bill

#: A change by this share, or this time, is worth a record; more often than once in the other time nothing is.
_SHARE, _EVERY_S, _LEAST_S = 0.05, 60.0, 1.0
#: Who drew it is told so often, for a scheduler that is killed.
_BILL_S = 600.0


class Noted:
    """What was told last."""

    def __init__(self) -> None:
        self._at_s: float | None = None
        self._billed_s = 0.0
        self._watts = 0.0

    def due(self, account: Account, tariff: Mapping[str, Any], final: bool = False) -> dict[str, Any] | None:
        """The record that is due; None: none is. The `final` one of an account always is.

        Parameters
        ----------
        tariff
            Further arguments of `bill`.
        """
        last = account.last
        if last is None or last.label == "unavailable":
            return None
        if self._at_s is not None and not final:
            since_s = last.t_s - self._at_s
            changed = abs(last.total_w - self._watts) > _SHARE * max(1.0, self._watts)
            if since_s < (_LEAST_S if changed else _EVERY_S):
                return None
        self._at_s, self._watts = last.t_s, last.total_w
        row: dict[str, Any] = {
            "t_s": last.t_s,
            "draw_w": last.total_w,
            "label": last.label,
            "known_s": account.known_s,
            "energy_j": account.uses.total.energy_j,
            "outside_s": account.outside_s,
            "outside_ws": account.outside_ws,
        }
        if not final and account.known_s - self._billed_s < _BILL_S:
            return row
        self._billed_s = account.known_s
        # nodes are many: once, at the end
        return {**row, "bill": bill(account.uses, **tariff, by_node=final)}
