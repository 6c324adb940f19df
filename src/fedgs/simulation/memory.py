"""How much memory this process holds."""

import os
from pathlib import Path


def resident_megabytes() -> float:
    """Return the resident memory in MB now; its highest mark so far where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        import resource
        import sys

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return round(peak / (1e6 if sys.platform == "darwin" else 1e3), 1)
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)
