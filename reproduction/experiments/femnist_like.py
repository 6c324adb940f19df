"""Labels as FEMNIST has them, drawn instead of downloaded: for questions that need class counts and no images.

FEMNIST's writers filled in the same form (NIST Special Database 19), and its class skew follows from that form: 13
places for each digit, one for each capital and each small letter, and, in three of its seven partitions, a box in
which to copy the preamble of the Constitution of the United States. Segmentation lost some of it everywhere. In the
copied text, letters whose two cases look alike carry the label of the capital. Drawn that way a device has about 230
samples, half of them digits: 165 without the text and about 325 with it, as in the real set.
"""

import numpy as np

from fedgs.data.characters import CHARACTERS
from fedgs.data.dataset import DataSet
from fedgs.rng import stream

TEXT = """We, the People of the United States, in order to form a more perfect Union, establish Justice, insure
domestic Tranquility, provide for the common Defense, promote the general Welfare, and secure the Blessings of
Liberty to ourselves and our posterity, do ordain and establish this Constitution for the United States of America."""
CASES_ALIKE = "cijklmopsuvwxyz"
DIGIT_PLACES = 13
READ_DIGIT, READ_LETTER = 0.89, 0.9
"""Shares of the digits and of the single letters that came through."""
TEXT_SHARE = (0.3, 0.95)
"""A writer's share of the copied text that came through lies between these."""
WITH_TEXT = 0.4
"""Share of the writers who copied the text."""


def femnist_like_labels(devices: int = 350, seed: int = 0) -> DataSet:
    """Return a data set of labels with empty images, one client a device; a device does not depend on the others."""
    text = _text_counts()
    form = np.array([DIGIT_PLACES] * 10 + [1] * 52)
    read = np.array([READ_DIGIT] * 10 + [READ_LETTER] * 52)
    labels, clients = [], []
    for device in range(devices):
        random = stream(seed, "femnist-like", device)
        counts = random.binomial(form, read)
        if random.random() < WITH_TEXT:
            counts += random.binomial(text, random.uniform(*TEXT_SHARE))
        labels.append(np.repeat(np.arange(62), counts))
        clients.append(np.full(counts.sum(), device))
    every = np.concatenate(labels).astype(np.uint8)
    return DataSet(
        name="femnist-like labels",
        inputs=np.zeros((len(every), 0, 0), np.uint8),
        targets=every,
        clients=np.concatenate(clients).astype(np.int32),
        client_names=tuple(f"writer{device:05d}" for device in range(devices)),
        classes=tuple(CHARACTERS),
    )


def _text_counts() -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    written = [letter.upper() if letter.lower() in CASES_ALIKE else letter for letter in TEXT if letter.isalpha()]
    return np.array([written.count(character) for character in CHARACTERS])
