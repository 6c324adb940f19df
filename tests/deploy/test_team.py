"""A station's selection is the simulator's, iteration by iteration."""

import numpy as np
import pytest

from fedgs.deploy.team import Wanted, select_team, turns_owed
from fedgs.selection import SOLVERS
from fedgs.selection.solve import solver_options
from fedgs.simulation.selection_plan import SelectionPlan
from tests.simulation.small import small_federation, small_settings


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        ["selection.solver=gbp-cs"],
        ["selection.solver=gbp-cs", "selection.start=random"],
        ["selection.solver=exact", "selection.presample=0"],
        ["selection.solver=random"],
        ["selection.solver=auto", "selection.coverage.share=turns", "selection.presample=0"],
        ["selection.solver=multistart", "selection.coverage.weight=0.5", "selection.coverage.share=turns"],
        ["selection.pick=4", "selection.solver=swap"],  # all there are
    ],
)
def test_teams_are_those_of_the_simulator(options: list[str], compiled: bool) -> None:
    federation = small_federation()
    settings = small_settings("training.iterations=12", *options)
    plan = SelectionPlan(federation, settings, compiled=compiled)
    watched = SelectionPlan(federation, settings)
    expected = plan.next_round()
    selection, factory = settings.selection, 1
    mine = federation.devices_of(factory)
    queue = np.zeros(len(mine))
    wanted = Wanted(
        selection.pick, selection.presample, selection.solver, solver_options(selection), federation.p_real(),
        settings.seed, factory, selection.coverage_weight,
    )  # fmt: skip
    for row in range(12):
        team, divergence = select_team(watched.streams.counts[mine], wanted, row, queue)
        assert mine[team].tolist() == expected.devices[row, factory].tolist()
        assert divergence == pytest.approx(expected.divergence[row, factory])
        queue = turns_owed(queue, team, selection.pick)
        watched.streams.advance(expected.devices[row].ravel().astype(np.int64))


@pytest.mark.parametrize("solver", sorted(set(SOLVERS) - {"bayesian", "brute"}))
def test_any_solver_selects_a_team(solver: str) -> None:
    counts = np.random.default_rng(0).multinomial(5, np.full(4, 1 / 4), size=9)
    team, divergence = select_team(counts, Wanted(4, 1, solver, {}, np.full(4, 1 / 4), 0, 0), 3)
    assert len(set(team.tolist())) == 4
    assert 0 <= divergence <= 2**0.5
