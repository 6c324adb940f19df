"""Assumption 2 of FedGS: one bandwidth inside, one outside, one SNR; and Proposition 4, which follows from it.

With b = log₂(1 + γ):

    T_FedGS  = 2SM/(b·B_ext) + T·(T_select + 2SL/(b·B_int) + T_comp)      (eq. t_fedgs_simplified)
    T_FedAvg = 2SML/(b·B_ext) + T·T_comp                                  (eq. t_fedavg_simplified)

T_FedGS < T_FedAvg is the exact condition

    (B_ext/B_int)·S·L + T_select·b·B_ext/2 < S·M·(L − 1)/T

and, where the selection takes no time, Proposition 4: T·L/(M·(L − 1)) < B_int/B_ext.
"""

from fedgs.errors import NetworkError
from fedgs.network.checks import positive, whole
from fedgs.network.links import Channel
from fedgs.network.round_time import Park


def exact_condition(park: Park, internal: float, external: float, snr_db: float) -> bool:
    """Return whether FedGS beats FedAvg, the time of the selection counted."""
    for name, value in (("external", external), ("internal", internal)):
        positive(name, value, "Hz")
    _more_than_one(park.pick)
    spent = external / internal * park.model_bits * park.pick
    spent += park.select_seconds * Channel(external, snr_db).rate / 2
    return spent < park.model_bits * park.factories * (park.pick - 1) / park.iterations


def proposition_threshold(factories: int, pick: int, iterations: int) -> float:
    """Return T·L/(M·(L − 1)), which B_int/B_ext must exceed (Proposition 4)."""
    whole("factories", factories)
    whole("iterations", iterations)
    _more_than_one(pick)
    return iterations * pick / (factories * (pick - 1))


def proposition_holds(park: Park, ratio: float) -> bool:
    """Return whether Proposition 4 promises that FedGS beats FedAvg at this B_int/B_ext."""
    return proposition_threshold(park.factories, park.pick, park.iterations) < positive("ratio", ratio)


def _more_than_one(pick: int) -> None:
    if whole("pick", pick) == 1:
        raise NetworkError(
            "pick=1 is impossible in the condition, which divides by L − 1; with one device a factory FedGS sends as "
            "much to the top server as FedAvg does, and more besides: pick 2 or more"
        )
