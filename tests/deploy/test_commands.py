"""Whatever is wrong with a command of a park is one line and exit code 2."""

from pathlib import Path

import pytest

from fedgs.deploy import pki
from tests.conftest import Here


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("station --listen 0.0.0.0:7000 --state s --insecure", "--insecure works on the loopback only"),
        ("station --listen 127.0.0.1:0 --state s --control 10.0.0.1:1 --insecure", "on the loopback only"),
        ("station --listen nowhere --state s --insecure", "is not an address"),
        ("station --listen 127.0.0.1:0 --state s", "s: ca.crt cannot be read"),
        ("station --listen 127.0.0.1:0 --state s --deadline 0 --insecure", "--deadline 0.0: input should be greater"),
        ("station --listen 127.0.0.1:0 --state s --duplicates both --insecure", "--duplicates both: input should be"),
        ("station --listen 127.0.0.1:0 --state s --insecure --log-level loud", "--log-level loud: input should be"),
        ("station --listen 127.0.0.1:0 --state s --insecure --metrics 127.0.0.1:x", "is not an address"),
        ("device --station 10.0.0.1:1 --id d --source glyphs:1 --insecure", "on the loopback only"),
        ("device --station 127.0.0.1:1 --id d --source glyphs:1", "d: ca.crt cannot be read"),
        ("device --station 127.0.0.1:1 --id d --source nothing --insecure", "expected npz:FILE"),
        ("device --station 127.0.0.1:1 --id d --source os:path --insecure", "'module' object is not callable"),
        ("device --station 127.0.0.1:1 --id d/e --source glyphs:1 --insecure", "device name 'd/e' is not possible"),
        ("device --station 127.0.0.1:1 --id a --source glyphs:1 --certificates b", "of device 'b', not of 'a'"),
        ("device --station 127.0.0.1:1 --id s --source glyphs:1 --certificates s1", "belongs to a station"),
        ("device --station 127.0.0.1:1 --id a --source glyphs:1 --certificates b --insecure", "exclude each other"),
        ("device --station 127.0.0.1:1 --id c --source glyphs:1 --certificates c", "can read this key (mode 640)"),
        ("device --station 127.0.0.1:1 --id c --source no --certificates c --allow-open-keys", "expected npz:FILE"),
        ("top --stations 127.0.0.1:1,127.0.0.1:1 --state t --insecure", "an address is there twice"),
        ("top --stations , --state t --insecure", "name at least one HOST:PORT"),
        ("top --stations no.txt --state t --insecure", "--stations no.txt: neither a file nor an address"),
        ("device --station 127.0.0.1:1,b --id d --source glyphs:1 --insecure", "'b' is not an address"),
        ("top --stations 127.0.0.1:1 --state t --insecure --wire int8", "--wire int8: input should be"),
        ("top --stations 127.0.0.1:1 --state t --insecure --image 28", "--image 28: expected HEIGHTxWIDTH"),
        ("top --stations 127.0.0.1:1 --state t --insecure --target no.json", "not a JSON list of shares"),
        ("top --stations 127.0.0.1:1 --state t --insecure --held-out no.npz", "no.npz: no such file"),
        ("top --stations 127.0.0.1:1 --state t --insecure --min-stations 2", "--min-stations 2 of 1 stations"),
        ("top --stations 127.0.0.1:1 --state t --insecure --listen 0.0.0.0:0", "on the loopback only"),
        ("top --stations 127.0.0.1:1 --state t --certificates t1 --listen 10.0.0.1:0", "names no host"),
        ("status --top nowhere --insecure", "is not an address"),
        ("status --top 127.0.0.1:1 --insecure", "127.0.0.1:1: nobody answers"),
        ("status --top 10.0.0.1:1 --insecure", "on the loopback only"),
        ("status --top 127.0.0.1:1 --certificates b", "belongs to a device, not to an operator"),
        ("status --top 127.0.0.1:1", "pki/operator/operator: ca.crt cannot be read"),
        ("ui --top 127.0.0.1:1 --insecure", "127.0.0.1:1: nobody answers"),
        ("ui --insecure", "are for --top"),
        ("top --stations 127.0.0.1:1 --state t --insecure --set dynamics.leave=0.1", "is for simulations"),
        ("top --stations 127.0.0.1:1 --state t --insecure --set eval.ema=0.5", "is for simulations"),
    ],
)
def test_mistakes_are_one_line(here: Here, tmp_path: Path, arguments: str, reason: str) -> None:
    pki.create_authority(tmp_path / "authority")
    pki.issue(tmp_path / "authority", "device", "b", out=tmp_path / "b")
    pki.issue(tmp_path / "authority", "station", "s1", out=tmp_path / "s1")
    pki.issue(tmp_path / "authority", "device", "c", out=tmp_path / "c")
    (tmp_path / "c" / "key.pem").chmod(0o640)
    pki.issue(tmp_path / "authority", "top", "t1", out=tmp_path / "t1")
    code, _, err = here(*arguments.split())
    assert code == 2
    assert reason in err, err
    assert err.count("\n") == 1


def test_a_port_that_is_taken(here: Here) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, _, err = here("station", "--listen", address, "--state", "s", "--insecure")
    assert code == 2
    assert f"--listen {address}: cannot be listened on" in err
