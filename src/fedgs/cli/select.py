"""``fedgs select``: solve one selection problem from a file."""

import json
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated

import typer


def select(
    file: Annotated[Path, typer.Argument(help="A .npz (counts, target, base) or a .csv (one device a row).")],
    pick: Annotated[int, typer.Option(help="How many devices to take.")],
    solver: Annotated[
        str, typer.Option(help="A solver; auto chooses by size, and a wrong name lists them all.")
    ] = "auto",
    header: Annotated[bool, typer.Option("--header", help="The first line of a .csv names the classes.")] = False,
    seed: Annotated[int, typer.Option(help="The same seed gives the same answer.")] = 0,
    trace: Annotated[bool, typer.Option("--trace", help="Note every step: (seconds, divergence).")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Pick the devices whose next mini-batches together look most like the target."""
    from fedgs.selection import solve
    from fedgs.selection.files import read_problem
    from fedgs.selection.solve import warm_up

    source = read_problem(file, pick, header)
    with _waiting():
        warm_up(solver, source.problem)
    result = solve(source.problem, solver, seed, trace=trace)
    if as_json:
        fields = {
            "chosen": result.chosen.tolist(),
            "divergence": result.divergence,
            "distance": result.distance,
            "proven": result.proven,
            "trace": result.trace,
            "solver": result.solver,
            "seconds": result.seconds,
        }
        typer.echo(json.dumps(fields))
        return

    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    problem = source.problem
    table = Table("row", "device", "samples", title=f"{len(result.chosen)} of {len(problem.counts)} devices")
    for index in result.chosen.tolist():
        table.add_row(str(index), escape(source.names[index]), f"{problem.sizes[index]:g}")
    console = Console()
    console.print(table)
    console.print(f"divergence {result.divergence:.6f}, distance {result.distance:.4f}")
    proof = "proven optimal" if result.proven else "not proven optimal"
    console.print(f"{result.solver}, {proof}, {result.seconds * 1e3:.2f} ms")
    console.print(f"[dim]{source.reading}[/dim]")
    if result.trace is not None:
        steps = Table("seconds", "divergence", title="steps")
        for seconds, divergence in result.trace:
            steps.add_row(f"{seconds:.6f}", f"{divergence:.6f}")
        console.print(steps)


def _waiting() -> AbstractContextManager[object]:
    """Say on a terminal what takes so long the first time a solver is used on a machine."""
    if not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console

    return Console(stderr=True).status("compiling the solver, once …")
