"""Base64 with one spelling: what is signed or hashed must not have two forms that mean the same."""

from __future__ import annotations

import base64


def encode_base64(data: bytes) -> str:
    """Return standard base64 with padding (RFC 4648, section 4)."""
    return base64.b64encode(data).decode()


def decode_base64(text: str) -> bytes:
    """Decode what `encode_base64` writes, and nothing else.

    Raises:
        ValueError: not base64, or its spare bits are not zero.
    """
    data = base64.b64decode(text, validate=True)
    if encode_base64(data) != text:
        raise ValueError(f"{text!r} is not the canonical base64 of its bytes")
    return data
