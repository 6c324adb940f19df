"""What the rest of the package does for Flower, with or without it installed."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedgs.deploy import pki
from fedgs.deploy.pki import Bundle
from fedgs.deploy.process import PARENT
from fedgs.errors import IdentityError, OutputError
from tests.conftest import Here
from tests.deploy.processes import wait_for
from tests.deploy.test_pki import mode


def test_without_flower_a_park_says_what_to_install(
    here: Here, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("fedgs.cli.deploy.find_spec", lambda name: None if name == "flwr" else find_spec(name))
    code, _, err = here("park", "up", "--flower", "--out", "park")
    assert code == 2
    assert err == "fedgs: error: --flower needs Flower, which is not installed; run: pip install 'fedgs[flower]'\n"
    assert not (tmp_path / "park").exists()


def test_no_run_is_for_flower(here: Here) -> None:
    code, _, err = here("park", "up", "--no-run")
    assert code == 2
    assert "--no-run is for --flower" in err


def test_a_supernode_has_a_key_that_flower_can_read_and_nobody_else(here: Here, tmp_path: Path) -> None:
    assert here("pki", "init")[0] == 0
    code, out, _ = here("pki", "supernode", "s1")
    assert code == 0
    assert "register key.pub" in out
    bundle = tmp_path / "pki/supernode/s1"
    assert mode(bundle / "key") == 0o600
    private = serialization.load_ssh_private_key((bundle / "key").read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    public = serialization.load_ssh_public_key((bundle / "key.pub").read_bytes())
    assert public == private.public_key()
    assert (bundle / "ca.crt").read_bytes() == (tmp_path / "pki/ca.crt").read_bytes()
    code, _, err = here("pki", "supernode", "s1")
    assert code == 2
    assert "exists already; add --renew" in err
    before = (bundle / "key").read_bytes()
    assert here("pki", "supernode", "s1", "--renew")[0] == 0
    assert (bundle / "key").read_bytes() != before
    with pytest.raises(OutputError, match="exists already"):
        pki.issue_node_key(tmp_path / "pki", "s1")


def uses(bundle: Path) -> Any:
    certificate = pki.read_certificate(bundle / "cert.pem")
    return certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value


def test_a_superlink_serves_and_nothing_else(here: Here, tmp_path: Path) -> None:
    here("pki", "init")
    assert here("pki", "superlink", "--host", "superlink.example", "--host", "10.0.0.9")[0] == 0
    bundle = tmp_path / "pki/superlink/superlink"
    assert list(uses(bundle)) == [x509.ExtendedKeyUsageOID.SERVER_AUTH]
    names = pki.read_certificate(bundle / "cert.pem").extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert names.value.get_values_for_type(x509.DNSName) == ["superlink.example"]
    with pytest.raises(IdentityError, match="belongs to a superlink, not to a top"):
        Bundle(bundle).check("top")


def test_a_command_that_knows_nothing_of_it_ends_with_its_parent() -> None:
    code = f"""if True:
        import os, subprocess, sys
        os.environ[{PARENT!r}] = str(os.getpid())
        child = subprocess.Popen([sys.executable, "-m", "fedgs.deploy.process", "sleep", "60"])
        print(child.pid, flush=True)
        os.kill(os.getpid(), 9)
    """
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=30, check=False)
    assert done.returncode == -9
    wait_for(lambda: not _runs(int(done.stdout)), 20, "the grandchild to end")


def test_a_command_with_its_parent_alive_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fedgs.deploy.process", sys.executable, "-c", "print('ran')"],
        env=os.environ | {PARENT: str(os.getpid())}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "ran\n"


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes() != b""  # empty: it has ended, and nobody has asked
    except OSError:
        return False
