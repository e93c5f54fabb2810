"""An outage is told once, and its end once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.cli.outage import Outage
from eddyline.core.errors import NotReady

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eddyline.cli.output import Json


def test_each_outage_is_told_once_and_its_end_once() -> None:
    said: list[object] = []

    def say(_text: str, fields: Mapping[str, Json]) -> None:
        said.append(fields["event"])

    outage = Outage(say)
    outage.over()
    for _ in range(2):
        outage.failed(NotReady("gone"))
        outage.failed(NotReady("gone"))
        outage.over()
        outage.over()
    assert said == ["reconnecting", "resumed"] * 2
