"""A private certificate authority for a park, and the short-lived certificates it signs.

    pki/ca.crt  pki/ca.key                       the authority; ca.key stays on the machine that signs
    pki/device/camera-1/ca.crt cert.pem key.pem  a bundle: the whole folder goes to that device, and nothing else does
    pki/supernode/station-1/ca.crt key key.pub   the same for a Flower SuperNode, which is known by its key alone
    pki/issued.jsonl  pki/revoked.pem            what was signed, and what no longer counts

An identity is a park, a role and a name, written into the certificate as a SPIFFE URI, its subject alternative name:
``spiffe://park/device/camera-00007``. The TLS handshake proves it, nothing in a message can change it. The role is in
the certificate twice: there, and as its allowed use, so that a device's certificate cannot serve as a station's. Keys
are P-256, readable by their owner only (0600). Nothing is overwritten unless that is asked for.
"""

import datetime
import ipaddress
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedgs.deploy.revocation import ISSUED, LIST, note_issued, revocation_list, serials_of
from fedgs.errors import IdentityError, OutputError
from fedgs.files import make_folder, write_with_mode

CA_CERTIFICATE, CA_KEY = "ca.crt", "ca.key"
CERTIFICATE, KEY = "cert.pem", "key.pem"
NODE_KEY, NODE_PUBLIC_KEY = "key", "key.pub"
CA_DAYS, LEAF_DAYS = 3650, 30
MOST_DAYS = 36525
LOOPBACK = ("localhost", "127.0.0.1", "::1")
_EARLIER = datetime.timedelta(minutes=5)  # clocks of devices may run a little behind
_OTHERS, _ALL_USERS = 0o077, 0o037
ROLES = ("device", "station", "top", "operator", "superlink")
LONGEST_NAME = 63
_URI = re.compile(r"spiffe://([^/]+)/([^/]+)/([^/]+)")


@dataclass(frozen=True, order=True)
class Identity:
    """One participant of a park."""

    park: str
    role: str
    name: str

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise IdentityError(f"no role {self.role!r}; there are {', '.join(ROLES)}")
        check_name("park", self.park)
        check_name(self.role, self.name)

    @property
    def uri(self) -> str:
        """The URI that stands in the certificate."""
        return f"spiffe://{quote(self.park)}/{self.role}/{quote(self.name)}"

    def __str__(self) -> str:
        return f"{self.role} {self.name}"


def _a(role: str) -> str:
    return f"{'an' if role[0] in 'aeiou' else 'a'} {role}"


def check_name(kind: str, name: str) -> str:
    """Refuse a name that cannot stand in a certificate, a path or a log."""
    if not (0 < len(name) <= LONGEST_NAME and name.isprintable() and name[0].isalnum() and name == name.strip()) or (
        {"/", "\\"} & set(name)
    ):
        raise IdentityError(
            f"{kind} name {name!r} is not possible; up to {LONGEST_NAME} printable characters without / and \\, the "
            "first a letter or digit"
        )
    return name


def parse_uri(uri: str) -> Identity:
    """Return the identity of a URI."""
    found = _URI.fullmatch(uri)
    if not found:
        raise IdentityError(f"{uri!r} is not the identity of a participant; expected spiffe://PARK/ROLE/NAME")
    return Identity(*map(unquote, found.groups()))


def identity_of(names: Iterable[bytes | str]) -> Identity:
    """Return the identity among the subject alternative names of a certificate: exactly one URI."""
    texts = [name.decode("utf-8", "replace") if isinstance(name, bytes) else name for name in names]
    uris = [text for text in texts if text.startswith("spiffe://")]
    if len(uris) != 1:
        raise IdentityError(
            f"the certificate names {len(uris)} identities where there must be one; make it with: fedgs pki"
        )
    return parse_uri(uris[0])


