"""Every error a user can cause, as a type.

A message says what is wrong, where, and what to do about it, in one line. The command line prints it
as ``fedgs: error: …`` and exits with code 2; library users catch ``FedgsError`` or one of its children.
Those that report a bad argument are ``ValueError`` too, so that plain Python habits work.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class FedgsError(Exception):
    """The parent of all errors raised on purpose by this package."""

    exit_code = 2
    """Of a command that it ends."""


class ConfigError(FedgsError, ValueError):
    """A setting is unknown, of the wrong type, or impossible together with another one."""


class ProblemError(FedgsError, ValueError):
    """A selection problem is malformed: wrong shapes, negative counts, no such pick."""


class SolverError(FedgsError, ValueError):
    """A solver does not exist, does not take an option, or cannot take a problem of this size."""


class DataError(FedgsError, ValueError):
    """A data set or federation is inconsistent, or cannot be partitioned as asked."""


class InputFileError(FedgsError, ValueError):
    """A file is missing, unreadable, or does not hold what it should."""


class OutputError(FedgsError, OSError):
    """A folder or file cannot be written."""


class MissingDependencyError(FedgsError, ImportError):
    """An optional library is needed for what was asked and is not installed."""


class DownloadError(FedgsError, OSError):
    """A file cannot be fetched from the network, or what came is not what was asked for."""


class AlgorithmError(FedgsError, ValueError):
    """A learning rule does not exist, does not take an option, or cannot take what was uploaded to it."""


class DeviceError(FedgsError, RuntimeError):
    """A GPU was asked for and is not there, or its memory does not suffice."""


class TrainingError(FedgsError, ArithmeticError):
    """Training has diverged: a loss or a weight is not a finite number."""


class CollapseError(TrainingError):
    """A deployment has ruined its model several times in a row: a device or a station is at fault."""

    exit_code = 3


class CheckpointError(FedgsError, ValueError):
    """A checkpoint is torn, or belongs to another run."""


class WorkerError(FedgsError, RuntimeError):
    """A process of a distributed run has been lost."""


class WireError(FedgsError, ValueError):
    """A message of the network is not what the protocol allows; its sender loses its turn."""


class IdentityError(FedgsError, ValueError):
    """A certificate or key is missing, broken, expired, or belongs to another party."""


class PeerError(FedgsError, OSError):
    """An address cannot be listened on, or there is no answer."""


class NetworkError(FedgsError, ValueError):
    """A link, a park or a convergence bound has impossible values: no bandwidth, an empty round, an invalid bound."""


def suggestion(name: object, known: Iterable[str], otherwise: str = "there are") -> str:
    """Return the name a wrong one was meant to be; where none is close, ``otherwise`` and all there are."""
    names, wrong = list(known), str(name)
    others = [one for one in names if one != wrong]
    # As written first: two names may differ in nothing but capitals.
    near = get_close_matches(wrong, others, 1, 0.75) or get_close_matches(wrong.lower(), others, 1, 0.75)
    return f"did you mean {near[0]!r}?" if near else f"{otherwise} {', '.join(names) or 'none at all'}"
