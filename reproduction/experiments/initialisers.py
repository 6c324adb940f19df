"""The paper's figure of GBP-CS's initialisers (section VII-B, dist-optim-init-curve): where each start ends.

The paper shows one instance: zero and MPInv end near the optimum, random in a poor local one. Here it is the mean over
many instances of the same federation, beside the proven optimum of the same instances.
"""

from typing import TYPE_CHECKING

from reproduction.experiments.samplers import STARTS, comparison_job

if TYPE_CHECKING:
    from reproduction.experiments.jobs import Job
    from reproduction.experiments.reproduction import Reproduction


def make_jobs(reproduction: "Reproduction") -> "list[Job]":
    """Return the one job of this figure, for the first seed."""
    return [comparison_job(reproduction, "initialisers", "GBP-CS from its three starts", ("exact",), STARTS)]
