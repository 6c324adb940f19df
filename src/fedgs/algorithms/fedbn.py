"""FedBN: normalisation layers stay on their clients; everything else is FedAvg.

Li, Jiang, Zhang, Kamp, Dou: "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization", ICLR 2021.

    w_{t+1} = Σ_k (n_k / Σ n) w_k      for all weights but those of normalisation layers; client k keeps its own

These are scale, shift and running statistics of batch normalisation (the paper), and of instance, layer and group
normalisation too. It is ``task.keep_local`` with the names of these layers; each client is tested with its own, which
are the first ones until it takes part.
"""

from dataclasses import dataclass, replace
from functools import cached_property

from torch import Tensor, nn

from fedgs.algorithms.baseline import Baseline
from fedgs.errors import ConfigError
from fedgs.training.layout import Layout
from fedgs.training.network import ModuleNetwork, Network, WrappedNetwork

NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


@dataclass(frozen=True)
class LocalNorms(WrappedNetwork):
    """A network whose normalisation layers stay on their clients."""

    @cached_property
    def layout(self) -> Layout:  # type: ignore[override]
        """The weights, those of normalisation layers marked as local."""
        layout, base = self.base.layout, self.base
        modules = base.task.module.named_modules() if isinstance(base, ModuleNetwork) else ()
        layers = tuple(f"{name}." for name, module in modules if isinstance(module, NORMS))
        local = frozenset(name for name in layout.names if name.startswith(layers)) if layers else frozenset()
        if not local:
            raise ConfigError("fedbn keeps normalisation layers local and this network has none; use 'fedavg'")
        return replace(layout, local=layout.local | local)

    def first_weights(self, seed: int) -> dict[str, Tensor]:
        """Return the network's own."""
        return self.base.first_weights(seed)


@dataclass(frozen=True)
class FedBN(Baseline):
    """FedBN: FedAvg that leaves normalisation layers on the clients."""

    def network(self, base: Network, clients: int) -> LocalNorms:
        """Mark the normalisation layers."""
        return LocalNorms(base)
