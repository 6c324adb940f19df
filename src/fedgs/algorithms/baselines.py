"""``make_baseline``: any baseline of the table ``BASELINES`` by its name.

Most names are a server rule under FedAvg's local training; some train another way and average as FedAvg does. The
options of a name are the fields of its class and those of its server rule. Adding a baseline is a file with a class
(or a rule, :mod:`fedgs.algorithms.server`) and a line in the table; docs/reference/baselines.md goes through one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedgs.algorithms.baseline import Baseline
from fedgs.algorithms.cgau import Cgau
from fedgs.algorithms.fedbn import FedBN
from fedgs.algorithms.feddyn import FedDyn
from fedgs.algorithms.fedfusion import FedFusion
from fedgs.algorithms.fedmmd import FedMMD
from fedgs.algorithms.fedprox import FedProx
from fedgs.algorithms.ida import WithAccuracy
from fedgs.algorithms.moon import Moon
from fedgs.algorithms.options import check_options, options_of
from fedgs.algorithms.scaffold import Scaffold
from fedgs.algorithms.server import RULES, server_rule
from fedgs.errors import AlgorithmError, suggestion

TUNED = 10**-1.5
"""The devices' rate in the best cells of Reddi et al. (2021) for 62 characters; FedGS searched its own grid."""
PLAIN_MEANS = {"weighting": "uniform"}


@dataclass(frozen=True)
class BaselineEntry:
    """What the table knows of a baseline."""

    summary: str
    make: type[Baseline] = Baseline
    rule: str = "fedavg"
    """The server's side, a name in ``RULES``."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Options that the name already decides."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Defaults that are others than those of the class."""

    @property
    def own_options(self) -> dict[str, Any]:
        """Names and default values of the options of the devices' side."""
        own = options_of(self.make, self.fixed)
        return own | {name: value for name, value in self.defaults.items() if name in own}

    @property
    def options(self) -> dict[str, Any]:
        """Names and default values of all options."""
        return self.own_options | RULES[self.rule].options | dict(self.defaults)


BASELINES: dict[str, BaselineEntry] = {
    "fedavg": BaselineEntry("local SGD, mean weighted by numbers of samples"),
    "fedprox": BaselineEntry("… with a pull back to the global model", FedProx),
    "ida": BaselineEntry("mean weighted by inverse distance to the mean", WithAccuracy, "ida"),
    "ida+intrac": BaselineEntry("… and by inverse training accuracy", WithAccuracy, "ida+intrac"),
    "ida+fedavg": BaselineEntry("… and by numbers of samples", WithAccuracy, "ida+fedavg"),
    "cgau": BaselineEntry("pre-trained network, classifier of one gated layer that knows its device", Cgau),
    "cgau-2x": BaselineEntry("… of two gated layers", Cgau, fixed={"layers": 2}),
    "fedmmd": BaselineEntry("local answers held near the global model's", FedMMD),
    "fedfusion+conv": BaselineEntry(
        "local and global features fused by a convolution", FedFusion, fixed={"operator": "conv", "ema": 0.0}
    ),
    "fedfusion+multi": BaselineEntry(
        "… by a weight a channel", FedFusion, fixed={"operator": "multi", "conv_init": "xavier"}
    ),
    "fedfusion+single": BaselineEntry(
        "… by one weight", FedFusion, fixed={"operator": "single", "conv_init": "xavier"}
    ),
    "fedavgm": BaselineEntry("momentum at the server", rule="fedavgm", defaults={"client_lr": TUNED}),
    "fedadagrad": BaselineEntry("Adagrad at the server", rule="fedadagrad", defaults={"client_lr": TUNED}),
    "fedadam": BaselineEntry("Adam at the server", rule="fedadam", defaults={"client_lr": TUNED}),
    "fedyogi": BaselineEntry("Yogi at the server", rule="fedyogi", defaults={"client_lr": TUNED}),
    "fednova": BaselineEntry("mean of what devices change in a step, however many they make", rule="fednova"),
    "scaffold": BaselineEntry("control variates correct every local step", Scaffold, defaults=PLAIN_MEANS),
    "feddyn": BaselineEntry(
        "local losses that follow the server, with a memory of every client", FedDyn, defaults=PLAIN_MEANS
    ),
    "moon": BaselineEntry("features held near the global model's and away from the client's last ones", Moon),
    "fedbn": BaselineEntry("normalisation layers stay on the clients", FedBN),
}


def make_baseline(name: str, /, **options: Any) -> Baseline:
    """Return a baseline.

    Args:
        name: a key of ``BASELINES``.
        options: of the baseline or its server rule; ``BASELINES[name].options`` lists them with their defaults.
    """
    if name not in BASELINES:
        raise AlgorithmError(f"no baseline is called {name!r}; {suggestion(name, BASELINES)}")
    entry = BASELINES[name]
    check_options(name, options, entry.options, {**entry.fixed, **RULES[entry.rule].fixed})
    given = {**entry.defaults, **options}
    own = {name: given.get(name, value) for name, value in entry.own_options.items()}
    rule = server_rule(entry.rule, **{name: value for name, value in given.items() if name not in own})
    try:
        return entry.make(rule=rule, **entry.fixed, **own)
    except AlgorithmError as error:
        raise AlgorithmError(f"{name}: {error}") from None
