"""The ranks of a run as torchrun would start them, from one process that has imported torch once."""

import os
import socket
import sys
from itertools import groupby

from fedgs.cli import main as command
from fedgs.simulation import launch  # noqa: F401  with all that the ranks import


def main() -> None:
    """Fork two ranks for each of the commands, which ``then`` separates, and print the worst of their exit codes."""
    for arguments in [list(words) for then, words in groupby(sys.argv[1:], "then".__eq__) if not then]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
        children = []
        for rank in range(2):
            child = os.fork()
            if not child:
                os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                sys.argv = ["fedgs", *arguments]
                command()
            children.append(child)
        worst = max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)
        print(f"ended with {worst}", flush=True)


if __name__ == "__main__":
    main()
