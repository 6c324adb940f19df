"""What a failure of the program leaves in the log."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from fedgs.deploy import logs


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before, level, propagate = list(logs.log.handlers), logs.log.level, logs.log.propagate
    yield
    logs.log.handlers[:], logs.log.propagate = before, propagate
    logs.log.setLevel(level)


def logged(as_json: bool) -> str:
    out = io.StringIO()
    logs.set_up("info", as_json, out)
    try:
        raise KeyError("weights")
    except KeyError:
        logs.log.exception("stream failed", extra={"device": "a"})
    return out.getvalue()


def test_an_exception_is_logged_with_type_message_and_traceback() -> None:
    first, *rest = logged(as_json=False).splitlines()
    assert first.endswith("ERROR   stream failed  device=a")
    assert rest[0].startswith("Traceback")
    assert rest[-1] == "KeyError: 'weights'"
    line = json.loads(logged(as_json=True))
    assert (line["event"], line["device"], line["error"]) == ("stream failed", "a", "KeyError: 'weights'")
    assert "in logged" in line["traceback"]


def test_other_lines_have_none() -> None:
    out = io.StringIO()
    logs.set_up("info", True, out)
    logs.log.log(logging.INFO, "device joined")
    assert json.loads(out.getvalue()).keys() == {"time", "level", "event"}
