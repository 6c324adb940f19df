"""``fedgs data``: get a data set, turn it into one file, look at it."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedgs.errors import DataError, FedgsError, InputFileError, MissingDependencyError

if TYPE_CHECKING:
    from fedgs.data import DataSet
    from fedgs.data.femnist import Layout

app = typer.Typer(help="Get, convert and look at data sets.", no_args_is_help=True)

LayoutOption = Annotated[
    str | None, typer.Option("--layout", help="leaf, nist, parquet, tff or npz; found out when not given.")
]
CompatOption = Annotated[bool, typer.Option("--leaf-compat", help="Keep the doubled first images that LEAF makes.")]
InvertOption = Annotated[bool, typer.Option("--invert", help="The copy is white on black: turn it over.")]
WorkersOption = Annotated[int | None, typer.Option("--workers", min=1, help="Processes; one a core when not given.")]


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="femnist")],
    folder: Annotated[
        Path | None, typer.Option("--dir", help="Where the downloads are, or go; in the cache when not given.")
    ] = None,
    url: Annotated[str | None, typer.Option("--url", help="A mirror of NIST's folder.")] = None,
    leaf_compat: CompatOption = False,
    workers: WorkersOption = None,
) -> None:
    """Download a data set (what is there already is not downloaded again), convert it and cache it under its name."""
    from fedgs.data.cache import cache_dir
    from fedgs.data.femnist.fetch import SOURCE, default_folder, fetch_femnist

    if name != "femnist":
        raise DataError(f"{name!r} cannot be fetched; femnist can")
    done = fetch_femnist(folder, url=url or SOURCE, leaf_compat=leaf_compat, workers=workers, progress=True)
    typer.echo(f"{_summary(done.dataset)}, from {done.layout} files in {folder or default_folder()}")
    _tell_doubles(done.doubles_dropped)
    typer.echo(f"cached in {cache_dir() / name}; use it as: fedgs data inspect {name}")


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="FEMNIST in any public layout, or a cached name.")],
    out: Annotated[Path, typer.Argument(metavar="OUT.npz", help="The file to write.")],
    layout: LayoutOption = None,
    leaf_compat: CompatOption = False,
    invert: InvertOption = False,
    workers: WorkersOption = None,
) -> None:
    """Turn FEMNIST from any public layout into one .npz file."""
    from fedgs.data import cache
    from fedgs.data.femnist import convert_femnist
    from fedgs.data.npz import save_npz

    if out.suffix != ".npz":
        raise DataError(f"{out}: the name of the output must end in .npz")
    if not out.parent.is_dir():
        raise DataError(f"{out}: there is no folder {out.parent}")
    doubles = 0
    if not source.exists() and str(source) in cache.cached_sets():
        source = cache.cache_dir() / source
    if cache.is_set(source):
        _refuse_options(str(source), layout, leaf_compat, invert)
        dataset = cache.load(source)
    else:
        done = convert_femnist(
            source,
            layout=_layout(layout),
            leaf_compat=leaf_compat,
            invert=invert,
            workers=workers,
            progress=True,
        )
        dataset, doubles = done.dataset, done.doubles_dropped
    save_npz(dataset, out)
    typer.echo(f"{_summary(dataset)}, written to {out} ({out.stat().st_size / 1e6:.1f} MB)")
    _tell_doubles(doubles)


@app.command()
def inspect(
    what: Annotated[
        str, typer.Argument(metavar="NAME|FILE", help="glyphs, femnist, a cached set, a file or a folder.")
    ],
    out: Annotated[Path | None, typer.Option("--out", help="Also write pictures and tables into this folder.")] = None,
    layout: LayoutOption = None,
    leaf_compat: CompatOption = False,
    invert: InvertOption = False,
) -> None:
    """Print what a data set holds; with --out also draw it."""
    dataset = _resolve(what, _layout(layout), leaf_compat, invert)
    _print_tables(dataset)
    if out is not None:
        _room("fedgs.report.data_figures").inspect(dataset, out)


@app.command("list")
def list_sets(
    verify: Annotated[bool, typer.Option("--verify", help="Read everything and compare the checksums.")] = False,
) -> None:
    """List the sets in the cache."""
    from rich.console import Console
    from rich.table import Table

    from fedgs.data import cache

    folder = cache.cache_dir()
    names = cache.cached_sets()
    if not names:
        typer.echo(f"no sets in {folder}")
        return
    table = Table("set", "samples", "owners", "MB", "from")
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
        table.add_row(name, f"{facts['samples']:,}", f"{len(facts['owner_names']):,}", f"{size:.1f}", source)
    typer.echo(f"in {folder}" + (", checksums compared" if verify else ""))
    Console().print(table)
    if broken:
        raise InputFileError(f"{len(broken)} of {len(names)} sets broken: {broken[0]}")


def _room(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise
        raise MissingDependencyError(f"{name} is not part of this installation of fedgs") from None


def _layout(text: str | None) -> Layout | None:
    from fedgs.data.femnist import LAYOUTS

    for layout in LAYOUTS:
        if layout == text:
            return layout
    if text is not None:
        raise DataError(f"--layout {text}: unknown; choose one of {', '.join(LAYOUTS)}")
    return None


def _resolve(what: str, layout: Layout | None, leaf_compat: bool, invert: bool) -> DataSet:
    """Return the data set of this name or path; a name of the cache comes before a file called the same."""
    from fedgs.data import cache
    from fedgs.data.femnist import load_femnist
    from fedgs.data.npz import is_own_file, load_npz

    if what in ("glyphs", "femnist", *cache.cached_sets()) or is_own_file(Path(what)):
        _refuse_options(what, layout, leaf_compat, invert)
    if what == "glyphs":
        loaded: DataSet = _room("fedgs.data.glyphs").load_glyphs()
        return loaded
    if what == "femnist":
        return load_femnist()
    if what in cache.cached_sets():
        return cache.load(cache.cache_dir() / what)
    if not Path(what).exists():
        known = ", ".join(dict.fromkeys(["glyphs", "femnist", *cache.cached_sets()]))
        raise InputFileError(f"{what}: no such file or folder, and no set of this name; names are {known}")
    if is_own_file(Path(what)):
        return load_npz(what)
    return load_femnist(what, leaf_compat, layout=layout, invert=invert, progress=True)


def _refuse_options(what: str, layout: str | None, leaf_compat: bool, invert: bool) -> None:
    if layout is not None or leaf_compat or invert:
        raise DataError(f"{what}: converted already; --layout, --leaf-compat and --invert are for the original files")


def _summary(dataset: DataSet) -> str:
    return f"{dataset.name}: {len(dataset):,} images of {len(dataset.owner_names):,} owners"


def _tell_doubles(count: int) -> None:
    if count:
        typer.echo(f"{count:,} doubled images of LEAF dropped (--leaf-compat keeps them)")


def _print_tables(dataset: DataSet) -> None:
    import numpy as np
    from rich.console import Console
    from rich.table import Table

    console = Console()
    sizes = np.bincount(dataset.owners, minlength=len(dataset.owner_names))
    facts = Table("data set", dataset.name)
    facts.add_row("samples", f"{len(dataset):,}")
    facts.add_row("images", " x ".join(map(str, dataset.images.shape[1:])))
    facts.add_row("owners", f"{len(dataset.owner_names):,}")
    if len(sizes):
        low, middle, high = int(sizes.min()), float(np.median(sizes)), int(sizes.max())
        facts.add_row("samples per owner", f"{low} … {middle:g} … {high} (least, median, most)")
    facts.add_row("classes", str(len(dataset.classes)))
    if dataset.test is not None:
        facts.add_row("test samples of its own split", f"{int(dataset.test.sum()):,}")
    for name, values in dataset.attributes.items():
        groups, counts = np.unique(values, return_counts=True)
        facts.add_row(f"owners by {name}", ", ".join(f"{g}: {c}" for g, c in zip(groups, counts, strict=True)))
    console.print(facts)
    counts = np.bincount(dataset.labels, minlength=len(dataset.classes))
    histogram = Table("class", "samples", "share", "")
    longest = max(1, int(counts.max(initial=0)))
    for character, count in zip(dataset.classes, counts.tolist(), strict=True):
        share = count / max(1, len(dataset))
        histogram.add_row(character, f"{count:,}", f"{share:.2%}", "█" * round(40 * count / longest))
    console.print(histogram)
