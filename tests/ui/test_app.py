"""What the server of the page answers, over real HTTP: read-only, local names only, a token elsewhere."""

import json
import socket
import ssl
import urllib.request
from pathlib import Path
from urllib.error import HTTPError

import pytest

from tests.conftest import Here, error_of
from tests.ui.conftest import serving


def ask(address: str, method: str = "GET", **headers: str) -> tuple[int, str, dict[str, str]]:
    request = urllib.request.Request(address, method=method, headers=headers)
    context = ssl._create_unverified_context() if address.startswith("https") else None
    try:
        with urllib.request.urlopen(request, timeout=5, context=context) as answer:
            return answer.status, answer.read(2000).decode(), dict(answer.headers)
    except HTTPError as error:
        return error.code, error.read().decode(), dict(error.headers)


def first_events(address: str, count: int) -> list[dict[str, object]]:
    found = []
    with urllib.request.urlopen(f"{address}/stream", timeout=10) as stream:
        for line in stream:
            if line.startswith(b"data: "):
                found.append(json.loads(line[6:]))
            if len(found) == count:
                return found
    raise AssertionError("the stream has ended")


def test_the_stream_tells_all_rounds_once(finished: Path, served: str) -> None:
    facts, news = first_events(served, 3)[::2]
    assert (facts["name"], facts["score"], facts["of_rounds"]) == ("plant", "accuracy", 4)
    assert len(facts["devices"]) == 12  # type: ignore[arg-type]
    assert sum(facts["p_real"]) == pytest.approx(1)  # type: ignore[arg-type]
    lines = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in news["rounds"]] == [0, 1, 2, 3, 4]  # type: ignore[attr-defined]
    assert [line["score"] for line in news["rounds"]] == [line["accuracy"] for line in lines]  # type: ignore[attr-defined]
    assert news["finished"] is True


def test_it_only_shows_and_only_to_this_machine(served: str) -> None:
    status, body, headers = ask(served)
    assert status == 200
    assert "<title>fedgs</title>" in body
    assert "default-src 'self'" in headers["content-security-policy"]
    assert ask(f"{served}/page/app.js")[0] == 200
    assert ask(served, "POST")[0] == 405
    assert ask(served, Host="evil.example")[0] == 400  # another page's name for this machine
    assert ask(f"{served}/page/../app.py")[0] == 404
    assert ask(f"{served}/config.json")[0] == 404


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "nowhere: is neither the folder of a run nor of a park"),
        ([], "no run in this folder"),
        (["{run}", "--listen", "8080"], "expected HOST:PORT"),
        (["{run}", "--listen", "0.0.0.0:0"], "others could read along"),
        (["{run}", "--listen", "127.0.0.1:99999"], "expected HOST:PORT"),
        (["{run}", "--tls-cert", "a.pem"], "belong together"),
        (["{run}", "--tls-cert", "a.pem", "--tls-key", "b.pem"], "no certificate with its key"),
    ],
)
def test_wrong_arguments_are_one_line(finished: Path, here: Here, arguments: list[str], words: str) -> None:
    done = here("ui", *[str(finished) if one == "{run}" else one for one in arguments])
    assert words in error_of(done)


def test_elsewhere_a_token_is_needed(finished: Path, tmp_path: Path) -> None:
    pki = pytest.importorskip("fedgs.deploy.pki")
    pki.create_authority(tmp_path)
    pki.issue(tmp_path, "station", "page", ["127.0.0.1"])
    own = tmp_path / "station" / "page"
    files = ["--tls-cert", own / "cert.pem", "--tls-key", own / "key.pem"]
    with serving(finished, "--listen", "0.0.0.0:0", *files) as address:
        assert address.startswith(f"https://{socket.gethostname()}:")
        address = address.replace(socket.gethostname(), "127.0.0.1", 1)
        bare, _, token = address.partition("/?token=")
        assert len(token) >= 20
        assert ask(bare)[0] == 401
        assert ask(f"{bare}/stream?token=wrong")[0] == 401
        assert ask(f"{bare}/?token=wrong")[0] == 401
        assert ask(bare, Cookie=f"fedgs-token={token}")[0] == 200
