"""Federated learning in factories: group client selection, fast simulation, real deployment.

Implements and extends FedGS (Li, He, Yu, Kang, Li, Xu, Niyato: "Data Heterogeneity-Robust Federated
Learning via Group Client Selection in Industrial IoT", IEEE Internet of Things Journal, 2022).

Importing the package loads nothing heavy; each room (``fedgs.selection``, …) is imported by itself.
"""

__version__ = "0.1.0"