@dataclass(frozen=True)
class Bundle:
    """A certificate, its key and the authority, as files."""

    folder: Path
    open_keys: bool = False
    """Whether other users may be able to read the key."""

    def read(self) -> tuple[bytes, bytes, bytes]:
        """Return authority, certificate and key as PEM."""
        try:
            return (
                (self.folder / CA_CERTIFICATE).read_bytes(),
                (self.folder / CERTIFICATE).read_bytes(),
                (self.folder / KEY).read_bytes(),
            )
        except OSError as error:
            missing = Path(error.filename or self.folder).name
            raise IdentityError(
                f"{self.folder}: {missing} cannot be read ({error.strerror}); make the certificates with: fedgs pki"
            ) from None

    def stamp(self) -> tuple[int, ...]:
        """Return a value that changes when a file does."""
        files = (self.folder / name for name in (CA_CERTIFICATE, CERTIFICATE, KEY))
        return tuple(path.stat().st_mtime_ns for path in files if path.exists())

    def check(self, role: str) -> Identity:
        """Return whose bundle it is; refuse one that is broken, expired or for another role."""
        _, _, key = self.read()
        found = (self.folder / KEY).stat()
        mode = found.st_mode & 0o777
        # Kubernetes and systemd hand a key to a service as root's file that its group can read.
        handed_over = found.st_uid == 0 != os.geteuid()
        if mode & (_ALL_USERS if handed_over else _OTHERS) and not self.open_keys:
            raise IdentityError(
                f"{self.folder / KEY}: other users can read this key (mode {mode:o}); chmod 600 it, or add "
                "--allow-open-keys if that must be"
            )
        certificate = read_certificate(self.folder / CERTIFICATE)
        identity = identity_in(certificate)
        if identity.role != role:
            raise IdentityError(
                f"{self.folder / CERTIFICATE}: belongs to {_a(identity.role)}, not to {_a(role)}; make one with: "
                f"fedgs pki {role}"
            )
        if certificate.not_valid_after_utc < datetime.datetime.now(datetime.UTC):
            raise IdentityError(
                f"{self.folder / CERTIFICATE}: expired on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC; renew "
                "it with: fedgs pki … --renew"
            )
        try:
            own = serialization.load_pem_private_key(key, None).public_key()
        except (ValueError, TypeError) as error:
            raise IdentityError(f"{self.folder / KEY}: cannot be read as a key ({error})") from None
        if own != certificate.public_key():
            raise IdentityError(f"{self.folder / KEY}: is not the key of {CERTIFICATE} beside it")
        return identity

    def fault(self, role: str) -> str:
        """Return what is wrong with the bundle itself, such as that it has expired; empty where nothing is."""
        try:
            self.check(role)
        except IdentityError as error:
            return str(error)
        return ""

    def ending(self) -> str:
        """Return a warning in the last tenth of the certificate's life, the last 3 of 30 days; empty before."""
        certificate = read_certificate(self.folder / CERTIFICATE)
        begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        left = ends - datetime.datetime.now(datetime.UTC)
        if left > (ends - begins) / 10:
            return ""
        word = "expires" if left > datetime.timedelta(0) else "expired"
        return f"{self.folder / CERTIFICATE}: {word} on {ends:%Y-%m-%d %H:%M} UTC; renew it with: fedgs pki … --renew"


