import os
import sys
from contextlib import suppress

import pytest

from fedgs.data.parallel import ordered_map, progress_bar
from fedgs.errors import DataError, InputFileError


def refuse_forty(number: int) -> int:
    if number == 40:
        raise InputFileError("forty: not readable")
    return number * number


def die(number: int) -> int:
    os._exit(number)


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_order_and_an_error_of_a_worker_is_the_callers(workers: int) -> None:
    found = ordered_map(refuse_forty, range(50), workers)
    assert [next(found) for _ in range(40)] == [number * number for number in range(40)]
    with pytest.raises(InputFileError, match="forty: not readable"):
        next(found)
    assert list(ordered_map(refuse_forty, [], workers)) == []


def test_a_worker_that_dies() -> None:
    with pytest.raises(DataError, match=r"a worker process died: .*if __name__ == .__main__.:"):
        list(ordered_map(die, [1, 1], 2))


def test_no_bar_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    for shown in (False, True):
        with progress_bar("images", 10, shown) as update:
            update(advance=10)
    assert capsys.readouterr() == ("", "")


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals are a Unix thing")
def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    import pty

    main, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        monkeypatch.setenv("TERM", "xterm")
        with progress_bar("images", 10, shown=True) as update:
            update(advance=4)
    pieces = []
    with suppress(OSError):  # what Linux says at the end of a terminal nobody writes to any more
        while piece := os.read(main, 100_000):  # one read may bring only the beginning
            pieces.append(piece)
    os.close(main)
    shown = b"".join(pieces).decode()
    assert "images" in shown
    assert "4/10" in shown
