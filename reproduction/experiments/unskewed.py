"""What skew costs: the same devices, and the same images to test on, with the images to train on dealt out anew.

Every device keeps its factory, its number of train images and its test images; which train images are whose is drawn at
random. So devices and factories have the same class mix but for chance, P_real is what it was, and a run differs from
one with skew by nothing else. With random selection by data it tells what undoing the skew would give; a closer match
than chance makes could come a little further.
"""

from dataclasses import replace

from fedgs.data import Federation
from fedgs.data.dataset import IndexLists
from fedgs.rng import stream

UNSKEWED = "unskewed"


def without_skew(federation: Federation, seed: int) -> Federation:
    """Return the federation with its train images dealt out at random."""
    train = federation.train
    dealt = stream(seed, UNSKEWED).permutation(train.flat)
    return replace(federation, train=IndexLists(dealt, train.offsets))
