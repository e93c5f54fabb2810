"""`eddyline fold`: what it asks, and what it says."""

from __future__ import annotations

import pytest

from eddyline.core.errors import TopicNotFound
from eddyline.core.model.artifact import Artifact, ArtifactProgress, FoldExported, FoldImported
from eddyline.core.model.read import FoldState
from eddyline.core.model.topic import Kind, TopicConfig, TopicInfo
from tests.support.command_line import command_on_a_door
from tests.support.store.scripted_shard import ScriptedShard

ARTIFACT = Artifact("one", "t", 7, 9, 3, 100, 5, "store", "nats", b"p1", True)


async def test_export_lists_artifacts_and_the_latest(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [ArtifactProgress("dump", 1), FoldExported(ARTIFACT, False, "one")]
    door = ScriptedShard({"export_fold": steps})
    async with command_on_a_door(door, monkeypatch) as command:
        assert await command.text("fold", "export", "t") == (0, "t: exported 3 entries at 9 as one\n")
        door.scripts["export_fold"] = [FoldExported(ARTIFACT, True, "two")]
        code, said = await command.run("fold", "export", "t")
        _, text = await command.text("fold", "export", "t")
    assert (code, said[0]["superseded"], said[0]["latest_name"]) == (0, True, "two")
    assert (said[0]["name"], said[0]["fold_seq"], said[0]["source_position"]) == ("one", 9, "7031")
    assert text == "t: exported 3 entries at 9 as one; two is newer, and stays the latest\n"


async def test_import_prints_the_topics_position(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [ArtifactProgress("load", 1, 3), FoldImported(ARTIFACT, True, FoldState(9, 8, "", 0))]
    door = ScriptedShard({"import_fold": steps})
    async with command_on_a_door(door, monkeypatch) as command:
        code, text = await command.text("fold", "import", "new", "--from", "t", "--artifact", "one")
        _, said = await command.run("fold", "import", "new")
    assert code == 0
    assert text == ("new: imported 3 entries of one; it is at 9; its source continues from the artifact's position\n")
    assert (said[0]["into"], said[0]["head_seq"], said[0]["position_set"]) == ("new", 9, True)
    assert door.asked[0] == ("import_fold", ("new",), {"from_topic": "t", "artifact": "one", "if_epoch": 0})


async def test_list_prints_all_or_reports_none(monkeypatch: pytest.MonkeyPatch) -> None:
    door = ScriptedShard({"list_artifacts": (ARTIFACT,)})
    async with command_on_a_door(door, monkeypatch) as command:
        _, said = await command.run("fold", "list", "t")
        assert [(one["name"], one["latest"]) for one in said] == [("one", True)]
        _, text = await command.text("fold", "list", "t")
        assert "MADE " in text
        assert "1970-01-01 00:00:00.005" in text
        assert said[0]["created_ms"] == 5
        door.scripts["list_artifacts"] = ()
        door.scripts["get_topic"] = TopicInfo("t", 7, Kind.KV, TopicConfig(), 9, 5, "", 1, 4, 5, 320, 2)
        assert (await command.text("fold", "list", "t"))[1].startswith("no artifacts; make one")
        door.scripts["get_topic"] = TopicNotFound("no topic 't'")
        with pytest.raises(TopicNotFound):
            await command.text("fold", "list", "t")
