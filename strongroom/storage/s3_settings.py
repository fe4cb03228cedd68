"""Where an S3 storage is and how to speak to it: all of it, except secrets, in one URL.

Law: `S3Settings.from_url(settings.to_url()) == settings`.
Credentials come from boto3's usual chain and are refused in a URL, without being repeated.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal
from urllib.parse import parse_qsl, quote, urlsplit

from strongroom.errors import InputError
from strongroom.storage.base import check_key

Checksums = Literal["when_supported", "when_required"]
Encryption = Literal["AES256", "aws:kms"]
LockMode = Literal["GOVERNANCE", "COMPLIANCE"]

MIB = 1 << 20
MIN_PART_BYTES = 5 * MIB  # S3's own least size of a part that is not the last
MAX_PART_BYTES = 5120 * MIB  # S3's own greatest size of a part
_ARCHIVES = {"GLACIER", "DEEP_ARCHIVE"}
_LOCK_DAYS_MAX = 36_500  # S3's own longest retention


@dataclass(frozen=True, kw_only=True, slots=True)
class S3Settings:
    """One prefix of one bucket at one endpoint.

    Attributes:
        bucket: it must exist; strongroom makes none.
        prefix: folder in the bucket, without slashes at its ends; '' means the whole bucket.
        endpoint_url: None for Amazon; `http://127.0.0.1:5000` and the like for others.
        region: None leaves it to boto3's configuration.
        path_style: bucket in the path instead of the host name; most others than Amazon need it.
        checksums: `when_supported` gives the server a CRC-32 of every body, which Amazon checks and
            keeps beside the object. `when_required` works with every store known to us. Either way
            the SHA-256 of the signature covers each body.
        part_bytes: size of the parts of a stream; each stream holds one part in memory. They grow
            with what was sent, so that 10,000 of them are enough.
        connect_timeout_s: seconds to wait for a connection.
        read_timeout_s: seconds to wait for the next bytes to leave or to come.
        storage_class: of objects written in parts or as streams (`STANDARD_IA`); None leaves it to
            the bucket. Archives are refused: what is written is read soon, to be verified.
        encryption: at rest, of every object; None leaves it to the bucket.
        kms_key_id: key of `aws:kms`; None means the account's own.
        lock_mode: keeps objects written in parts or as streams from being deleted; the bucket must
            have been made with object lock.
        lock_days: for how long, in days from the end of the writing.
    """

    bucket: str
    prefix: str = ""
    endpoint_url: str | None = None
    region: str | None = None
    path_style: bool = False
    checksums: Checksums = "when_required"
    part_bytes: int = 16 * MIB
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 10.0
    storage_class: str | None = None
    encryption: Encryption | None = None
    kms_key_id: str | None = None
    lock_mode: LockMode | None = None
    lock_days: int | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}", self.bucket):
            raise InputError(
                f"S3 bucket {self.bucket!r}: expected 2 to 63 of A-Z a-z 0-9 . _ -, "
                "starting with a letter or digit"
            )
        if self.prefix:
            check_key(self.prefix)
        if self.endpoint_url is not None:
            _check_endpoint(self.endpoint_url)
        if self.region is not None and not re.fullmatch(r"[A-Za-z0-9-]+", self.region):
            raise InputError(f"S3 region {self.region!r}: expected letters, digits and '-'")
        if self.checksums not in {"when_supported", "when_required"}:
            raise InputError(
                f"S3 checksums {self.checksums!r}: expected when_supported or when_required"
            )
        if not MIN_PART_BYTES <= self.part_bytes <= MAX_PART_BYTES:
            raise InputError(
                f"S3 part_bytes {self.part_bytes}: expected {MIN_PART_BYTES} to {MAX_PART_BYTES}"
            )
        for name in ("connect_timeout_s", "read_timeout_s"):
            if not 0 < getattr(self, name) <= 3600:  # noqa: PLR2004 -- an hour, for NaN and typing errors
                raise InputError(f"S3 {name} {getattr(self, name)}: expected above 0 to 3600 s")
        self._check_new_objects()

    def _check_new_objects(self) -> None:
        """Refuse what cannot be asked for new objects."""
        if self.storage_class is not None and (
            self.storage_class in _ARCHIVES
            or not re.fullmatch(r"[A-Z0-9][A-Z0-9_-]{0,63}", self.storage_class)
        ):
            raise InputError(
                f"S3 storage_class {self.storage_class!r}: expected a class that can be read at "
                "once, such as STANDARD_IA; tiering archives later what is verified"
            )
        if self.encryption not in {None, "AES256", "aws:kms"}:
            raise InputError(f"S3 encryption {self.encryption!r}: expected AES256 or aws:kms")
        if self.kms_key_id is not None and (
            self.encryption != "aws:kms" or not re.fullmatch(r"[\w:/-]+", self.kms_key_id, re.ASCII)
        ):
            raise InputError(
                f"S3 kms_key_id {self.kms_key_id!r}: expected the id, alias or ARN of a key, "
                "together with encryption=aws:kms"
            )
        if self.lock_mode not in {None, "GOVERNANCE", "COMPLIANCE"}:
            raise InputError(f"S3 lock_mode {self.lock_mode!r}: expected GOVERNANCE or COMPLIANCE")
        if (self.lock_mode is None) != (self.lock_days is None):
            raise InputError("S3 lock_mode and lock_days: expected both of them or neither")
        if self.lock_days is not None and not 1 <= self.lock_days <= _LOCK_DAYS_MAX:
            raise InputError(f"S3 lock_days {self.lock_days}: expected 1 to {_LOCK_DAYS_MAX}")

    def to_url(self) -> str:
        """Return the URL that opens the same place in any process: defaults are left out."""
        place = f"s3://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")
        query = "&".join(
            f"{field.name}={quote(_spelled(getattr(self, field.name)), safe='/:')}"
            for field in fields(self)
            if field.name in _PARAMETERS and getattr(self, field.name) != field.default
        )
        return f"{place}?{query}" if query else place

    @classmethod
    def from_url(cls, url: str) -> S3Settings:
        """Read `s3://bucket/prefix?endpoint_url=...&path_style=true`.

        Raises:
            InputError: not such a URL, a parameter is unknown or given twice, or a value is wrong.
        """
        # The query may hold a secret put there by mistake: no message repeats it.
        shown = url.partition("?")[0].rpartition("@")[2]
        try:
            parts = urlsplit(url)
            pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        except ValueError as error:
            raise InputError(f"S3 URL {shown}: its query cannot be read: {error}") from None
        if parts.scheme != "s3" or parts.fragment:
            raise InputError(f"S3 URL {shown}: expected s3://BUCKET/PREFIX?NAME=VALUE&...")
        if "@" in parts.netloc or ":" in parts.netloc:
            raise InputError(
                f"S3 URL {shown}: expected a bucket alone; credentials come from the environment "
                "or ~/.aws, a host and port belong in the parameter endpoint_url"
            )
        names = [name for name, _ in pairs]
        unknown = sorted(set(names) - set(_PARAMETERS))
        if unknown or len(set(names)) < len(names):
            raise InputError(
                f"S3 URL {shown}: unknown or repeated parameters {', '.join(unknown or names)}; "
                f"expected each at most once of {', '.join(_PARAMETERS)}"
            )
        values = {name: _read(name, text, shown) for name, text in pairs}
        return cls(bucket=parts.netloc, prefix=parts.path.strip("/"), **values)


def _boolean(text: str) -> bool:
    return {"true": True, "false": False}[text]


_PARAMETERS: dict[str, Callable[[str], Any]] = {
    "endpoint_url": str,
    "region": str,
    "path_style": _boolean,
    "checksums": str,
    "part_bytes": int,
    "connect_timeout_s": float,
    "read_timeout_s": float,
    "storage_class": str,
    "encryption": str,
    "kms_key_id": str,
    "lock_mode": str,
    "lock_days": int,
}
"""Every parameter of the URL, and how its value is read."""


def _read(name: str, text: str, shown: str) -> Any:  # noqa: ANN401 -- one type for each parameter
    try:
        return _PARAMETERS[name](text)
    except (KeyError, ValueError):
        expected = "true or false" if name == "path_style" else "a number"
        raise InputError(f"S3 URL {shown}: {name}={text!r}: expected {expected}") from None


def _spelled(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_endpoint(endpoint_url: str) -> None:
    if "@" in endpoint_url:
        raise InputError(
            "S3 endpoint_url: expected no credentials in it; put them into the environment"
        )
    try:
        parts = urlsplit(endpoint_url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.query or parts.fragment:
        raise InputError(
            f"S3 endpoint_url {endpoint_url!r}: expected http://HOST:PORT or https://HOST:PORT"
        )
