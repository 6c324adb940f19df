"""Federated learning in factories: group client selection, fast simulation, real deployment.

Implements and extends FedGS (Li, He, Yu, Kang, Li, Xu, Niyato: "Data Heterogeneity-Robust Federated
Learning via Group Client Selection in Industrial IoT", IEEE Internet of Things Journal, 2022).

    import fedgs

    task = fedgs.classification(VibrationNet, classes=11)
    federation = fedgs.Federation.from_arrays(signals, faults, devices=machines, factories=plants)
    history = fedgs.run(task, federation, rounds=40)

Importing the package loads nothing heavy; each name below is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedgs.algorithms.baseline import Baseline as Baseline
    from fedgs.algorithms.fedgs import FedGS as FedGS
    from fedgs.algorithms.fedmmd import FedMMD as FedMMD
    from fedgs.algorithms.fedprox import FedProx as FedProx
    from fedgs.data.federation import Federation as Federation
    from fedgs.errors import FedgsError as FedgsError
    from fedgs.selection.problem import SelectionProblem as SelectionProblem
    from fedgs.selection.solve import solve as solve
    from fedgs.settings import Settings as Settings
    from fedgs.simulation.callbacks import Callback as Callback
    from fedgs.simulation.compare import Comparison as Comparison
    from fedgs.simulation.compare import compare as compare
    from fedgs.simulation.exported import load_model as load_model
    from fedgs.simulation.history import History as History
    from fedgs.simulation.history import load_history as load_history
    from fedgs.simulation.run import resume as resume
    from fedgs.simulation.run import run as run
    from fedgs.simulation.sweep import sweep as sweep
    from fedgs.tasks.metrics import Metric as Metric
    from fedgs.tasks.task import Task as Task
    from fedgs.tasks.task import classification as classification
    from fedgs.tasks.task import reconstruction as reconstruction
    from fedgs.tasks.task import regression as regression

__version__ = "0.2.0"

_HOMES = {
    "Baseline": "algorithms.baseline",
    "Callback": "simulation.callbacks",
    "Comparison": "simulation.compare",
    "FedGS": "algorithms.fedgs",
    "FedMMD": "algorithms.fedmmd",
    "FedProx": "algorithms.fedprox",
    "Federation": "data.federation",
    "FedgsError": "errors",
    "History": "simulation.history",
    "Metric": "tasks.metrics",
    "SelectionProblem": "selection.problem",
    "Settings": "settings",
    "Task": "tasks.task",
    "classification": "tasks.task",
    "compare": "simulation.compare",
    "load_history": "simulation.history",
    "load_model": "simulation.exported",
    "reconstruction": "tasks.task",
    "regression": "tasks.task",
    "resume": "simulation.run",
    "run": "simulation.run",
    "solve": "selection.solve",
    "sweep": "simulation.sweep",
}
"""In which module each public name lives."""

__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedgs' has no attribute {name!r}")
    value = getattr(import_module(f"fedgs.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
