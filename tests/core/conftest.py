"""Certificates of a test's own, and tests that run on each wire."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eddyline.core.runtime.settings import WIRES
from eddyline.core.server.server import make_server
from tests.support.certificates import Authority, Files

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=WIRES)
def both_wires(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test on each wire; its servers need not name one."""
    defaults = make_server.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "wire", request.param)
    return str(request.param)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture
def files(tmp_path: Path, authority: Authority) -> Files:
    return Files(tmp_path / "mounted", authority)
