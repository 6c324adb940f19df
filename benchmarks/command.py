"""What the commands of this folder share: whoever gives a wrong argument is told so in one line."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from fedgs.errors import FedgsError


def at_least(least: int) -> Callable[[str], int]:
    """Return the type of an argument that is a whole number and not too small."""

    def whole(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if number < least:
            raise argparse.ArgumentTypeError(f"{number} is too small; give at least {least}")
        return number

    return whole


def in_one_line(main: Callable[[], None]) -> None:
    """Run a command; what it refuses, or a file it cannot read or write, ends it with one line."""
    try:
        main()
    except FedgsError as error:
        reason = str(error)
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}" if error.filename is not None else str(error)
    else:
        return
    print(f"{Path(sys.argv[0]).stem}: error: {reason}", file=sys.stderr)
    sys.exit(2)
