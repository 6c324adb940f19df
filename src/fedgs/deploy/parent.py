"""Processes that end with the one that started them, however that one ends (Linux).

``python -m fedgs.deploy.parent COMMAND …`` does it for a command that knows nothing of it.
"""

import ctypes
import os
import signal
import sys

VARIABLE = "FEDGS_PARENT"
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


def end_with_parent() -> None:
    """Ask the system for SIGTERM when the process named in the environment has ended."""
    parent = os.environ.get(VARIABLE)
    if parent is None or sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(parent):  # it has ended already
        sys.exit(1)


if __name__ == "__main__":
    end_with_parent()
    os.execvp(sys.argv[1], sys.argv[1:])  # the request outlives this
