"""Server rules: how the uploads of a round become the next global weights. Plain dicts of tensors in and out.

    from fedgs.algorithms import Upload, server_rule

    rule = server_rule("fedadam", server_lr=0.1, beta1=0.9, beta2=0.99, tau=1e-3, v_init="tau2")
    state = rule.init(weights)
    weights, state = rule.update(state, weights, uploads)

One file an idea, its paper at the top: ``fedavg``, ``fedavgm``, ``fedopt``, ``ida``. ``server`` holds the table of
names, ``upload`` what a participant sends and its checks, ``mean`` the arithmetic, ``state`` the way into a checkpoint.
"""

from fedgs.algorithms.server import RULES, RuleEntry, ServerRule, server_rule
from fedgs.algorithms.state import State, join_state, split_state
from fedgs.algorithms.upload import Upload, Weights

__all__ = [
    "RULES",
    "RuleEntry",
    "ServerRule",
    "State",
    "Upload",
    "Weights",
    "join_state",
    "server_rule",
    "split_state",
]
