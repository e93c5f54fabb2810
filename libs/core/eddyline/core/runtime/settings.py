"""Settings: the environment as a frozen dataclass, checked once, at start.

Owns the two prefixes of a role (`EDDYLINE_<ROLE>_` and `EDDYLINE_COMMON_`), the five types of settings (`str`, `int`,
`float`, `bool`, `tuple[str, ...]`), the refusal of unknown names, and the printed form with masked secrets. An `int`
whose name has `_BYTES` may have a unit: `4Gi`, `512MiB`, `10GB`. An unknown name with one of these prefixes is refused,
since it is misspelt. Names that Kubernetes injects for a service called `eddyline-<role>` (`..._SERVICE_HOST`,
`..._SERVICE_PORT*`, `..._PORT`, `..._PORT_*`) are ignored, so no setting is named so. A field without default is
required. A dataclass checks its bounds in `__post_init__`, which raises `SettingsError`.
"""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar, get_type_hints

from eddyline.core.runtime.nearest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import ClassVar, Protocol

    class SettingsClass(Protocol):
        """A dataclass."""

        __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[object]]]


COMMON_PREFIX: Final = "EDDYLINE_COMMON_"
LOG_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")
LOG_FORMATS: Final = ("plain", "json")
WIRES: Final = ("grpc", "own")
"""What serves a role's gRPC calls: gRPC's own core, or `eddyline.wire`."""
OTLP_INTERVAL_MS: Final = 15_000
OTLP_INTERVAL_MS_RANGE: Final = (1_000, 3_600_000)
"""OpenTelemetry: a minute. 15 s is the usual scrape interval of Prometheus; an export has some 100 values."""
STORE_SHARDS_MAX: Final = 64
"""Each shard costs every ingest and delivery replica a connection, and every listing of topics or sources a call. The top 16
bits of a topic's id allow more."""
KEY_REQUESTS_MAX: Final = 1_000
"""gRPC: unbounded, so one caller that never waits for answers takes the process from all others. A sixteenth of the calls
that a server accepts."""
KEY_WATCHES_MAX: Final = 1_000
"""A tenth of the watch streams that a delivery replica serves."""
KEY_QUOTA_MAX: Final = 1_000_000

_INJECTED: Final = re.compile(r"(?:.*_)?(?:SERVICE_HOST|SERVICE_PORT(?:_.*)?|PORT(?:_.*)?)")
_CLUSTER_ID: Final = re.compile(r"[!-~]{1,128}")
"""It is sent as gRPC metadata, which allows no other characters."""
_SECRET: Final = re.compile(r"(?:.*_)?(?:SECRET|PASSWORD|TOKEN|KEY|KEYS|CREDENTIALS|CREDS)")
_USERINFO: Final = re.compile(r"(?<=://)[^\s,]+@")
"""To the last @ of a URL: a password that should have been percent-encoded may hold others, and slashes."""
_USERINFO_BARE: Final = re.compile(r"(?:^|(?<=,))(?![a-z]+://)[^\s,]+@")
"""The same in a URL without a scheme."""
_OTLP_URL: Final = re.compile(r"https?://[^\s/@]+:[0-9]{1,5}")
"""No user and password: credentials of a collector are headers."""
_SIZE_NAME: Final = re.compile(r".*_BYTES(?:_.*)?")
_SIZE: Final = re.compile(r"([0-9]+)(?:\.([0-9]{1,9}))?\s*(?:([KMGT])(I?))?B?", re.IGNORECASE)
_TRUE: Final = frozenset(("1", "true", "yes", "on"))
_FALSE: Final = frozenset(("0", "false", "no", "off"))

T = TypeVar("T", bound="SettingsClass")


class SettingsError(Exception):
    """A role refuses its settings. The message has the setting's name and the allowed values."""


