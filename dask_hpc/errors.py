"""Errors that users may meet.

Rules of the file: every error is a `DaskHPCError` and also the builtin that fits, so that both
``except DaskHPCError`` and ordinary code work. Normal refusals are not errors: they are values with a
`dask_hpc_policies.decision.Reason`.
"""

from __future__ import annotations


class DaskHPCError(Exception):
    """Base of all errors that this package raises on purpose."""


class ConfigError(DaskHPCError, ValueError):
    """A setting has a value that is not allowed; the message names key, value and allowed range."""


class InstallError(DaskHPCError, RuntimeError):
    """The runtime cannot be switched on, or is not there; the message says what to do about it."""


#: What is said to whoever asks for something while the runtime is switched off.
LEAVES = "dask_hpc is being uninstalled; install it again in a moment"


class TraceError(DaskHPCError, ValueError):
    """A trace cannot be read or replayed; the message names file, line and what was expected."""


class CorridorError(DaskHPCError, ValueError):
    """A power corridor that cannot be; the message names the argument, its value and what is allowed."""


class WorkloadError(DaskHPCError, ValueError):
    """A workload cannot be read or simulated; the message names file, line and field, or the option."""


class OptionError(WorkloadError):
    """An option, or the name of something builtin, is none that can be had; the message names it."""


class SimulationError(DaskHPCError, RuntimeError):
    """A simulation came to a state that cannot be: a quantity that must be conserved was not."""


class SlurmError(DaskHPCError, RuntimeError):
    """A command of Slurm is absent, failed, hung, or printed what cannot be read; the message says which."""


class WorkerError(DaskHPCError, RuntimeError):
    """A worker cannot do what the scheduler asked it for; the message is the worker's."""


class JobError(DaskHPCError, RuntimeError):
    """Base of the errors about one job."""


class JobCancelled(JobError):
    """The job that was waited for has been cancelled."""


class JobFailed(JobError):
    """The job that was waited for has failed."""


class UnknownJob(DaskHPCError, KeyError):
    """No job has that id or name."""

    # KeyError shows the repr of its argument, which is unreadable for a sentence
    __str__ = Exception.__str__


class NotProvided(DaskHPCError, RuntimeError):
    """Data that was awaited is not there, and nobody holds its task any more."""


class WindowError(JobError):
    """A cooperative window cannot be used so; the message says what is open and what would be right."""


class CouplingError(DaskHPCError, RuntimeError):
    """A flow has failed, or is closed; the message names it and what has happened."""


class CheckpointError(DaskHPCError, RuntimeError):
    """A checkpoint cannot be written, or is not what was written; the message names file and remedy."""


class CheckpointValueError(DaskHPCError, ValueError):
    """A name, or something in an object, that no checkpoint can have; the message says what is allowed."""


class CheckpointTypeError(DaskHPCError, TypeError):
    """An object of which there can be no checkpoint; the message says which may be."""


class UnknownCheckpoint(CheckpointError, KeyError):
    """No checkpoint has that name, or none of that name that version."""

    # as in UnknownJob
    __str__ = Exception.__str__
