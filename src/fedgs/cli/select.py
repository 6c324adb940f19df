"""``fedgs select``: solve one selection problem from a file."""

import json
from pathlib import Path
from typing import Annotated

import typer


def select(
    file: Annotated[Path, typer.Argument(help="A .npz (counts, target, base) or a .csv (one row per device).")],
    pick: Annotated[int, typer.Option(min=1, help="Number of devices to select.")],
    solver: Annotated[
        str, typer.Option(help="Name of a solver; auto chooses by size, a wrong name lists all.")
    ] = "auto",
    header: Annotated[bool, typer.Option("--header", help="The first line of a .csv names the classes.")] = False,
    seed: Annotated[int, typer.Option(help="The same seed gives the same answer.")] = 0,
    trace: Annotated[bool, typer.Option("--trace", help="Record every step: (seconds, divergence).")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Solve one selection problem: pick devices whose mini-batches together come closest to the target."""
    from fedgs.selection import solve
    from fedgs.selection.files import read_problem

    source = read_problem(file, pick, header)
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
