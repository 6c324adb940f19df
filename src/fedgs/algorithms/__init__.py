"""Baselines: what devices do with the global model, and what a server makes of what they send.

Server rules are usable alone, on plain dicts of tensors:

    from fedgs.algorithms import Upload, server_rule

    rule = server_rule("fedadam", server_lr=0.1, beta1=0.9, beta2=0.99, tau=1e-3, v_init="tau2")
    state = rule.init(weights)
    weights, state = rule.update(state, weights, uploads)

One file an idea, its paper at the top. Rules: ``fedavg``, ``fedavgm``, ``fedopt``, ``fednova``, ``ida``;
``server`` holds the table of their names, ``upload`` what a participant sends and its checks, ``mean`` the arithmetic,
``rule`` what a rule is and the way of its state into a checkpoint. Baselines: ``baseline`` is FedAvg's local training,
``fedprox``, ``fedmmd``, ``fedfusion``, ``cgau``, ``scaffold``, ``feddyn``, ``moon`` and ``fedbn`` what others change in
it, ``client_memory`` what clients remember; ``baselines`` holds the table. ``fedgs`` stands beside them.
"""

from fedgs.algorithms.baseline import Baseline, Batch, Sent
from fedgs.algorithms.baselines import BASELINES, BaselineEntry, make_baseline
from fedgs.algorithms.rule import ServerRule, State, join_state, split_state
from fedgs.algorithms.server import RULES, RuleEntry, server_rule
from fedgs.algorithms.upload import Upload, Weights

__all__ = [
    "BASELINES",
    "RULES",
    "Baseline",
    "BaselineEntry",
    "Batch",
    "RuleEntry",
    "Sent",
    "ServerRule",
    "State",
    "Upload",
    "Weights",
    "join_state",
    "make_baseline",
    "server_rule",
    "split_state",
]
