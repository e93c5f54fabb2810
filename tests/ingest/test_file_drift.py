"""A sources file and a store that drift, through the command: no difference ends ingest, and every remedy works."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.core.model.source import SourceDefinition
from eddyline.ingest.sources.sources_file import SourcesFile
from tests.support.command_line import command_at

if TYPE_CHECKING:
    import pytest

    from tests.support.ingest.kit import SourceKit


async def test_drift_is_reported_in_both_directions_and_ends_by_the_commands_it_names(
    sources: SourceKit, bucket_name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    await sources.make_bucket(bucket_name, history=1)
    await sources.define(SourceDefinition("policy", "policy", bucket_name))
    await sources.define(SourceDefinition("settled", "settled", bucket_name))
    await sources.define(SourceDefinition("old", "old", bucket_name))
    file = SourcesFile(
        [
            SourceDefinition("policy", "policy", bucket_name, on_expired="STOP"),
            SourceDefinition("settled", "elsewhere", bucket_name),
            SourceDefinition("thief", "old", bucket_name),
        ],
        "/etc/sources.toml",
    )
    async with sources.ingest(file=file) as role, sources.served(role) as address:
        command = command_at("127.0.0.1:1", monkeypatch, ingest=address)
        for name in ("policy", "settled", "old"):
            await sources.is_state(name, "LIVE")
        listed = {row["name"]: row for row in (await command.run("source", "list"))[1]}
        assert "source thief, which does not exist: topic old" in capsys.readouterr().err
        assert (listed["policy"]["on_expired"], listed["policy"]["file_drift"]) == ("STOP", "")
        assert "topic settled, not elsewhere" in str(listed["settled"]["file_drift"])
        assert listed["old"]["file_drift"] == ""
        assert any("it is not in /etc/sources.toml" in warning for warning in warnings_of(listed["old"]))
        assert not any("it is not in" in warning for warning in warnings_of(listed["policy"]))

        # By hand, against the file: its own answer says so, and so does the store for the time that no ingest runs.
        _, (updated,) = await command.run("source", "update", "policy", "--on-expired", "resync")
        assert "on_expired RESYNC, not STOP" in str(updated["file_drift"])

        async def is_reported() -> bool:
            detail = (await sources.link.get_source("policy")).report.detail
            return detail is not None and "on_expired RESYNC, not STOP" in detail.file_drift

        await sources.until(is_reported)

        # What the messages name works while this ingest runs.
        _, (deleted,) = await command.run("source", "delete", "old", "--yes")
        assert deleted["warnings"] == []
        _, (deleted,) = await command.run("source", "delete", "settled", "--yes")
        assert warnings_of(deleted) == ["/etc/sources.toml has settled: the next start of ingest creates it again"]
        await sources.link.delete_topic("old")
        await file.retry(sources.link)
        assert [row["name"] for row in (await command.run("source", "list"))[1]] == ["policy", "thief"]


def warnings_of(row: dict[str, object]) -> list[str]:
    warnings = row["warnings"]
    assert isinstance(warnings, list)
    return warnings
