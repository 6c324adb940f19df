"""``fedgs data``: get a data set, turn it into one file, look at it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedgs.errors import DataError, FedgsError, InputFileError

if TYPE_CHECKING:
    from fedgs.data import DataSet
    from fedgs.data.femnist import FemnistOptions

app = typer.Typer(help="Get, convert and look at data sets.", no_args_is_help=True)

LayoutOption = Annotated[
    str | None, typer.Option("--layout", help="leaf, nist, parquet, tff or npz (default: recognised).")
]
CompatOption = Annotated[
    bool, typer.Option("--leaf-compat", help="Keep the duplicates that LEAF makes of first images.")
]
InvertOption = Annotated[bool, typer.Option("--invert", help="Invert images that are white on black.")]
WorkersOption = Annotated[
    int | None, typer.Option("--workers", min=1, help="Number of processes (default: one per core).")
]


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="femnist")],
    folder: Annotated[
        Path | None, typer.Option("--dir", help="Folder of the downloads (default: in the cache).")
    ] = None,
    url: Annotated[str | None, typer.Option("--url", help="A mirror of NIST's folder.")] = None,
    layout: LayoutOption = None,
    leaf_compat: CompatOption = False,
    invert: InvertOption = False,
    workers: WorkersOption = None,
) -> None:
    """Download a data set, convert it and cache it under its name; existing downloads are kept."""
    from fedgs.data.cache import cache_dir
    from fedgs.data.femnist import SOURCE, default_folder, fetch_femnist

    if name != "femnist":
        raise DataError(f"{name!r} cannot be fetched; femnist can")
    done = fetch_femnist(folder, url=url or SOURCE, **_options(layout, leaf_compat, invert, workers))
    typer.echo(f"{_summary(done.dataset)}, from {done.layout} files in {folder or default_folder()}")
    _tell_doubles(done.doubles_dropped)
    typer.echo(f"cached in {cache_dir() / name}; use it as: fedgs data inspect {name}")


@app.command()
def convert(
    source: Annotated[str, typer.Argument(metavar="SRC", help="FEMNIST in any layout, your own images, or a name.")],
    out: Annotated[Path, typer.Argument(metavar="OUT.npz", help="The file to write.")],
    size: Annotated[str | None, typer.Option(help="Resize your own images: HEIGHTxWIDTH, for example 28x28.")] = None,
    layout: LayoutOption = None,
    leaf_compat: CompatOption = False,
    invert: InvertOption = False,
    workers: WorkersOption = None,
) -> None:
    """Convert a data set to one .npz file: FEMNIST in any layout, or any data set that inspect takes."""
    from fedgs.data.npz import save_npz
    from fedgs.data.sources import convert_dataset
    from fedgs.data.user_data import size_from

    if out.suffix != ".npz":
        raise DataError(f"{out}: the name of the output must end in .npz")
    pixels = None if size is None else size_from(size, "--size ")
    done = convert_dataset(source, size=pixels, **_options(layout, leaf_compat, invert, workers))
    save_npz(done.dataset, out)
    typer.echo(f"{_summary(done.dataset)}, written to {out} ({out.stat().st_size / 1e6:.1f} MB)")
    _tell_doubles(done.doubles_dropped)


@app.command()
def inspect(
    what: Annotated[
        str, typer.Argument(metavar="NAME|FILE", help="glyphs, femnist, a cached set, a file or a folder.")
    ],
    out: Annotated[Path | None, typer.Option("--out", help="Also write figures and tables to this folder.")] = None,
    layout: LayoutOption = None,
    leaf_compat: CompatOption = False,
    invert: InvertOption = False,
) -> None:
    """Print statistics of a data set and of its heterogeneity; with --out also draw figures."""
    from rich.console import Console
    from rich.table import Table

    from fedgs.data import load_dataset
    from fedgs.report.data_figures import inspect as describe

    dataset = load_dataset(what, **_options(layout, leaf_compat, invert))
    inspection = describe(dataset, out)
    console = Console()
    for content in inspection.tables:
        table = Table(*content.columns, title=content.title)
        for row in content.rows:
            table.add_row(*(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row))
        console.print(table)
    if inspection.files:
        typer.echo(f"{out}/: " + ", ".join(path.name for path in inspection.files.values()))


@app.command("list")
def list_sets(
    verify: Annotated[bool, typer.Option("--verify", help="Read all files and compare their checksums.")] = False,
) -> None:
    """List the data sets in the cache."""
    from rich.console import Console
    from rich.table import Table

    from fedgs.data import cache

    folder = cache.cache_dir()
    names = cache.cached_sets()
    if not names:
        typer.echo(f"no sets in {folder}")
        return
    table = Table("set", "samples", "clients", "MB", "from")
    broken = []
    for name in names:
        try:
            if verify:
                cache.verify(folder / name)
            facts = cache.describe(folder / name)
        except FedgsError as error:
            broken.append(str(error))
            table.add_row(name, "", "", "", "broken")
            continue
        size = sum(file["bytes"] for file in facts["files"].values()) / 1e6
        source = f"{facts['source'].get('layout', '')} {facts['source'].get('path', '')}".strip()
        table.add_row(name, f"{facts['samples']:,}", f"{len(facts['client_names']):,}", f"{size:.1f}", source)
    typer.echo(f"in {folder}" + (", checksums compared" if verify else ""))
    Console().print(table)
    if broken:
        raise InputFileError(f"{len(broken)} of {len(names)} sets broken: {broken[0]}")


def _options(layout: str | None, leaf_compat: bool, invert: bool, workers: int | None = None) -> FemnistOptions:
    from fedgs.data.femnist import LAYOUTS

    if layout is not None and layout not in LAYOUTS:
        raise DataError(f"--layout {layout}: unknown; choose one of {', '.join(LAYOUTS)}")
    known: Any = layout
    return {"layout": known, "leaf_compat": leaf_compat, "invert": invert, "workers": workers, "progress": True}


def _summary(dataset: DataSet) -> str:
    return f"{dataset.name}: {len(dataset):,} images of {len(dataset.client_names):,} clients"


def _tell_doubles(count: int) -> None:
    if count:
        typer.echo(f"{count:,} doubled images of LEAF dropped (--leaf-compat keeps them)")
