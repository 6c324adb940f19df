"""``python -m reproduction``: the paper's figures and tables, and what goes beyond it, by one command each.

python -m reproduction all                            # glyphs at a small size: minutes on two cores
python -m reproduction table2 --femnist FILE          # the paper's size
python -m reproduction report --out results/femnist-350
python -m reproduction bench-selection                # every solver on the same instances
"""

import sys

import typer

from fedgs.cli import run_app
from reproduction.bench_selection import bench_selection
from reproduction.command import HELP, reproduce


def main() -> None:
    """Run one of the two commands; an experiment needs no name before it."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
    if sys.argv[1:2] == ["bench-selection"]:
        del sys.argv[1]
        app.command("bench-selection")(bench_selection)
    else:
        app.command("reproduction", help=HELP, no_args_is_help=True)(reproduce)
    run_app(app, "reproduction")


if __name__ == "__main__":
    main()
