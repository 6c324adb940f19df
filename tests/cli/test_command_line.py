"""The commands as a user runs them: real files, wrong arguments, and some real processes."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from typer.main import get_command

from fedgs import __version__
from fedgs.cli import app
from fedgs.selection import SelectionProblem, solve
from fedgs.selection.files import read_problem
from tests.conftest import Here, error_of
from tests.selection.problems import paper_size


def fedgs(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fedgs", *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ | {"COLUMNS": "100"} | environment,
        timeout=300,
        check=False,
    )


@pytest.fixture
def npz(tmp_path: Path) -> Path:
    problem = paper_size(1)
    np.savez(tmp_path / "problem.npz", counts=problem.counts, target=problem.target, base=problem.base)
    return tmp_path / "problem.npz"


def test_version_and_help(here: Here) -> None:
    assert fedgs("--version").stdout.strip() == f"fedgs {__version__}"
    for arguments, words in ((["--help"], "select"), (["run", "--help"], "A TOML file"), (["park"], "up")):
        assert words in here(*arguments).out


def test_every_argument_is_explained() -> None:
    """Some versions of click and typer, together, lose what a command says of its arguments."""
    found = dict(arguments_of(get_command(app)))
    assert {"select file", "compare runs", "data convert out"} <= set(found)
    assert [name for name, words in found.items() if not words] == []


def arguments_of(command: click.Command, name: str = "") -> Iterator[tuple[str, str | None]]:
    for child in getattr(command, "commands", {}).values():
        yield from arguments_of(child, f"{name} {child.name}".strip())
    for one in command.params:
        if one.param_type_name == "argument":
            yield f"{name} {one.name}", getattr(one, "help", None)


def test_select_prints_exactly_the_fields_of_a_result(npz: Path, here: Here) -> None:
    code, out, err = here("select", str(npz), "--pick", "8", "--json")
    assert (code, err) == (0, "")
    printed = json.loads(out)
    expected = solve(paper_size(1), "exact")
    assert printed.pop("seconds") > 0
    assert printed == {
        "chosen": expected.chosen.tolist(),
        "divergence": pytest.approx(expected.divergence),
        "distance": pytest.approx(expected.distance),
        "proven": True,
        "trace": None,
        "solver": "exact",
    }


def test_select_by_name_with_a_trace(npz: Path, here: Here) -> None:
    command = ("select", str(npz), "--pick", "8", "--solver", "gbp-cs", "--trace")
    printed = json.loads(here(*command, "--json")[1])
    assert printed["solver"] == "gbp-cs"
    assert printed["trace"][-1][1] == pytest.approx(printed["divergence"])
    shown = here(*command)[1]
    assert "steps" in shown
    assert "not proven optimal" in shown


def test_select_from_a_csv_with_names(tmp_path: Path, here: Here) -> None:
    (tmp_path / "counts.csv").write_text("camera,cat,dog\nnorth[/red],4,0\n[south],0,4\neast,3,1\n")
    code, shown, err = here("select", "counts.csv", "--pick", "2", "--header")
    assert (code, err) == (0, "")
    for words in ("[south]", "north[/red]", "proven optimal"):
        assert words in shown
    printed = json.loads(here("select", "counts.csv", "--pick", "2", "--header", "--json")[1])
    target = np.array([7, 5]) / 12  # all rows together
    expected = solve(SelectionProblem([[4, 0], [0, 4], [3, 1]], target, 2))
    assert printed["divergence"] == pytest.approx(expected.divergence)


def test_select_answers_without_torch_and_without_a_compiler(npz: Path) -> None:
    code = (
        "import sys; sys.argv = ['fedgs', 'select', sys.argv[1], '--pick', '8', '--json']\n"
        "from fedgs.cli import main\n"
        "heavy = ('torch', 'numba', 'scipy', 'matplotlib', 'pydantic')\n"
        "try: main()\n"
        "finally: print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(npz)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["select"], "Missing argument 'FILE'"),
        (["select", "none.npz", "--pick", "1"], "none.npz: no such file"),
        (["select", "problem.npz"], "Missing option '--pick'"),
        (["select", "problem.npz", "--pick", "many"], "'many' is not a valid int"),
        (["select", "problem.npz", "--pick", "0"], "'--pick': 0 is not in the range"),
        (["select", "problem.npz", "--pick", "99"], "pick=99 is impossible with 33 device"),
        (["select", "problem.npz", "--pick", "8", "--solver", "exakt"], "did you mean 'exact'"),
        (["select", "problem.npz", "--pick", "8", "--fast"], "No such option"),
        (["select", "notes.txt", "--pick", "1"], "unknown kind of file '.txt'"),
        (["bench-selection"], "python -m reproduction bench-selection"),
        (["reproduce", "table2"], "python -m reproduction"),
        (["selekt"], "No such command 'selekt'. Did you mean 'select'? (fedgs"),
        (["plot"], "No such command 'plot'. (fedgs"),
        (["run", "--devise", "cpu"], "No such option '--devise'. Did you mean '--device'? (fedgs"),
        (["run", "--seed", "3"], "No such option '--seed'. (fedgs"),
        (["run", "--set", "algorithm.name=fedfoo"], "'fedfoo' is not a baseline; there are fedgs, fedavg"),
    ],
)
def test_wrong_arguments_are_one_line(arguments: list[str], message: str, npz: Path, here: Here) -> None:
    (npz.parent / "notes.txt").write_text("not numbers")
    assert message in error_of(here(*arguments))


@pytest.mark.parametrize(
    ("content", "header", "counts", "names"),
    [
        ("1,2\n3,4\n", False, [[1, 2], [3, 4]], ["0", "1"]),
        ("0,1\n3,4\n", False, [[0, 1], [3, 4]], ["0", "1"]),  # not a header that counts
        ("device,0,1\nnorth,1,2\n", False, [[0, 1], [1, 2]], ["device", "north"]),
        ("north,1,2\nsouth,3,4\n", False, [[1, 2], [3, 4]], ["north", "south"]),
        ("dev[/red],1,2\n[x],3,4\n", False, [[1, 2], [3, 4]], ["dev[/red]", "[x]"]),
        ("cat,dog\n1,2\n3,4\n", True, [[1, 2], [3, 4]], ["0", "1"]),
        ("0,1\n1,2\n3,4\n", True, [[1, 2], [3, 4]], ["0", "1"]),
        ("robot,cat,dog\nnorth,1,2\nsouth,3,4\n", True, [[1, 2], [3, 4]], ["north", "south"]),
        ("id,cat,dog\n17,1,2\n18,3,4\n", True, [[1, 2], [3, 4]], ["17", "18"]),
    ],
)
def test_csv_layouts(content: str, header: bool, counts: list[list[int]], names: list[str], tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(content)
    found = read_problem(tmp_path / "a.csv", 1, header)
    assert found.problem.counts.tolist() == counts
    assert list(found.names) == names


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "1;2\n3;4\n", "is the separator a comma?"),
        ("a.csv", "", "holds no row of counts"),
        (
            "a.csv",
            "cat,dog\n1,2\n",
            "line 1, column 1: 'cat' is not a number; if the first line names the classes, give",
        ),
        ("a.csv", "3,2,1\n1O,2,1\n", "line 2, column 1: '1O' is not a number; a first column of names holds no number"),
        ("a.csv", "3,2,1\n1_000,2,1\n", "line 2, column 1: '1_000' is not a number"),
        ("a.csv", "3,2,1\n,2,1\n", "line 2, column 1: '' is not a number"),
        ("a.csv", "north,2,1\n,2,1\n", "line 2, column 1: is empty; give the name of the device"),
        ("a.csv", "1,2\n3\n", "line 2 has 1 cells"),
        ("a.csv", "1,2\n3,four\n", "line 2, column 2: 'four' is not a number"),
        ("a.csv", "1,2\n3,-4\n", "counts[1, 1] is negative"),
        ("a.csv", "1,nan\n", "not a finite number"),
        ("a.csv", "0,0\n0,0\n", "all counts are zero"),
        ("a.npz", "rubbish", "not a readable .npz file"),
    ],
)
def test_broken_problem_files_are_named(name: str, content: str, message: str, tmp_path: Path, here: Here) -> None:
    (tmp_path / name).write_text(content)
    line = error_of(here("select", name, "--pick", "1"))
    assert message in line
    assert name in line


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"kounts": np.ones((2, 2))}, "holds no array called counts; it has: kounts"),
        ({"counts": np.array([["a", "b"]])}, "not numbers"),
        ({"counts": np.ones((2, 2)), "base": np.ones(3)}, "base has 3 entries"),
        ({"counts": np.ones((3, 0))}, "no columns"),
        ({"counts": np.array([{"a": 1}], dtype=object)}, "not a readable .npz"),
    ],
)
def test_npz_files_without_counts(arrays: dict[str, Any], message: str, tmp_path: Path, here: Here) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    assert message in error_of(here("select", "a.npz", "--pick", "1"))


def test_damaged_npz_files(tmp_path: Path, here: Here) -> None:
    np.save(tmp_path / "d.npy", np.ones((2, 2)))
    (tmp_path / "d.npy").rename(tmp_path / "d.npz")
    assert "holds a single array" in error_of(here("select", "d.npz", "--pick", "1"))
    np.savez_compressed(tmp_path / "g.npz", counts=np.arange(3000.0).reshape(30, 100))
    content = bytearray((tmp_path / "g.npz").read_bytes())
    content[200:260] = bytes(60)
    (tmp_path / "g.npz").write_bytes(content)
    assert "not a readable .npz" in error_of(here("select", "g.npz", "--pick", "1"))
    assert "is a folder" in error_of(here("select", ".", "--pick", "1"))


def test_everything_works_without_the_compiler(npz: Path, here: Here) -> None:
    plain = json.loads(fedgs("select", npz, "--pick", 8, "--json", FEDGS_NO_NUMBA="1").stdout)
    compiled = json.loads(here("select", npz, "--pick", 8, "--json").out)
    assert plain["chosen"] == compiled["chosen"]
    assert plain["proven"] is True


def test_the_first_compile_says_so_once(tmp_path: Path) -> None:
    """Standard output stays what it is; kernels that lie on the disk are loaded without a word."""
    command, cache = ("plan", "--measure", "--json"), str(tmp_path / "cache")
    first, second = (fedgs(*command, NUMBA_CACHE_DIR=cache) for _ in range(2))
    assert re.fullmatch("fedgs: note: compiling kernels, once .*\n", first.stderr)
    assert second.stderr == ""
    assert json.loads(first.stdout).keys() == json.loads(second.stdout).keys()


def test_a_full_disk_behind_the_output_ends_in_one_line() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "fedgs", "baselines"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 2
    assert re.fullmatch(r"fedgs: error: the output could not be written: .*\n", done.stderr)
