"""An outage is reported once, and its end once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.cli.local_cluster.outage import Outage
from eddyline.core.errors import NotReady

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eddyline.cli.terminal.output import Json


def test_the_end_of_an_outage_promises_nothing_that_is_not_known() -> None:
    said: list[str] = []
    outage = Outage(lambda text, _fields: said.append(text))
    outage.failed(NotReady("the store\n is gone"))
    outage.over()
    assert said == ["NOT_READY: the store is gone; reconnecting", "connected again"]


def test_each_outage_is_reported_once_and_its_end_once() -> None:
    said: list[object] = []

    def print_result(_text: str, fields: Mapping[str, Json]) -> None:
        said.append(fields["event"])

    outage = Outage(print_result)
    outage.over()
    for _ in range(2):
        outage.failed(NotReady("gone"))
        outage.failed(NotReady("gone"))
        outage.over()
        outage.over()
    assert said == ["reconnecting", "resumed"] * 2
