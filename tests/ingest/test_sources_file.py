"""The sources file: what it may say, and what is done about it."""

from __future__ import annotations

import pytest

from eddyline.core.errors import StoreUnreachable
from eddyline.core.settings import SettingsError
from eddyline.core.source import SourceDefinition
from eddyline.core.topic import Kind, TopicConfig
from eddyline.ingest.sources_file import ensure_sources, parse_sources
from tests.support.cut_link import CutLink
from tests.support.store import sim_store

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
        ("sources = 1", "unknown sources"),
        ("source = 1", r"\[\[source\]\]"),
        ('[[source]]\nname = "a"\nbucket = "a"', "source 1 needs name, topic, and bucket or stream"),
        ('[[source]]\nname = "a"\nbucket = "a"\ntopic = 1', "source 1 needs"),
        ('[[source]]\nname = "a"\nbucket = "a"\ntopic = "a"\nkind = "x"', "unknown kind"),
        ('[[source]]\nname = "-"\nbucket = "a"\ntopic = "a"', "source name"),
        ('[[source]]\nname = "a"\nbucket = "a.b"\ntopic = "a"', "no bucket can be called"),
        ('[[source]]\nname = "a"\ntopic = "a"', "no bucket can be called"),
        ('[[source]]\nname = "a"\nbucket = "a"\nstream = "a"\ntopic = "a"', "not both"),
        ('[[source]]\nname = "a"\nbucket = "a"\ntopic = "a"\non_expired = "x"', "resync or stop"),
        ('[[source]]\nname = "a"\nbucket = "a"\ntopic = "a"\nsubjects = "x"', "list of texts"),
        (TWO.replace('name = "routes"', 'name = "certs"'), "name certs to more than one"),
        (TWO.replace('topic = "routes"', 'topic = "certs"'), "topic certs to more than one"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words) as refusal:
        parse_sources(text, "sources.toml")
    assert str(refusal.value).startswith("sources.toml")


async def test_missing_sources_and_topics_are_made_and_present_ones_left() -> None:
    async with sim_store() as link:
        definitions = parse_sources(TWO, "f")
        for _ in range(2):
            await ensure_sources(link, definitions, "f")
        assert [info.definition for info in await link.list_sources()] == definitions
        assert (await link.get_topic("routes")).kind is Kind.KV


async def test_a_difference_names_both_sides() -> None:
    async with sim_store() as link:
        await ensure_sources(link, parse_sources(TWO, "f"), "f")
        other = parse_sources(TWO.replace("ROUTES-1", "ROUTES-2"), "f")
        with pytest.raises(SettingsError) as refusal:
            await ensure_sources(link, other, "f")
        assert "bucket ROUTES-2 to topic routes" in str(refusal.value)
        assert "bucket ROUTES-1 to topic routes" in str(refusal.value)
        assert "delete the source and give the new one a topic of its own" in str(refusal.value)


@pytest.mark.parametrize(
    ("asked", "there", "way_out"),
    [
        ('on_expired = "stop"', "", "eddyline source update routes --on-expired stop`"),
        ("", 'on_recreated = "resync"', "eddyline source update routes --on-recreated stop`"),
        ('dead_letter_topic = "x"', "", "eddyline source update routes --dead-letter-topic x`"),
        ("", 'dead_letter_topic = "x"', "eddyline source update routes --no-dead-letter-topic`"),
    ],
)
async def test_a_difference_that_an_update_mends_names_the_update(asked: str, there: str, way_out: str) -> None:
    async with sim_store() as link:
        await ensure_sources(link, parse_sources(TWO + there, "f"), "f")
        with pytest.raises(SettingsError) as refusal:
            await ensure_sources(link, parse_sources(TWO + asked, "f"), "f")
        assert way_out in str(refusal.value)


async def test_a_topic_that_cannot_be_a_sources_is_named() -> None:
    async with sim_store() as link:
        await link.create_topic("certs", Kind.LOG, TopicConfig())
        with pytest.raises(SettingsError, match="certs is a LOG"):
            await ensure_sources(link, parse_sources(TWO, "f"), "f")


async def test_a_store_that_is_away_is_no_difference() -> None:
    async with sim_store() as store:
        link = CutLink(store)
        link.cut()
        with pytest.raises(StoreUnreachable):
            await ensure_sources(link, parse_sources(TWO, "f"), "f")


def test_every_setting_of_a_source_can_be_said() -> None:
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
