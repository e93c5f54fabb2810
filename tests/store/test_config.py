"""The store's settings: their bounds, and what the environment may say."""

from __future__ import annotations

from pathlib import Path

import pytest

from eddyline.core.runtime.settings import SettingsError, load_settings
from eddyline.store.config import PREFIX, StoreSettings


def test_defaults_are_within_their_bounds() -> None:
    settings = load_settings(StoreSettings, prefix=PREFIX, environ={})
    assert settings.listen == "127.0.0.1:7701"
    assert settings.directory == Path.cwd() / "eddyline-data" / "store"


def test_environment_sets_them() -> None:
    environ = {"EDDYLINE_STORE_LISTEN": "127.0.0.1:0", "EDDYLINE_STORE_TOPICS_MAX": "5", "OTHER": "x"}
    settings = load_settings(StoreSettings, prefix=PREFIX, environ=environ)
    assert (settings.listen, settings.topics_max) == ("127.0.0.1:0", 5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LISTEN", "7701"),
        ("DATA_DIR", ""),
        ("WAL_FILE_BYTES", "1"),
        ("WAL_FILE_BYTES", "2147483648"),
        ("SYNC_INTERVAL_MS", "0"),
        ("SYNC_INTERVAL_MS", "1001"),
        ("TOPICS_MAX", "-1"),
        ("RETAINED_BYTES_MAX", "-1"),
        ("MEMORY_BYTES", "1"),
        ("FOLD_PROFILE", "huge"),
        ("STOP_GRACE_MS", "-1"),
        ("SYNC", "1"),
    ],
)
def test_what_is_out_of_bounds_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"EDDYLINE_STORE_{name}"):
        load_settings(StoreSettings, prefix=PREFIX, environ={f"EDDYLINE_STORE_{name}": value})
