import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509

from fedgs.deploy import pki
from fedgs.deploy.pki import Bundle, Identity, identity_of, parse_uri
from fedgs.deploy.revocation import Certificates
from fedgs.deploy.transport import check_plain, split_address
from fedgs.errors import IdentityError, OutputError, PeerError
from tests.conftest import Here


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_keys_are_their_owners_alone_and_nothing_is_overwritten(tmp_path: Path) -> None:
    pki.create_authority(tmp_path)
    bundle = pki.issue(tmp_path, "device", "camera-1")
    assert mode(tmp_path / "ca.key") == mode(bundle / "key.pem") == 0o600
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(OutputError, match=r"ca\.crt: exists already"):
        pki.create_authority(tmp_path)
    with pytest.raises(OutputError, match="exists already; add --renew"):
        pki.issue(tmp_path, "device", "camera-1")
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    pki.issue(tmp_path, "device", "camera-1", renew=True)
    assert (bundle / "key.pem").read_bytes() != before[bundle / "key.pem"]
    assert mode(bundle / "key.pem") == 0o600
    assert Bundle(bundle).check("device") == Identity("park", "device", "camera-1")
    assert not list(tmp_path.rglob(".*"))
    first, elsewhere = pki.read_certificate(bundle / "cert.pem"), tmp_path / "elsewhere"
    pki.issue(tmp_path, "device", "camera-1", out=elsewhere)
    for folder in (bundle, elsewhere):  # whoever has the older one is refused, and the list goes with the newer one
        assert "superseded" in Certificates(folder).fault(first)
    assert not Certificates(elsewhere).fault(pki.read_certificate(elsewhere / "cert.pem"))
    (tmp_path / "ca.key").chmod(0o640)
    with pytest.raises(IdentityError, match=r"ca\.key: other users can read this key \(mode 640\)"):
        pki.issue(tmp_path, "device", "camera-2")


