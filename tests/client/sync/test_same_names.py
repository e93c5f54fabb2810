"""The blocking classes have the public methods of the asyncio ones, with the same parameters."""

from __future__ import annotations

import inspect

import pytest

import eddyline.client as asynchronous
from eddyline.client import sync
from eddyline.client.admin.kv import Kv
from eddyline.client.admin.sources import Sources
from eddyline.client.append.append_run import AppendRun
from eddyline.client.append.append_stream import AppendStream
from eddyline.client.connect import Client
from eddyline.client.watch.watch import Watch

PAIRS = [
    (Client, sync.Client),
    (Kv, sync.Kv),
    (Sources, sync.Sources),
    (Watch, sync.Watch),
    (AppendStream, sync.AppendStream),
    (AppendRun, sync.AppendRun),
]
ONLY_ASYNCIO = {
    "Client.channel_to": "its channel belongs to the event loop",
    "Watch.aclose": "close",
    "AppendStream.finish": "of the client",
}
ONLY_BLOCKING = {
    "Client.close": "the end of connect's block",
    "Watch.close": "aclose",
    "Watch.on_progress": "an attribute of instances",
    "Watch.resume_count": "an attribute of instances",
    "Watch.move_count": "an attribute of instances",
    "Watch.heard_s": "an attribute of instances",
    **dict.fromkeys(("AppendStream.acknowledged", "AppendStream.first_seq", "AppendStream.last_seq"), "of instances"),
    **dict.fromkeys(
        (
            "AppendRun.run_id",
            "AppendRun.acknowledged",
            "AppendRun.acknowledged_number",
            "AppendRun.first_seq",
            "AppendRun.last_seq",
        ),
        "of instances",
    ),
}


def public(of: type, but_for: dict[str, str]) -> set[str]:
    return {name for name in dir(of) if not name.startswith("_") and f"{of.__name__}.{name}" not in but_for}


@pytest.mark.parametrize(("aio", "blocking"), PAIRS, ids=lambda of: of.__name__)
def test_public_names_are_the_same(aio: type, blocking: type) -> None:
    assert public(aio, ONLY_ASYNCIO) == public(blocking, ONLY_BLOCKING)


@pytest.mark.parametrize(("aio", "blocking"), PAIRS, ids=lambda of: of.__name__)
def test_parameters_are_the_same(aio: type, blocking: type) -> None:
    for name in public(blocking, ONLY_BLOCKING):
        method = getattr(blocking, name)
        if callable(method):
            assert parameters(method) == parameters(getattr(aio, name)), name
            assert not inspect.iscoroutinefunction(method)
            assert method.__doc__, name


def parameters(method: object) -> list[tuple[str, object, object]]:
    assert callable(method)
    return [
        (parameter.name, parameter.kind, parameter.default)
        for parameter in inspect.signature(method).parameters.values()
    ]


def test_connect_has_the_parameters_that_programs_use() -> None:
    tests_only = {"clock", "random_source"}
    assert {*inspect.signature(asynchronous.connect).parameters} - tests_only == {
        *inspect.signature(sync.connect).parameters
    }
