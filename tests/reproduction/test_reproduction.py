"""What a reproduction was asked for, in the words of a command."""

from pathlib import Path

import pytest

from reproduction.experiments.catalogue import EXPERIMENTS, stages_of
from reproduction.experiments.reproduction import Reproduction


@pytest.mark.parametrize(
    ("reproduction", "asked"),
    [
        (Reproduction(None), "--preset quick"),
        (Reproduction(Path("/home/me/femnist.npz")), "--femnist FILE"),
        (Reproduction(None, (0, 1), 2), "--preset quick --rounds 2 --seeds 0,1"),
        (
            Reproduction(Path("x"), (3,), None, ["training.clip=2", "data.attribute='a b'"]),
            "--femnist FILE --seeds 3 --set training.clip=2 --set 'data.attribute='\"'\"'a b'\"'\"''",
        ),
        (Reproduction(None, overrides=["dynamics.trace=/home/me/a.csv"]), "--preset quick --set dynamics.trace=FILE"),
    ],
)
def test_what_was_asked(reproduction: Reproduction, asked: str) -> None:
    assert reproduction.asked() == asked


def test_every_job_of_all_says_what_would_ask_for_its_experiment_alone() -> None:
    """Which would refuse rounds where nothing is trained, and several seeds where there is one."""
    reproduction = Reproduction(None, (4, 2), 3)
    asked: dict[str, set[str]] = {}
    for job in stages_of("all")[0](reproduction, {}):
        asked.setdefault(job.name.partition("-")[0], set()).add(job.asked)
    assert asked == {
        "initialisers": {"--preset quick --seeds 4"},
        "samplers": {"--preset quick --seeds 4"},
        "table2": {"--preset quick --rounds 3 --seeds 4,2"},
        "surfaces": {"--preset quick --rounds 3 --seeds 4"},
        "fedopt": {"--preset quick --rounds 3 --seeds 4"},
        "beyond": {"--preset quick --rounds 3 --seeds 4,2"},
        "study": {"--preset quick --rounds 3 --seeds 4,2"},
    }
    assert len(asked) == len([experiment for experiment in EXPERIMENTS.values() if experiment.in_all])
