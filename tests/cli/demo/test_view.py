"""The live view: a line a second without a terminal, redrawn in place on one."""

from __future__ import annotations

import io
import json

from eddyline.cli.demo.subscriber import Change, DemoSubscriber
from eddyline.cli.demo.view import DemoView, ViewFigures, change_text
from eddyline.cli.terminal.output import Output
from eddyline.client.admin.sources import Source
from eddyline.core.model.source import SourceDefinition
from eddyline.core.records.record import Op, Record

ROUTES = Source(SourceDefinition("routes", "routes", "routes"), "LIVE", "", 12, 10, 0, "local", 3, 12)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def subscriber() -> DemoSubscriber:
    seen = DemoSubscriber(["routes"])
    record = Record(12, 1000, op=Op.PUT, key=b"co.uk", data=b"co.uk")
    seen.live["routes"][b"co.uk"] = record
    seen.newest.append(Change("routes", record))
    return seen


def moment(trouble: str = "") -> ViewFigures:
    return ViewFigures(1_700_000_000_000, () if trouble else (ROUTES,), trouble, 3.2, ("store: ready",))


def test_without_a_terminal_a_moment_is_a_line() -> None:
    stream = io.StringIO()
    view = DemoView(Output(stream=stream), subscriber())
    view.show(moment())
    view.show(moment("STORE_UNREACHABLE: gone"))
    first, second = stream.getvalue().splitlines()
    assert first.startswith("22:13:20  routes 1 keys, position 12/12, lag 0 | 3 changes/s | routes ")
    assert "STORE_UNREACHABLE" in second


def test_on_a_terminal_it_is_redrawn_in_its_place() -> None:
    stream = Terminal()
    view = DemoView(Output(stream=stream), subscriber())
    view.show(moment())
    drawn = stream.getvalue().count("\n")
    view.show(moment("gone"))
    assert f"\x1b[{drawn}A\x1b[J" in stream.getvalue()
    assert "! store: ready" in stream.getvalue()


def test_programs_get_an_object_a_moment() -> None:
    stream = io.StringIO()
    DemoView(Output("json", stream=stream), subscriber()).show(moment())
    assert json.loads(stream.getvalue())["sources"][0]["keys"] == 1


def test_change_line_has_topic_seq_op_key_and_value() -> None:
    assert change_text(subscriber().newest[0]).split() == ["routes", "12", "PUT", "co.uk", "co.uk"]
    deleted = Change("routes", Record(13, op=Op.DELETE, key=b"co.uk"))
    assert change_text(deleted).split() == ["routes", "13", "DELETE", "co.uk"]
