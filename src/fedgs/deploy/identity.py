"""An identity: a park, a role and a name, written into the certificate as a SPIFFE URI.

    spiffe://park/device/camera-00007

The URI is the certificate's subject alternative name; the TLS handshake proves it, nothing in a message can change it.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from fedgs.errors import IdentityError

Role = Literal["device", "station", "top", "superlink"]
ROLES: tuple[str, ...] = get_args(Role)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
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
        return f"spiffe://{self.park}/{self.role}/{self.name}"

    def __str__(self) -> str:
        return f"{self.role} {self.name}"


def check_name(kind: str, name: str) -> str:
    """Refuse a name that cannot stand in a certificate, a path or a log."""
    if not _NAME.fullmatch(name):
        raise IdentityError(
            f"{kind} name {name!r} is not possible; up to 63 letters, digits, '.', '_' and '-', the first a letter or "
            "digit"
        )
    return name


def parse_uri(uri: str) -> Identity:
    """Return the identity of a URI."""
    found = _URI.fullmatch(uri)
    if not found:
        raise IdentityError(f"{uri!r} is not the identity of a participant; expected spiffe://PARK/ROLE/NAME")
    return Identity(*found.groups())


def identity_of(names: Iterable[bytes | str]) -> Identity:
    """Return the identity among the subject alternative names of a certificate: exactly one URI."""
    texts = [name.decode("utf-8", "replace") if isinstance(name, bytes) else name for name in names]
    uris = [text for text in texts if text.startswith("spiffe://")]
    if len(uris) != 1:
        raise IdentityError(f"the certificate names {len(uris)} identities where there must be one")
    return parse_uri(uris[0])