@dataclass(frozen=True, slots=True)
class CommonSettings:
    """Settings of every role, by `EDDYLINE_COMMON_` names.

    Roles call each other at `…_addresses`. Clients get `…_advertised_addresses` if there are any: of the stores one a
    shard, or one for all of them.
    """

    cluster_id: str = "local"
    store_addresses: tuple[str, ...] = ("127.0.0.1:7701",)
    ingest_addresses: tuple[str, ...] = ("127.0.0.1:7702",)
    delivery_addresses: tuple[str, ...] = ("127.0.0.1:7703",)
    store_advertised_addresses: tuple[str, ...] = ()
    ingest_advertised_addresses: tuple[str, ...] = ()
    delivery_advertised_addresses: tuple[str, ...] = ()
    log_level: str = "INFO"
    log_format: str = "plain"
    metrics_key_file: str = ""
    otlp_url: str = ""
    otlp_interval_ms: int = OTLP_INTERVAL_MS
    trace_ratio: float = 0.0
    keys_file: str = ""
    key_file: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""
    tls_client_ca: str = ""
    key_requests_max: int = KEY_REQUESTS_MAX
    key_watches_max: int = KEY_WATCHES_MAX
    wire: str = "grpc"

    def __post_init__(self) -> None:
        if not self.cluster_id:
            raise SettingsError(f"{COMMON_PREFIX}CLUSTER_ID is empty")
        if not _CLUSTER_ID.fullmatch(self.cluster_id):
            raise SettingsError(f"{COMMON_PREFIX}CLUSTER_ID must be 1 to 128 printable ASCII characters, no spaces")
        if not 1 <= len(self.store_addresses) <= STORE_SHARDS_MAX:
            raise SettingsError(
                f"{COMMON_PREFIX}STORE_ADDRESSES names {len(self.store_addresses)} shards, not 1 to {STORE_SHARDS_MAX}"
            )
        if len(set(self.store_addresses)) != len(self.store_addresses):
            raise SettingsError(f"{COMMON_PREFIX}STORE_ADDRESSES names an address twice; each is one shard")
        advertised, stores = len(self.store_advertised_addresses), len(self.store_addresses)
        if advertised not in (0, 1, stores):
            raise SettingsError(
                f"{COMMON_PREFIX}STORE_ADVERTISED_ADDRESSES has {advertised} addresses for {stores} stores: "
                f"set one for each, in order, or one for all"
            )
        for role in ("store", "ingest", "delivery"):
            for name in (f"{role}_addresses", f"{role}_advertised_addresses"):
                for address in getattr(self, name):
                    check_address(f"{COMMON_PREFIX}{name.upper()}", address)
        check_choice(f"{COMMON_PREFIX}LOG_LEVEL", self.log_level, LOG_LEVELS)
        check_choice(f"{COMMON_PREFIX}LOG_FORMAT", self.log_format, LOG_FORMATS)
        check_choice(f"{COMMON_PREFIX}WIRE", self.wire, WIRES)
        if self.otlp_url and not _OTLP_URL.fullmatch(self.otlp_url):
            raise SettingsError(f"{COMMON_PREFIX}OTLP_URL is not http://host:port or https://host:port")
        check_range(f"{COMMON_PREFIX}OTLP_INTERVAL_MS", self.otlp_interval_ms, *OTLP_INTERVAL_MS_RANGE)
        check_range(f"{COMMON_PREFIX}TRACE_RATIO", self.trace_ratio, 0, 1)
        if self.trace_ratio and not self.otlp_url:
            raise SettingsError(f"{COMMON_PREFIX}TRACE_RATIO needs {COMMON_PREFIX}OTLP_URL, the traces' collector")
        if bool(self.tls_cert) is not bool(self.tls_key):
            raise SettingsError(
                f"{COMMON_PREFIX}TLS_CERT and {COMMON_PREFIX}TLS_KEY go together; one of them is not set"
            )
        if self.tls_client_ca and not self.tls_cert:
            raise SettingsError(f"{COMMON_PREFIX}TLS_CLIENT_CA needs {COMMON_PREFIX}TLS_CERT too")
        check_range(f"{COMMON_PREFIX}KEY_REQUESTS_MAX", self.key_requests_max, 0, KEY_QUOTA_MAX)
        check_range(f"{COMMON_PREFIX}KEY_WATCHES_MAX", self.key_watches_max, 0, KEY_QUOTA_MAX)


def load_settings(settings_class: type[T], *, prefix: str, environ: Mapping[str, str]) -> T:
    """Read a frozen dataclass from the names `prefix` + field name in capitals.

    Raises:
        SettingsError: an unknown name with this prefix, a missing required setting, or a value that is not of its type
            or out of its bounds.
    """
    hints = get_type_hints(settings_class)
    fields = {prefix + field.name.upper(): field for field in dataclasses.fields(settings_class)}
    for name in fields:
        assert not _INJECTED.fullmatch(name.removeprefix(prefix)), f"{name} is a name that Kubernetes injects"
    _refuse_unknown(fields.keys(), prefix, environ)
    values: dict[str, object] = {}
    for name, field in fields.items():
        if name in environ:
            values[field.name] = _parse(name, environ[name], hints[field.name])
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise SettingsError(f"{name} is required")
    return settings_class(**values)


def load_common(environ: Mapping[str, str]) -> CommonSettings:
    """Read the settings that all roles share.

    Raises:
        SettingsError: as `load_settings`.
    """
    return load_settings(CommonSettings, prefix=COMMON_PREFIX, environ=environ)


