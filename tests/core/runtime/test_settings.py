"""Settings: accepted, refused, printed."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from eddyline.core.runtime.settings import (
    CommonSettings,
    SettingsError,
    check_range,
    load_common,
    load_settings,
    masked,
    non_default,
)

PREFIX = "EDDYLINE_ROLE_"


@dataclass(frozen=True, slots=True)
class Example:
    data_dir: str
    workers: int = 2
    memory_bytes: int = 0
    scrub_bytes_per_s: int = 0
    window_ms: float = 0.5
    sync: bool = True
    names: tuple[str, ...] = ()
    nats_url: str = "nats://127.0.0.1:4222"
    api_key: str = ""

    def __post_init__(self) -> None:
        check_range(f"{PREFIX}WORKERS", self.workers, 1, 8)


def loaded(**environ: str) -> Example:
    names = {PREFIX + name: value for name, value in environ.items()}
    return load_settings(Example, prefix=PREFIX, environ={"PATH": "/bin", PREFIX + "DATA_DIR": "/d"} | names)


def test_unset_names_keep_their_defaults() -> None:
    assert loaded() == Example(data_dir="/d")


def test_every_type_is_read() -> None:
    assert loaded(WORKERS="7", WINDOW_MS="2.5", SYNC="off", NAMES="a, b,,c") == Example(
        data_dir="/d", workers=7, window_ms=2.5, sync=False, names=("a", "b", "c")
    )


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("4Gi", 4 << 30),
        ("4GiB", 4 << 30),
        ("512 MiB", 512 << 20),
        ("10GB", 10_000_000_000),
        ("10k", 10_000),
        ("1.5Gi", 3 << 29),
        ("2T", 2_000_000_000_000),
        ("7B", 7),
    ],
)
def test_size_has_a_unit_or_is_a_number_of_bytes(text: str, size: int) -> None:
    assert loaded(MEMORY_BYTES=text).memory_bytes == size
    assert loaded(SCRUB_BYTES_PER_S=text).scrub_bytes_per_s == size


def test_a_missing_required_setting_is_named() -> None:
    with pytest.raises(SettingsError, match="EDDYLINE_ROLE_DATA_DIR is required"):
        load_settings(Example, prefix=PREFIX, environ={})


def test_a_misspelt_name_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(
        SettingsError, match=r"^unknown setting: EDDYLINE_ROLE_WORKER \(did you mean EDDYLINE_ROLE_WORKERS"
    ):
        loaded(WORKER="3")
    with pytest.raises(
        SettingsError, match=r"^unknown settings: EDDYLINE_ROLE_QQ, .*; known are: .*EDDYLINE_ROLE_WORKERS"
    ):
        loaded(WORKER="3", QQ="1")


@pytest.mark.parametrize(
    "name",
    [
        "SERVICE_HOST",
        "SERVICE_PORT",
        "SERVICE_PORT_GRPC",
        "PORT",
        "PORT_7701_TCP",
        "PORT_7701_TCP_ADDR",
        "0_SERVICE_HOST",
    ],
)
def test_names_injected_by_kubernetes_are_ignored(name: str) -> None:
    assert loaded(**{name: "tcp://10.0.0.1:7701"}) == Example(data_dir="/d")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("WORKERS", "two", "not a whole number"),
        ("WORKERS", "2.5", "not a whole number"),
        ("WORKERS", "9", "not within 1 to 8"),
        ("WINDOW_MS", "x", "not a number"),
        ("WINDOW_MS", "nan", "not a number"),
        ("WINDOW_MS", "inf", "not a number"),
        ("SYNC", "maybe", "not true or false"),
        ("WORKERS", "4Ki", "not a whole number"),
        *[("MEMORY_BYTES", text, r"a unit \(512MiB") for text in ("", "x", "4 Zi", "1.5", "0.3Ki", "1e9", "1.5.5G")],
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_by_name(name: str, value: str, words: str) -> None:
    with pytest.raises(SettingsError, match=f"{PREFIX}{name} is .*{words}"):
        loaded(**{name: value})


def test_secrets_are_masked() -> None:
    printed = masked(loaded(API_KEY="hush", NATS_URL="nats://me:hush@host:4222", NAMES="a,b"), prefix=PREFIX)
    assert "hush" not in str(printed)
    assert printed["EDDYLINE_ROLE_API_KEY"] == "***"
    assert printed["EDDYLINE_ROLE_NATS_URL"] == "nats://***@host:4222"
    assert printed["EDDYLINE_ROLE_NAMES"] == "a,b"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("me:hush@host:4222", "***@host:4222"),
        ("nats://me:hu@sh/hush@host,nats://you:hush@other", "nats://***@host,nats://***@other"),
        ("host:4222,me:hush@other", "host:4222,***@other"),
        ("nats://host,tls://[::1]:4222", "nats://host,tls://[::1]:4222"),
    ],
)
def test_a_password_is_masked_in_any_form_of_a_url(url: str, shown: str) -> None:
    assert masked(loaded(NATS_URL=url), prefix=PREFIX)["EDDYLINE_ROLE_NATS_URL"] == shown


def test_common_settings_have_the_house_s_addresses() -> None:
    common = load_common({})
    assert common.cluster_id == "local"
    assert (common.store_addresses, common.ingest_addresses, common.delivery_addresses) == (
        ("127.0.0.1:7701",),
        ("127.0.0.1:7702",),
        ("127.0.0.1:7703",),
    )


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("STORE_ADDRESSES", "127.0.0.1:7701,127.0.0.1:7701", "an address twice"),
        ("STORE_ADDRESSES", "", "0 shards, not 1 to 64"),
        ("STORE_ADDRESSES", ",".join(f"store:{port}" for port in range(65)), "65 shards, not 1 to 64"),
        ("STORE_ADVERTISED_ADDRESSES", "a:1,b:1", "2 addresses for 1 stores"),
        ("DELIVERY_ADVERTISED_ADDRESSES", "https://watch.example.com", "not host:port"),
        ("INGEST_ADDRESSES", "nowhere", "not host:port"),
        ("INGEST_ADDRESSES", "http://127.0.0.1:7702", "not host:port"),
        ("LOG_LEVEL", "LOUD", "not one of"),
        ("CLUSTER_ID", "", "empty"),
        ("CLUSTER", "x", "unknown setting: EDDYLINE_COMMON_CLUSTER .did you mean EDDYLINE_COMMON_CLUSTER_ID"),
    ],
)
def test_common_settings_refuse(name: str, value: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        load_common({"EDDYLINE_COMMON_" + name: value})


def test_log_at_the_start_has_the_changed_settings() -> None:
    assert non_default(CommonSettings(), prefix="X_") == {}
    assert non_default(loaded(API_KEY="hush", NAMES="a,b"), prefix=PREFIX) == {
        f"{PREFIX}API_KEY": "***",
        f"{PREFIX}DATA_DIR": "/d",
        f"{PREFIX}NAMES": "a,b",
    }
