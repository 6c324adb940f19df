"""A network's digest on the wire: its weights' names, shapes and types, its bins and its batch size."""

from collections.abc import Iterable, Sequence
from hashlib import blake2b


def network_digest(
    tensors: Iterable[tuple[str, Sequence[int], str]], bins: int, batch_size: int, frozen: bytes = b""
) -> str:
    """Return 16 hexadecimal digits.

    Args:
        tensors: name, shape and type of all weights and buffers.
        bins: that selection balances.
        batch_size: samples of a mini-batch.
        frozen: the bytes of weights that are not trained: they never travel, so both ends must have the same.
    """
    digest = blake2b(digest_size=8)
    for name, shape, kind in sorted(tensors):
        digest.update(f"{name} {tuple(shape)} {kind}\n".encode())
    digest.update(f"{bins} {batch_size}\n".encode())
    digest.update(frozen)
    return digest.hexdigest()
