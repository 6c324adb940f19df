"""The whole of selection in plain numpy: the same answers, and numba not even imported."""

import json
import os
import subprocess
import sys

from fedgs.selection import SOLVERS, solve, solve_batch
from tests.selection.problems import paper_size

CODE = """
import json, sys
from fedgs.selection import SOLVERS, solve, solve_batch
from tests.selection.problems import paper_size
names = [name for name in SOLVERS if name not in ("bayesian", "brute")]
answers = {name: solve(paper_size(6, devices=14, pick=5), name, 3).chosen.tolist() for name in names}
answers["brute"] = solve(paper_size(6, devices=14, pick=5), "brute").chosen.tolist()
answers["unequal"] = solve(paper_size(6, devices=14, pick=5, unequal=True), "exact").chosen.tolist()
answers["batch"] = [a.chosen.tolist() for a in solve_batch([paper_size(s, devices=12, pick=4) for s in range(3)])]
answers["numba"] = "numba" in sys.modules
print(json.dumps(answers))
"""


def test_plain_numpy_gives_the_same_choices() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        capture_output=True,
        text=True,
        env=os.environ | {"FEDGS_NO_NUMBA": "1"},
        timeout=120,
        check=True,
    )
    plain = json.loads(done.stdout)
    assert plain.pop("numba") is False
    problem = paper_size(6, devices=14, pick=5)
    for name in SOLVERS:
        if name != "bayesian":
            assert plain[name] == solve(problem, name, 3).chosen.tolist(), name
    assert plain["unequal"] == solve(paper_size(6, devices=14, pick=5, unequal=True)).chosen.tolist()
    batch = solve_batch([paper_size(seed, devices=12, pick=4) for seed in range(3)])
    assert plain["batch"] == [answer.chosen.tolist() for answer in batch]
