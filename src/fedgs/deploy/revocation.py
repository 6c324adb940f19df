"""Certificates that are no longer good: expired, revoked, or superseded by a newer one of the same owner.

    pki/issued.jsonl   what the authority has signed, a line each; it stays with ca.key
    revoked.pem        an X.509 revocation list, signed by the authority; a copy goes into every bundle

``fedgs pki revoke`` and ``--renew`` write the list. Copied into a bundle's folder it counts at once: servers look at it
at each handshake, clients at each connection, and both every ``EVERY`` seconds, for those that are open. A list that is
not signed by the authority, or is older than the one before, is not used.
"""

import asyncio
import datetime
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from fedgs.deploy.logs import log
from fedgs.errors import IdentityError

ISSUED, LIST = "issued.jsonl", "revoked.pem"
EVERY = 2.0
"""Seconds between two looks at open connections."""


def now() -> datetime.datetime:
    """Return the time of day."""
    return datetime.datetime.now(datetime.UTC)


def serials_of(folder: Path, uris: Iterable[str]) -> list[int]:
    """Return the numbers of the certificates that an authority has signed for some identities and that still count."""
    wanted, found = set(uris), []
    with suppress(FileNotFoundError):
        for line in (folder / ISSUED).read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            if entry["uri"] in wanted and datetime.datetime.fromisoformat(entry["expires"]) > now():
                found.append(int(entry["serial"], 16))
    return found


def note_issued(folder: Path, uri: str, certificate: x509.Certificate) -> None:
    """Remember a certificate that was signed."""
    expires = certificate.not_valid_after_utc.isoformat()
    with (folder / ISSUED).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"uri": uri, "serial": f"{certificate.serial_number:x}", "expires": expires}) + "\n")


def revocation_list(authority: Any, before: Path, serials: Sequence[int]) -> bytes:
    """Return a signed list of these certificates and those of the list ``before``, as PEM."""
    old = x509.load_pem_x509_crl(before.read_bytes()) if before.exists() else None
    entries = {entry.serial_number: entry for entry in old or ()}
    for serial in serials:
        if serial not in entries:
            entries[serial] = x509.RevokedCertificateBuilder(serial, now()).build()
    number = 1 + (_number(old) if old is not None else 0)
    builder = x509.CertificateRevocationListBuilder(
        authority.certificate.subject, now(), authority.certificate.not_valid_after_utc, revoked_certificates=[]
    ).add_extension(x509.CRLNumber(number), critical=False)
    for entry in entries.values():
        builder = builder.add_revoked_certificate(entry)
    return builder.sign(authority.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _parsed(content: bytes) -> x509.CertificateRevocationList:
    try:
        return x509.load_pem_x509_crl(content)
    except ValueError:
        raise ValueError("it is broken") from None


def _number(found: x509.CertificateRevocationList) -> int:
    return int(found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number)


class Certificates:
    """Which certificates are good now, and the open connections of others; ``folder`` None: plain text, all are."""

    def __init__(self, folder: Path | None) -> None:
        self._folder, self._list = folder, None if folder is None else folder / LIST
        self._stamp = 0
        self._found: x509.CertificateRevocationList | None = None
        self._open: dict[object, tuple[x509.Certificate, Callable[[str], None]]] = {}
        self._read(begin=True)

    def fault(self, certificate: x509.Certificate) -> str:
        """Return why a certificate is not good; "" where it is."""
        if certificate.not_valid_after_utc <= now():
            return f"the certificate has expired on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
        self._read()
        if self._found and self._found.get_revoked_certificate_by_serial_number(certificate.serial_number):
            return "the certificate is revoked, or superseded by a newer one"
        return ""

    @contextmanager
    def watched(self, pem: Sequence[bytes], end: Callable[[str], None]) -> Iterator[None]:
        """Refuse a certificate that is not good; while the block lasts, call ``end`` once it is not any more."""
        if self._folder is None:
            yield
            return
        certificate = x509.load_pem_x509_certificate(pem[0])
        fault = self.fault(certificate)
        if fault:
            raise IdentityError(fault)
        key = object()
        self._open[key] = certificate, end
        try:
            yield
        finally:
            del self._open[key]

    async def watch(self) -> None:
        """End connections whose certificates are no longer good, for ever."""
        told = self._found
        while True:
            await asyncio.sleep(EVERY)
            self._read()
            if self._found is not None and self._found is not told:
                told = self._found
                log.info("revocation list", certificates=len(told))
            for certificate, end in list(self._open.values()):
                fault = self.fault(certificate)
                if fault:
                    end(fault)

    def _read(self, begin: bool = False) -> None:
        """Read the list where it has changed; one that is not good leaves the one before in force.

        At the beginning there is none before, and whoever is revoked would be let in: an :class:`IdentityError`.
        """
        try:
            stamp = 0 if self._list is None else self._list.stat().st_mtime_ns
        except OSError:
            return  # none yet; where there was one, it still counts
        if self._list is None or self._folder is None or stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            content = self._list.read_bytes()
            if not content.strip():  # none yet, as an empty file: a systemd unit has one in any case
                return
            found = _parsed(content)
            authority = x509.load_pem_x509_certificate((self._folder / "ca.crt").read_bytes())
            if not found.is_signature_valid(authority.public_key()):  # type: ignore[arg-type]
                raise ValueError("it is not signed by the authority")
            if self._found is not None and _number(found) < _number(self._found):
                raise ValueError("it is older than the one before")
        except (OSError, ValueError, x509.ExtensionNotFound) as error:
            if begin:
                raise IdentityError(f"{self._list}: cannot be used, {error}; copy the revocation list again") from None
            log.error("revocation list is not used", file=str(self._list), reason=str(error))
            return
        self._found = found
