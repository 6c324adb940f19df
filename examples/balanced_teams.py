"""Game matching: pick five of twelve players so that the team's skills add up to what a fair match needs.

The paper notes that its selection serves "other practical cases such as game matching". Here the columns of the
matrix are players, the rows are skills, and the target is half of what all players have together, scaled to a
team of five: whoever plays against the rest of the pool meets an equal opponent.

    python examples/balanced_teams.py
"""

import numpy as np

from fedgs.selection import choose_subset

SKILLS = ("attack", "defence", "speed", "stamina")
PLAYERS = ("Ada", "Bo", "Cleo", "Dev", "Eli", "Fay", "Gus", "Hana", "Ivo", "Jun", "Kim", "Lou")
TEAM = 5

skills = np.random.default_rng(7).integers(20, 100, size=(len(SKILLS), len(PLAYERS)))
fair = skills.mean(axis=1) * TEAM
result = choose_subset(skills, fair, pick=TEAM)

team = [PLAYERS[i] for i in result.chosen]
print(f"the fairest team of {TEAM}: {', '.join(team)}")
for skill, wanted, got in zip(SKILLS, fair, skills[:, result.chosen].sum(axis=1), strict=True):
    print(f"  {skill:8s} {got:4d}, fair would be {wanted:6.1f}")
print(f"off by {result.distance:.2f} in all, {'proven the best' if result.proven else 'perhaps not the best'}")
