from __future__ import annotations

import pytest

from strongroom.signing.encoding import decode_base64, encode_base64


def test_bytes_survive() -> None:
    assert decode_base64(encode_base64(b"\x00\xff rows")) == b"\x00\xff rows"


# "QR==" and "QQ==" both decode to b"A" elsewhere: two spellings of one signature.
@pytest.mark.parametrize("text", ["QR==", "QQ=", "QQ", "QQ==\n", "Q Q==", "QQ==QQ==", "-_-_", "é"])
def test_a_second_spelling_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"base64|padding|character|ASCII|data"):
        decode_base64(text)
