"""Sources' definitions as text."""

from __future__ import annotations

from dataclasses import replace

from eddyline.core.model.source import (
    SourceDefinition,
    changes_text,
    definition_text,
    differences,
    is_updatable,
    setting_text,
)

PLAIN = SourceDefinition("s", "t", "b", key_prefixes=(b"prod.", b"\xff"))


def test_a_change_names_the_old_and_the_new_value() -> None:
    after = replace(PLAIN, on_expired="STOP", dead_letter_topic="misfits")
    assert changes_text(PLAIN, after) == "on_expired RESYNC -> STOP, dead_letter_topic none -> misfits"
    assert changes_text(PLAIN, PLAIN) == ""


def test_prefixes_are_printed_like_keys_and_cut() -> None:
    (difference,) = differences(PLAIN, replace(PLAIN, key_prefixes=()))
    assert difference == ("key_prefixes", "prod., 0xff", "none")
    assert len(setting_text("x" * 1_000)) == 301
    assert definition_text(PLAIN) == (
        "topic t, bucket b, key_prefixes prod., 0xff, on_expired RESYNC, on_recreated STOP"
    )


def test_a_field_fixed_at_creation_is_not_updatable() -> None:
    assert is_updatable(PLAIN, replace(PLAIN, on_recreated="RESYNC"))
    assert not is_updatable(PLAIN, replace(PLAIN, on_recreated="RESYNC", subjects=("a",)))
