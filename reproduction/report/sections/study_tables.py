"""The table of the selection study: a line a federation, a column a policy, means over seeds."""

from collections.abc import Sequence

from reproduction.experiments.selection_study import title_of
from reproduction.experiments.study_results import Study, with_all_seeds
from reproduction.report.markdown import table

FEWER = "†"
"""Marks a mean of fewer seeds than others of its line have."""


def means_table(study: Study, policies: Sequence[str]) -> str:
    """Write accuracies in per cent, the best of a line in bold."""
    lines = []
    for key, cells in study.items():
        whole = {policy: cell for policy, cell in with_all_seeds(cells).items() if policy in policies}
        best = max((cell.mean for cell in whole.values()), default=0.0)
        line = [title_of(key)]
        for policy in policies:
            cell = cells.get(policy)
            text = f"{100 * cell.mean:.2f}{'' if policy in whole else FEWER}" if cell else "not run"
            line.append(f"**{text}**" if policy in whole and whole[policy].mean == best else text)
        lines.append(line)
    return table(["federation", *policies], lines)