def masked(settings: SettingsClass, *, prefix: str) -> dict[str, str]:
    """Return printable settings by name; secrets and the user part of URLs are `***`."""
    texts: dict[str, str] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        text = ",".join(value) if isinstance(value, tuple) else str(value)
        name = field.name.upper()
        if name.endswith("URL"):
            text = _USERINFO_BARE.sub("***@", text)
        texts[prefix + name] = "***" if text and _SECRET.fullmatch(name) else _USERINFO.sub("***@", text)
    return texts


def non_default(settings: SettingsClass, *, prefix: str) -> dict[str, str]:
    """Return the settings that differ from their defaults, masked, for the log at the start of a role."""
    defaults = {prefix + field.name.upper(): field.default for field in dataclasses.fields(settings)}
    values = {prefix + field.name.upper(): getattr(settings, field.name) for field in dataclasses.fields(settings)}
    return {name: text for name, text in masked(settings, prefix=prefix).items() if values[name] != defaults[name]}


def check_address(name: str, address: str) -> None:
    """Refuse an address that is not `host:port`.

    Raises:
        SettingsError: with the setting's `name`.
    """
    host, colon, port = address.rpartition(":")
    is_port = port.isascii() and port.isdecimal() and int(port) <= 65_535
    # The text of a URL would be resolved as a host name, for as long as a role waits for its store.
    if not (host and colon and is_port) or "/" in host:
        raise SettingsError(f"{name} is {address!r}, not host:port")


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a value that is none of `choices`.

    Raises:
        SettingsError: with the setting's `name`.
    """
    if value not in choices:
        raise SettingsError(f"{name} is {value!r}, not one of {', '.join(choices)}")


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Refuse a number outside `low` to `high`, both inclusive.

    Raises:
        SettingsError: with the setting's `name`.
    """
    if not low <= value <= high:
        raise SettingsError(f"{name} is {value}, not within {low} to {high}")


def _refuse_unknown(known: Collection[str], prefix: str, environ: Mapping[str, str]) -> None:
    unknown = sorted(
        name
        for name in environ
        if name.startswith(prefix) and name not in known and not _INJECTED.fullmatch(name.removeprefix(prefix))
    )
    if unknown:
        own = [name.removeprefix(prefix) for name in known]
        meant = [(name, did_you_mean(name.removeprefix(prefix), own, prefix=prefix)) for name in unknown]
        names = ", ".join(f"{name} ({question})" if question else name for name, question in meant)
        # All known names only if one has no suggestion: a list of twenty names hides the right one.
        more = "" if all(question for _, question in meant) else f"; known are: {', '.join(sorted(known))}"
        raise SettingsError(f"unknown setting{'s' * (len(unknown) > 1)}: {names}{more}")


def _parse(name: str, text: str, wanted: object) -> str | int | float | bool | tuple[str, ...]:
    if wanted is str:
        return text
    if wanted == tuple[str, ...]:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    try:
        if wanted is bool:
            return _parse_bool(text)
        if wanted is int:
            return _parse_size(text) if _SIZE_NAME.fullmatch(name) else int(text)
        if wanted is float:
            return _parse_float(text)
    except ValueError:
        allowed = _SIZE_TEXT if _SIZE_NAME.fullmatch(name) else _TYPE_TEXTS[wanted]
        raise SettingsError(f"{name} is {text!r}, not {allowed}") from None
    raise AssertionError(f"{name}: a setting cannot be of type {wanted}")


_TYPE_TEXTS: Final[dict[object, str]] = {bool: "true or false", int: "a whole number", float: "a number"}

_SIZE_TEXT: Final = "a whole number of bytes, or one with a unit (512MiB, 4Gi, 10GB)"

_UNITS: Final = {
    "K": 1000,
    "M": 1000**2,
    "G": 1000**3,
    "T": 1000**4,
    "KI": 1 << 10,
    "MI": 1 << 20,
    "GI": 1 << 30,
    "TI": 1 << 40,
}


def _parse_size(text: str) -> int:
    """Parse bytes: K, M, G, T are powers of 1000, Ki, Mi, Gi, Ti of 1024, as in Kubernetes; a B may follow."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return int(text)
    whole, fraction, letter, binary = match.groups()
    unit = _UNITS[letter.upper() + binary.upper()] if letter else 1
    scale: int = 10 ** len(fraction or "")
    parts, rest = divmod(int(fraction or 0) * unit, scale)
    if rest:
        raise ValueError(text)
    return int(whole) * unit + parts


def _parse_bool(text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise ValueError(text)


def _parse_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number
