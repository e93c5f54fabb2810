"""Login at NATS: servers, credentials and TLS, from the settings.

Credentials, the first of these that is set: base64 of a credentials file's text; a credentials file; the file of an
nkey's seed; user and password (or a token) in the URL; none, or the name in our certificate (the server's
`verify_and_map`). Credentials in a URL are removed from it before anything is dialled, and percent-decoded, which nats-py
does not do.

I1: no text that we make contains a secret: no error, log, status or repr. No secret is written to disk.
I2: if TLS is required (`tls://`, or any TLS setting) nothing is sent to a server before the connection is encrypted.
Failure: a file that is missing or malformed refuses the start, as a SettingsError that names the setting. A credentials
file is read again at each connection, since its contents expire and are renewed; if that fails later on, the contents
read last are used again. It is a small local file, read on the event loop. Certificates likewise: `nats.tls`.
Threading: event loop.
"""

from __future__ import annotations

import base64
import binascii
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, unquote, urlsplit

from eddyline.core.runtime.logging import fields
from eddyline.core.runtime.settings import SettingsError
from eddyline.ingest.config import INBOX_PREFIX, PREFIX
from eddyline.ingest.nats.credentials import CREDENTIALS_BYTES_MAX, Credentials, MalformedCredentials
from eddyline.ingest.nats.tls import NatsTls

if TYPE_CHECKING:
    from collections.abc import Callable

    from eddyline.ingest.config import IngestSettings

    Parse = Callable[[bytes], Credentials]

log = logging.getLogger(__name__)

PORT: Final = 4222
SCHEMES: Final = ("nats", "tls")


@dataclass(frozen=True, slots=True)
class Login:
    """User and password, or a token, from a URL. Empty = none."""

    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class NatsAccess:
    """Parameters of a connection. `servers` contain no secrets; `tls` None = encrypted only if the server insists."""

    servers: tuple[str, ...]
    login: Login = Login()
    credentials: CredentialsSource | None = None
    tls: NatsTls | None = None
    tls_first: bool = False
    inbox_prefix: str = INBOX_PREFIX


class CredentialsSource:
    """Credentials; those of a file are read again for each connection."""

    def __init__(self, credentials: Credentials, *, file: Path | None = None, parse: Parse = Credentials.parse) -> None:
        self._credentials = credentials
        self._file = file
        self._parse = parse
        self._trouble = ""

    def __repr__(self) -> str:
        return f"CredentialsSource({self._file or 'given'})"

    def sign(self, nonce: str) -> bytes:
        """Sign the server's nonce, in base64. nats-py calls this first, so this reads the file."""
        self._read()
        return self._credentials.sign(nonce)

    def jwt(self) -> bytearray:
        """The JWT of the last signature."""
        return bytearray(self._credentials.jwt)

    @property
    def is_nkey(self) -> bool:
        """True = there is no JWT: the public key identifies us."""
        return not self._credentials.jwt

    def public_key(self) -> str:
        """The public key of the last signature."""
        return self._credentials.public_key()

    def _read(self) -> None:
        if self._file is None:
            return
        try:
            self._credentials = self._parse(_read_bytes(self._file))
            self._trouble = ""
        except (OSError, MalformedCredentials) as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                log.warning("nats credentials kept", extra=fields(file=str(self._file), error=self._trouble))


def nats_access(settings: IngestSettings) -> NatsAccess:
    """Build the access from the settings, with every file read and checked.

    Raises:
        SettingsError: one line that names the setting, and no part of a secret.
    """
    split = [_split(part.strip()) for part in settings.nats_url.split(",") if part.strip()]
    if not split:
        raise SettingsError(f"{PREFIX}NATS_URL is empty")
    credentials = _credentials(settings)
    logins = {_login(url) for url in split} - {Login()}
    if len(logins) > 1 and credentials is None:
        raise SettingsError(f"{PREFIX}NATS_URL has different users; all servers of a cluster need the same one")
    return NatsAccess(
        servers=tuple(_without_login(url) for url in split),
        login=logins.pop() if logins and credentials is None else Login(),
        credentials=credentials,
        tls=NatsTls(settings) if _asks_for_tls(settings, split) else None,
        tls_first=settings.nats_tls_first,
        inbox_prefix=settings.nats_inbox_prefix,
    )


def _split(text: str) -> SplitResult:
    url = urlsplit(text if "://" in text else f"nats://{text}")
    try:
        host, port = url.hostname, url.port
    except ValueError:
        host, port = None, None
    if not host or url.scheme not in SCHEMES or url.path not in {"", "/"} or url.query or url.fragment or port == 0:
        # The message leaves the text out: a malformed URL may hold a password anywhere.
        raise SettingsError(
            f"{PREFIX}NATS_URL is not nats://[user:password@]host[:port] or tls://…; percent-encode "
            "@ : / ? # % and , in user and password"
        )
    return url


def _login(url: SplitResult) -> Login:
    if url.username is None:
        return Login()
    if url.password is None:
        return Login(token=unquote(url.username))
    return Login(user=unquote(url.username), password=unquote(url.password))


def _without_login(url: SplitResult) -> str:
    assert url.hostname is not None, "a URL that was split has a host"
    host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
    return f"{url.scheme}://{host}:{url.port or PORT}"


def _credentials(settings: IngestSettings) -> CredentialsSource | None:
    if settings.nats_creds:
        name = f"{PREFIX}NATS_CREDS"
        try:
            text = base64.b64decode("".join(settings.nats_creds.split()), validate=True)
        except (binascii.Error, ValueError):
            raise SettingsError(f"{name} is not base64; set it to `base64 -w0 FILE` of a credentials file") from None
        return CredentialsSource(_parsed(name, text))
    if settings.nats_creds_file:
        return _from_file(f"{PREFIX}NATS_CREDS_FILE", Path(settings.nats_creds_file), Credentials.parse)
    if settings.nats_nkey_file:
        return _from_file(f"{PREFIX}NATS_NKEY_FILE", Path(settings.nats_nkey_file), Credentials.parse_seed)
    return None


def _from_file(name: str, path: Path, parse: Parse) -> CredentialsSource:
    try:
        text = _read_bytes(path)
    except OSError as error:
        raise SettingsError(f"{name} {path} cannot be read: {error.strerror or error}") from None
    return CredentialsSource(_parsed(f"{name} {path}", text, parse), file=path, parse=parse)


def _parsed(where: str, text: bytes, parse: Parse = Credentials.parse) -> Credentials:
    try:
        return parse(text)
    except MalformedCredentials as error:
        raise SettingsError(f"{where}: {error}") from None


def _read_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(CREDENTIALS_BYTES_MAX + 1)


def _asks_for_tls(settings: IngestSettings, urls: list[SplitResult]) -> bool:
    files = (settings.nats_tls_ca, settings.nats_tls_cert, settings.nats_tls_key)
    return settings.nats_tls_first or any(files) or any(url.scheme == "tls" for url in urls)
