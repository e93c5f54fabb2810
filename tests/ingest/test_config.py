"""Settings, and starts that must fail with one line."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from eddyline.core.runtime.settings import SettingsError, load_settings
from eddyline.ingest.__main__ import main, masked_url, read_sources
from eddyline.ingest.config import PREFIX, IngestSettings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def logging_restored() -> Iterator[None]:
    """Restore the process's log, which a role's start replaces."""
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


def test_holder_is_the_same_after_a_restart_and_another_on_another_port() -> None:
    assert IngestSettings().holder_on("host") == IngestSettings().holder_on("host") == "host:7702"
    assert IngestSettings(listen="127.0.0.1:7712").holder_on("host") == "host:7712"
    assert IngestSettings(holder="mine").holder_on("host") == "mine"
    assert len(IngestSettings().holder_on("h" * 300)) == 255


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LISTEN", "here"),
        ("NATS_URL", ""),
        ("NATS_DOMAIN", "a.b"),
        ("NATS_INBOX_PREFIX", "_INBOX.>"),
        ("NATS_INBOX_PREFIX", ""),
        ("HOLDER", "h" * 256),
        ("LEASE_MS", "99"),
        ("HEARTBEAT_MS", "20000"),
        ("VERIFY_INTERVAL_MS", "999"),
        ("VERIFY_REPAIR", "perhaps"),
        ("STOP_GRACE_MS", "-1"),
        ("UNHEARD_OF", "1"),
    ],
)
def test_bad_settings_are_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=PREFIX + name):
        load_settings(IngestSettings, prefix=PREFIX, environ={PREFIX + name: value})


def test_credentials_are_not_printed() -> None:
    assert masked_url(IngestSettings(nats_url="nats://user:secret@127.0.0.1:4222")) == "nats://***@127.0.0.1:4222"


@pytest.mark.usefixtures("logging_restored")
def test_sources_file_that_is_missing_or_wrong_ends_the_start_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sources.toml"
    assert not read_sources("").where
    assert main({f"{PREFIX}SOURCES_FILE": str(file)}) == 1
    file.write_text("[[source]]\nname = 1\n", encoding="utf-8")
    assert main({f"{PREFIX}SOURCES_FILE": str(file)}) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("eddyline ingest: ")]
    assert len(lines) == 2
    assert "cannot be read" in lines[0]
    assert "source 1 needs topic, bucket or stream" in lines[1]


@pytest.mark.usefixtures("logging_restored")
@pytest.mark.parametrize(
    ("name", "value"),
    [("NATS_CREDS", "aHVzaC1odXNo"), ("NATS_CREDS_FILE", "/nowhere"), ("NATS_URL", "nats://me:hush-hush/@x:1")],
)
def test_credentials_that_cannot_be_end_the_start_with_one_line_and_no_secret(
    name: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main({PREFIX + name: value, f"{PREFIX}LISTEN": "127.0.0.1:0"}) == 1
    output = capsys.readouterr().err
    (line,) = (line for line in output.splitlines() if line.startswith("eddyline ingest: "))
    assert PREFIX + name in line
    assert "hush-hush" not in output
    assert "aHVzaC1odXNo" not in output