@dataclass(frozen=True)
class Authority:
    """The park's certificate authority, key in hand."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    park: str


def create_authority(folder: Path, park: str = "park", days: float = CA_DAYS) -> Authority:
    """Make a new authority in ``folder``; one that is there already is refused."""
    check_name("park", park)
    for name in (CA_CERTIFICATE, CA_KEY):
        if (folder / name).exists():
            raise OutputError(
                f"{folder / name}: exists already, and every certificate of the park hangs on it; choose another folder"
            )
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, park)])
    certificate = (
        _begin(subject, subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    make_folder(folder)
    _write_key(folder / CA_KEY, key)
    write_with_mode(folder / CA_CERTIFICATE, _pem(certificate), 0o644)
    return Authority(certificate, key, park)


def load_authority(folder: Path) -> Authority:
    """Read the authority of a folder."""
    certificate = read_certificate(folder / CA_CERTIFICATE, "make an authority with: fedgs pki init")
    try:
        mode = (folder / CA_KEY).stat().st_mode & 0o777
        key = serialization.load_pem_private_key((folder / CA_KEY).read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise IdentityError(f"{folder / CA_KEY}: the authority's key cannot be read ({error})") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise IdentityError(f"{folder / CA_KEY}: is not the key of {CA_CERTIFICATE} beside it")
    if mode & _OTHERS:
        raise IdentityError(
            f"{folder / CA_KEY}: other users can read this key (mode {mode:o}), and with it be anybody in the park; "
            "chmod 600 it"
        )
    park = str(certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
    return Authority(certificate, key, park)


def issue(
    folder: Path,
    role: str,
    name: str,
    hosts: Sequence[str] = (),
    days: float = LEAF_DAYS,
    *,
    out: Path | None = None,
    renew: bool = False,
) -> Path:
    """Sign a certificate and return the folder of its bundle, ``folder/role/name`` unless ``out`` is given.

    ``hosts``: names and addresses under which a station, a top server (or a Flower SuperLink) is reached. ``days`` may
    be a part of a day.
    """
    authority = load_authority(folder)
    identity = Identity(authority.park, role, name)
    if hosts and role == "device":
        raise IdentityError("a device only connects to others and needs no hosts; leave them out")
    bundle = _bundle(folder / role / name if out is None else out, renew, CERTIFICATE, KEY)
    key = ec.generate_private_key(ec.SECP256R1())
    uses = []
    if role != "superlink":  # which serves Flower's SuperNodes and never connects
        uses.append(ExtendedKeyUsageOID.CLIENT_AUTH)
    if role in ("station", "top", "superlink"):
        uses.append(ExtendedKeyUsageOID.SERVER_AUTH)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(identity.uri)]
    names += [_host(host) for host in hosts]
    certificate = (
        _begin(subject, authority.certificate.subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    make_folder(bundle)
    # The key first: beside a certificate there is always a key, for a moment the one before.
    _write_key(bundle / KEY, key, replace=renew)
    write_with_mode(bundle / CERTIFICATE, _pem(certificate), 0o644, replace=renew)
    write_with_mode(bundle / CA_CERTIFICATE, _pem(authority.certificate), 0o644, replace=True)
    old = serials_of(folder, [identity.uri])  # also of a bundle elsewhere, or one that is lost
    note_issued(folder, identity.uri, certificate)
    if old:
        _write_list(folder, authority, old)
    if (folder / LIST).exists():
        write_with_mode(bundle / LIST, (folder / LIST).read_bytes(), 0o644, replace=True)
    return bundle


def check_new(folder: Path, role: str, names: Sequence[str], renew: bool) -> None:
    """Refuse names of which one could not get a certificate, before any does."""
    authority = load_authority(folder)
    for place, name in enumerate(names):
        Identity(authority.park, role, name)
        if name in names[:place]:
            raise IdentityError(f"{role} {name!r} is named twice; name it once")
        _bundle(folder / role / name, renew, CERTIFICATE, KEY)


def revoke(folder: Path, name: str) -> Identity:
    """Put all certificates of NAME, or of ROLE/NAME, on the revocation list; return whose they were."""
    owner = owner_of(folder, name)
    _write_list(folder, load_authority(folder), serials_of(folder, [owner.uri]))
    return owner


def owner_of(folder: Path, name: str) -> Identity:
    """Return who is called NAME, or ROLE/NAME, and has a certificate that is still valid."""
    authority = load_authority(folder)
    role, _, short = name.rpartition("/")
    identities = [Identity(authority.park, one, short) for one in ([role] if role else ROLES)]
    found = [identity for identity in identities if serials_of(folder, [identity.uri])]
    if not found:
        raise IdentityError(f"{folder / ISSUED}: no certificate of {name!r} that is still valid was signed here")
    if len(found) > 1:
        names = " or ".join(f"{one.role}/{one.name}" for one in found)
        raise IdentityError(f"there are several called {name!r}; say which one: {names}")
    return found[0]


def _write_list(folder: Path, authority: Authority, serials: Sequence[int]) -> None:
    """Write the revocation list of an authority, and a copy into every bundle beside it."""
    content = revocation_list(authority, folder / LIST, serials)
    write_with_mode(folder / LIST, content, 0o644, replace=True)
    for certificate in folder.glob(f"*/*/{CERTIFICATE}"):
        write_with_mode(certificate.parent / LIST, content, 0o644, replace=True)


def issue_node_key(folder: Path, name: str, *, out: Path | None = None, renew: bool = False) -> Path:
    """Make the key pair by which a Flower SuperLink knows a SuperNode, in OpenSSH's format; return its folder."""
    authority = load_authority(folder)
    check_name("supernode", name)
    bundle = _bundle(folder / "supernode" / name if out is None else out, renew, NODE_KEY, NODE_PUBLIC_KEY)
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    make_folder(bundle)
    write_with_mode(bundle / NODE_KEY, private, 0o600, replace=renew)
    write_with_mode(bundle / NODE_PUBLIC_KEY, public + f" {name}\n".encode(), 0o644, replace=renew)
    write_with_mode(bundle / CA_CERTIFICATE, _pem(authority.certificate), 0o644, replace=True)
    return bundle


def read_certificate(path: Path, advice: str = "make it with: fedgs pki") -> x509.Certificate:
    """Read one PEM certificate."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except FileNotFoundError:
        raise IdentityError(f"{path}: no such certificate; {advice}") from None
    except (OSError, ValueError) as error:
        raise IdentityError(f"{path}: cannot be read as a certificate ({error})") from None


def identity_in(certificate: x509.Certificate) -> Identity:
    """Return whose certificate it is."""
    return identity_of(_names_in(certificate, x509.UniformResourceIdentifier))


def hosts_in(certificate: x509.Certificate) -> list[str]:
    """Return the names and addresses under which the owner of a certificate is reached."""
    return [*_names_in(certificate, x509.DNSName), *map(str, _names_in(certificate, x509.IPAddress))]


def _names_in(certificate: x509.Certificate, kind: Any) -> list[Any]:
    """Return the subject alternative names of a kind."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return names.get_values_for_type(kind)


def _bundle(folder: Path, renew: bool, *files: str) -> Path:
    """Return the folder of a bundle; files that are there already are refused unless they are renewed."""
    for name in files:
        if (folder / name).exists() and not renew:
            raise OutputError(f"{folder / name}: exists already; add --renew to replace it")
    return folder


def _begin(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: float
) -> x509.CertificateBuilder:
    if not abs(days) <= MOST_DAYS:  # nor NaN
        raise IdentityError(f"--days {days:g}: a certificate is valid for {MOST_DAYS} days (100 years) at most")
    now = datetime.datetime.now(datetime.UTC)
    lifetime = datetime.timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER + min(lifetime, datetime.timedelta(0)))
        .not_valid_after(now + lifetime)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not host or len(host) > 253 or any(character.isspace() or character in "/:@" for character in host):
        raise IdentityError(f"--host {host!r} is neither a name nor an address; leave out scheme and port")
    return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey, replace: bool = False) -> None:
    content = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_with_mode(path, content, 0o600, replace)
