"""A station's selection is the simulator's, iteration by iteration."""

import numpy as np
import pytest

from fedgs.compiled import running
from fedgs.selection import SOLVERS
from fedgs.selection.coverage import fair_shares, queues_after
from fedgs.selection.team import TeamRule, select_teams
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
        [
            "selection.solver=auto",
            "selection.coverage.weight=0.3",
            "selection.coverage.share=turns",
            "selection.presample=0",
        ],
        ["selection.solver=multistart", "selection.coverage.weight=0.5", "selection.coverage.share=turns"],
        ["selection.pick=4", "selection.solver=swap"],  # all there are
    ],
)
def test_teams_are_those_of_the_simulator(options: list[str], compiled: bool) -> None:
    federation = small_federation()
    settings = small_settings("training.iterations=12", *options)
    watched = SelectionPlan(federation, settings)
    with running(compiled):
        expected = SelectionPlan(federation, settings).next_round()
    selection, factory = settings.selection, 1
    mine = federation.devices_of(factory)
    queue = np.zeros(len(mine))
    rule = TeamRule.of(selection, federation.p_real(), settings.seed, selection.solver, factory)
    everyone = [np.arange(len(mine))]
    for row in range(12):
        (team,) = select_teams(rule, row, watched.streams.counts[mine], everyone, queue)
        assert mine[team.devices].tolist() == expected.devices[row, factory].tolist()
        assert team.divergence == pytest.approx(expected.divergence[row, factory])
        queue = queues_after(queue, fair_shares(np.ones(len(queue)), selection.pick), team.devices)
        watched.streams.advance(expected.devices[row].ravel().astype(np.int64))


@pytest.mark.parametrize("solver", sorted(set(SOLVERS) - {"bayesian", "brute"}))
def test_any_solver_selects_a_team(solver: str) -> None:
    counts = np.random.default_rng(0).multinomial(5, np.full(4, 1 / 4), size=9)
    rule = TeamRule(4, 1, solver, {}, np.full(4, 1 / 4), 0)
    (team,) = select_teams(rule, 3, counts, [np.arange(len(counts))])
    assert len(set(team.devices.tolist())) == 4
    assert 0 <= team.divergence <= 2**0.5
