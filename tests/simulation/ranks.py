"""The ranks of a run as torchrun would start them, from one process that has imported torch once."""

import os
import socket
import sys

from fedgs.cli import main as command
from fedgs.simulation import launch  # noqa: F401  with all that the ranks import


def main() -> None:
    """Fork so many ranks, give each the rest of the arguments, and end with the worst of their exit codes."""
    ranks, arguments = int(sys.argv[1]), sys.argv[2:]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    children = []
    for rank in range(ranks):
        child = os.fork()
        if not child:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            sys.argv = ["fedgs", *arguments]
            command()
        children.append(child)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))


if __name__ == "__main__":
    main()
