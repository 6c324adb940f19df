"""``python -m fedgs`` is the ``fedgs`` command."""

import gc
import os
import sys


def main() -> None:
    """Run the command line; Ctrl-C is one line and exit code 130, also while the command itself is loaded."""
    try:
        from fedgs.cli import main as command

        command()
    except KeyboardInterrupt:
        sys.stderr.write("fedgs: interrupted\n")
        _end()
    except SystemExit as ended:
        if ended.code == 130:
            _end()
        raise
    finally:
        gc.freeze()  # or Python would look through all of torch's objects once more as it ends: 0.3 s


def _end() -> None:
    """End at once: Python would report the signal instead of the code if it came during an import."""
    sys.stdout.flush()
    os._exit(130)


if __name__ == "__main__":
    main()
