"""The sources file: its grammar, and its effects."""

from __future__ import annotations

import logging

import pytest

from eddyline.core.errors import StoreUnreachable
from eddyline.core.model.source import SourceDefinition
from eddyline.core.model.topic import Kind, TopicConfig
from eddyline.core.runtime.settings import SettingsError
from eddyline.ingest.sources.sources_file import SourcesFile, parse_sources
from tests.support.sim.cut_link import CutLink
from tests.support.store.simulated import sim_store

TWO = """
[[source]]
name = "certs"
bucket = "certs"
topic = "certs"

[[source]]
name = "routes"
bucket = "ROUTES-1"
topic = "routes"
"""


def test_definitions_are_read_in_order() -> None:
    assert parse_sources(TWO, "f") == [
        SourceDefinition(name="certs", topic="certs", bucket="certs"),
        SourceDefinition(name="routes", topic="routes", bucket="ROUTES-1"),
    ]
    assert parse_sources("", "f") == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[source]", "not TOML"),
        ("sources = 1", "unknown keys sources"),
        ("source = 1", r"\[\[source\]\]"),
        ('[[source]]\nname = "a"\nbucket = "a"', "source 1 needs topic: "),
        ('[[source]]\ntopic = "a"', "source 1 needs name, bucket or stream: "),
        ('[source]\nname = "a"', r"\[\[source\]\] in double brackets"),
        ('[[source]]\nname = "a"\nbucket = "a"\ntopic = 1', "source 1: topic must be a string in quotes, not 1"),
        ('[[source]]\nname = "a"\nbucket = "a"\ntopic = "a"\nkind = "x"', "unknown keys kind"),
        ('[[source]]\nname = "-"\nbucket = "a"\ntopic = "a"', "source name"),
        ('[[source]]\nname = "a"\nbucket = "a.b"\ntopic = "a"', "is not a valid bucket name"),
        ('[[source]]\nname = "a"\ntopic = "a"', "source 1 needs bucket or stream: "),
        ('[[source]]\nname = "a"\nbucket = "a"\nstream = "a"\ntopic = "a"', "not both"),
        ('[[source]]\nname = "a"\nbucket = "a"\ntopic = "a"\non_expired = "x"', "resync or stop"),
        ('[[source]]\nname = "a"\nbucket = "a"\ntopic = "a"\nsubjects = "x"', "list of strings"),
        (TWO.replace('name = "routes"', 'name = "certs"'), "name certs in more than one"),
        (TWO.replace('topic = "routes"', 'topic = "certs"'), "topic certs in more than one"),
    ],
)
def test_errors_name_their_place_in_the_file(text: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words) as refusal:
        parse_sources(text, "sources.toml")
    assert str(refusal.value).startswith("sources.toml")


def file_of(text: str) -> SourcesFile:
    return SourcesFile(parse_sources(text, "f"), "f")


async def test_missing_sources_and_topics_are_made_and_present_ones_left() -> None:
    async with sim_store() as link:
        for _ in range(2):
            await file_of(TWO).ensure(link)
        assert [info.definition for info in await link.list_sources()] == parse_sources(TWO, "f")
        assert (await link.get_topic("routes")).kind is Kind.KV


@pytest.mark.parametrize(
    ("added_text", "there", "changes"),
    [
        ('on_expired = "stop"', "", "on_expired RESYNC -> STOP"),
        ("", 'on_recreated = "resync"', "on_recreated RESYNC -> STOP"),
        ('dead_letter_topic = "x"', "", "dead_letter_topic none -> x"),
        ("", 'dead_letter_topic = "x"', "dead_letter_topic x -> none"),
    ],
)
async def test_what_an_update_may_set_is_set_as_the_file_has_it(
    added_text: str, there: str, changes: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with sim_store() as link:
        await file_of(TWO + there).ensure(link)
        now = file_of(TWO + added_text)
        existing = (await link.get_source("routes")).definition
        assert "the next start of ingest restores the file's values" in now.drift(existing)
        await now.ensure(link)
        existing = (await link.get_source("routes")).definition
        assert existing == parse_sources(TWO + added_text, "f")[1]
        assert now.drift(existing) == ""
    assert [told["changes"] for told in told_as("source updated", caplog)] == [changes]


async def test_difference_in_a_fixed_field_is_kept_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    async with sim_store() as link:
        await file_of(TWO).ensure(link)
        other = file_of(TWO.replace("ROUTES-1", "ROUTES-2"))
        await other.ensure(link)
        existing = (await link.get_source("routes")).definition
        assert existing.bucket == "ROUTES-1"
        drift = other.drift(existing)
        assert "bucket ROUTES-1, not ROUTES-2" in drift
        assert "delete the source and create one with its own topic" in drift
    assert [told["reason"] for told in told_as("source differs from its file", caplog)] == [drift]


async def test_a_source_that_the_file_does_not_name_has_a_warning() -> None:
    file = file_of(TWO)
    assert file.note("certs") == ""
    assert "`eddyline source delete old`" in file.note("old")
    assert SourcesFile().note("old") == ""


async def test_a_source_that_cannot_be_made_stops_no_other_and_is_made_when_it_can(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with sim_store() as link:
        await link.create_topic("certs", Kind.LOG, TopicConfig())
        file = file_of(TWO)
        await file.ensure(link)
        assert [info.definition.name for info in await link.list_sources()] == ["routes"]
        assert file.has_refused
        (missing,) = file.missing({"routes"}).values()
        assert "certs is a LOG" in missing
        await file.retry(link)
        assert len(told_as("source refused", caplog)) == 1  # a trouble that stays is said once
        await link.delete_topic("certs")
        await file.retry(link)
        assert not file.has_refused
        assert (await link.get_source("certs")).definition == parse_sources(TWO, "f")[0]
        assert file.missing({"certs", "routes"}) == {}


async def test_a_store_that_is_away_is_no_difference() -> None:
    async with sim_store() as store:
        link = CutLink(store)
        link.cut()
        with pytest.raises(StoreUnreachable):
            await file_of(TWO).ensure(link)


def told_as(event: str, caplog: pytest.LogCaptureFixture) -> list[dict[str, str]]:
    return [vars(record)["fields"] for record in caplog.records if record.getMessage() == event]


def test_every_setting_of_a_source_can_be_written() -> None:
    text = """
[[source]]
name = "orders"
stream = "ORDERS"
topic = "orders"
subjects = ["orders.>"]
on_expired = "stop"
on_recreated = "resync"
dead_letter_topic = "letters"

[[source]]
name = "certs"
bucket = "certs"
topic = "certs"
key_prefixes = ["prod."]
"""
    assert parse_sources(text, "f") == [
        SourceDefinition(
            "orders",
            "orders",
            stream="ORDERS",
            subjects=("orders.>",),
            on_expired="STOP",
            on_recreated="RESYNC",
            dead_letter_topic="letters",
        ),
        SourceDefinition("certs", "certs", "certs", key_prefixes=(b"prod.",)),
    ]
