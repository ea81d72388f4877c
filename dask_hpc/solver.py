"""Loads the solver of integer programs, without what it says."""

from __future__ import annotations

import functools
import os

from dask_hpc_policies.power import program_lp


@functools.cache
def load_solver() -> None:
    """Load the solver, once a process, before time is taken.

    HiGHS 1.16 greets on standard output, below Python, when it is made for the first time, whatever its
    options say; who asked for JSON must not get that.
    """
    import sys

    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        program_lp.load()
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
