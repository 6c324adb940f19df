"""The example of every public name runs, as its docstring shows it; and every public name has one."""

import doctest
import inspect
from pathlib import Path
from typing import Any

import pytest

import fedgs

NAMES = [name for name in fedgs.__all__ if name not in ("FedgsError", "__version__")]
SAME = {"load_model": "ExportedModel", "Comparison": "compare"}
"""Names whose docstring points to the example of another one, in the same module."""


def examples_of(thing: Any) -> list[doctest.DocTest]:
    found = doctest.DocTestFinder(recurse=False).find(thing, thing.__name__, globs={})
    return [one for one in found if one.examples]


@pytest.mark.parametrize(
    "thing",
    [
        *(getattr(fedgs, name) for name in NAMES if name not in SAME),
        *(getattr(inspect.getmodule(getattr(fedgs, name)), other) for name, other in SAME.items()),
        fedgs.Federation.from_arrays,
        fedgs.Federation.from_datasets,
        fedgs.Federation.load,
    ],
    ids=lambda thing: getattr(thing, "__qualname__", None),
)
@pytest.mark.usefixtures("unpainted")
def test_the_example_runs(thing: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # The methods of Federation have examples, the class itself says which methods make one.
    examples = examples_of(thing)
    assert examples or thing is fedgs.Federation
    said: list[str] = []
    for one in examples:
        result = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(one, out=said.append)
        assert result.failed == 0, "".join(said)
        assert not any(doctest.SKIP in example.options for example in one.examples)


def test_a_name_without_an_example_says_where_there_is_one() -> None:
    for name, other in SAME.items():
        assert other in (inspect.getdoc(getattr(fedgs, name)) or "")