SERVICE = """
import os, sys
from pathlib import Path
from fedgs.deploy.pki import Bundle
os.setgroups([]), os.setgid(10001), os.setuid(10001)
print(Bundle(Path(".")).fault("device"))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a key away")
def test_a_key_of_root_may_be_readable_for_the_group_of_a_service(tmp_path: Path) -> None:
    """As Kubernetes and systemd hand it over; a key that all users can read is refused."""
    pki.create_authority(tmp_path)
    bundle = pki.issue(tmp_path, "device", "d")
    os.chown(bundle / "key.pem", 0, 10001)
    faults = []
    for permissions in (0o440, 0o444):
        (bundle / "key.pem").chmod(permissions)
        found = subprocess.run([sys.executable, "-c", SERVICE], cwd=bundle, capture_output=True, text=True, check=True)
        faults.append(found.stdout.strip())
    assert faults[0] == ""
    assert "mode 444" in faults[1]


def test_a_certificate_says_who_it_is_and_what_it_is_for(tmp_path: Path) -> None:
    pki.create_authority(tmp_path, park="harbour")
    station = pki.issue(tmp_path, "station", "s1", ["s1.example", "10.0.0.7"], days=2)
    certificate = pki.read_certificate(station / "cert.pem")
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == ["spiffe://harbour/station/s1"]
    assert names.get_values_for_type(x509.DNSName) == ["s1.example"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7"]
    uses = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert x509.ExtendedKeyUsageOID.SERVER_AUTH in uses
    lifetime = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    assert lifetime.total_seconds() == 2 * 86400 + 300
    device = pki.read_certificate(pki.issue(tmp_path, "device", "d") / "cert.pem")
    uses = device.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert x509.ExtendedKeyUsageOID.SERVER_AUTH not in uses
    device.verify_directly_issued_by(pki.read_certificate(tmp_path / "ca.crt"))


def test_bundles_that_cannot_be_used_are_refused_in_a_line(tmp_path: Path) -> None:
    pki.create_authority(tmp_path)
    bundle = pki.issue(tmp_path, "device", "d")
    with pytest.raises(IdentityError, match="belongs to a device, not to a station"):
        Bundle(bundle).check("station")
    with pytest.raises(IdentityError, match="expired on"):
        Bundle(pki.issue(tmp_path, "device", "old", days=-1)).check("device")
    with pytest.raises(IdentityError, match=r"ca\.crt cannot be read"):
        Bundle(tmp_path / "nowhere").check("device")
    other = pki.issue(tmp_path, "device", "e")
    (bundle / "key.pem").write_bytes((other / "key.pem").read_bytes())
    with pytest.raises(IdentityError, match="is not the key of"):
        Bundle(bundle).check("device")
    (bundle / "key.pem").write_text("no key")
    with pytest.raises(IdentityError, match="cannot be read as a key"):
        Bundle(bundle).check("device")
    (tmp_path / "ca.key").write_bytes((other / "key.pem").read_bytes())
    with pytest.raises(IdentityError, match=r"is not the key of ca\.crt"):
        pki.issue(tmp_path, "device", "f")


def test_names_and_identities_that_cannot_be_are_refused() -> None:
    assert parse_uri("spiffe://park/device/a.b-c_1").name == "a.b-c_1"
    for uri in ("spiffe://park/device/../x", "spiffe://park/robot/x", "https://park/device/x", "spiffe://p/device/a/b"):
        with pytest.raises(IdentityError):
            parse_uri(uri)
    with pytest.raises(IdentityError, match="2 identities"):
        identity_of([b"spiffe://park/device/a", b"spiffe://park/device/b", b"localhost"])
    with pytest.raises(IdentityError, match="0 identities"):
        identity_of([b"localhost"])


def test_plain_text_is_for_the_loopback_only() -> None:
    for address in ("127.0.0.1:1", "localhost:1", "[::1]:1", "127.8.8.8:1"):
        check_plain(address)
    for address in ("0.0.0.0:1", "192.168.1.5:1", "example.org:1", "[::]:1"):
        with pytest.raises(PeerError, match="works on the loopback only"):
            check_plain(address)
    for address in ("7070", "host:", ":7070", "host:http", "host:99999"):
        with pytest.raises(PeerError, match="expected HOST:PORT"):
            split_address(address)


def test_a_certificate_in_its_last_days_warns_and_an_expired_one_is_named(tmp_path: Path) -> None:
    pki.create_authority(tmp_path)
    bundle = Bundle(pki.issue(tmp_path, "device", "a", days=30))
    assert bundle.ending() == bundle.fault("device") == ""
    assert "belongs to a device" in bundle.fault("top")
    pki.issue(tmp_path, "device", "a", days=0.0003, renew=True)  # 26 seconds, after the 5 minutes before
    assert "cert.pem: expires on" in bundle.ending()
    assert bundle.fault("device") == ""
    pki.issue(tmp_path, "device", "a", days=-1, renew=True)
    assert "cert.pem: expired on" in bundle.ending()
    assert "expired on" in bundle.fault("device")


def test_a_renewal_keeps_the_hosts(here: Here, tmp_path: Path) -> None:
    assert here("pki", "init")[0] == 0
    for role, name in (("station", "s1"), ("superlink", "superlink")):
        certificate = tmp_path / "pki" / role / name / "cert.pem"
        assert here("pki", role, name, "--host", "s1.example", "--host", "10.0.0.7")[0] == 0
        first = pki.read_certificate(certificate)
        code, out, _ = here("pki", role, name, "--renew")
        assert code == 0
        assert "the same hosts: s1.example, 10.0.0.7" in out
        assert pki.hosts_in(pki.read_certificate(certificate)) == ["s1.example", "10.0.0.7"]
        assert pki.read_certificate(certificate) != first
        assert here("pki", role, name, "--renew", "--host", "other.example")[0] == 0
        assert pki.hosts_in(pki.read_certificate(certificate)) == ["other.example"]


def test_the_commands(here: Here, tmp_path: Path) -> None:
    assert here("pki", "init", "--park", "harbour")[0] == 0
    assert here("pki", "station", "s1", "--host", "s1.example")[0] == 0
    code, out, _ = here("pki", "device", "a", "b", "--days", "7")
    assert code == 0
    assert "certificate of device 'a', valid for 7 days" in out
    assert here("pki", "top")[0] == 0
    assert sorted(path.parent.name for path in tmp_path.rglob("cert.pem")) == ["a", "b", "s1", "top"]
    for arguments, reason in (
        (("pki", "init"), "exists already"),
        (("pki", "device", "a"), "add --renew"),
        (("pki", "device", "x/y"), "device name 'x/y' is not possible"),
        (("pki", "device", "c", "--pki", "nowhere"), "make an authority with: fedgs pki init"),
        (("pki", "device", "c", "d", "--out", "z"), "--out holds one bundle"),
        (("pki", "station", "s2", "--host", "http://x"), "neither a name nor an address"),
        (("pki", "station", "s2", "--days", "nan"), "--days nan: a certificate is valid for 36525 days"),
        (("pki", "station", "s2", "--days", "1e12"), "--days 1e+12: a certificate is valid for 36525 days"),
        (("pki", "init", "--pki", "new", "--days", "nan"), "--days nan: a certificate is valid for 36525 days"),
        (("pki", "device", "e", "f", "e"), "device 'e' is named twice"),
        (("pki", "device", "e", "a"), "add --renew"),
        (("pki", "revoke", "a", "nobody"), "no certificate of 'nobody'"),
    ):
        code, _, err = here(*arguments)
        assert code == 2
        assert reason in err
        assert err.count("\n") == 1
    # Where one name is refused nothing is done for the others.
    assert sorted(path.parent.name for path in tmp_path.rglob("cert.pem")) == ["a", "b", "s1", "top"]
    assert not (tmp_path / "pki" / "revoked.pem").exists()
    assert not (tmp_path / "new").exists()
