"""Artifacts over gRPC: exported, listed, imported; and every refusal as the contract names it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.core.errors import ArtifactInvalid
from eddyline.core.model.artifact import Artifact, ArtifactProgress, FoldExported, FoldImported
from eddyline.core.model.read import FoldState
from eddyline.v1.fold_pb2 import ExportFoldRequest, ImportFoldRequest, ListArtifactsRequest
from eddyline.v1.topic_pb2 import TOPIC_KIND_LOG
from tests.store.rpc.requests import keyed, rows
from tests.support.store.scripted_shard import ScriptedShard, scripted_store
from tests.support.store.served import answers_of, refused, served_store, until

if TYPE_CHECKING:
    from pathlib import Path

ARTIFACT = Artifact("name", "t", 7, 9, 3, 100, 5, "store", "nats", b"p1", True)


async def test_fold_goes_out_and_into_another_topic(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        made = await store.create("kv")
        await store.log.AppendRecords(rows("kv", keyed("a", "1"), keyed("b", "2")))
        answers, reason = await answers_of(store.fold.ExportFold(ExportFoldRequest(topic="kv", if_epoch=made.epoch)))
        assert reason == ""
        artifact = answers[-1].result.artifact
        assert (artifact.topic, artifact.fold_seq, artifact.entry_count, artifact.is_latest) == ("kv", 2, 2, True)
        listed = await store.fold.ListArtifacts(ListArtifactsRequest(topic="kv"))
        assert list(listed.artifacts) == [artifact]
        await store.create("copy")
        imports, reason = await answers_of(
            store.fold.ImportFold(ImportFoldRequest(topic="copy", from_topic="kv", artifact=artifact.name))
        )
        assert reason == ""
        assert imports[-1].result.state.fold_seq == await store.head("copy") == 2


async def test_refusals_have_their_reasons(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("kv")
        await store.create("log", TOPIC_KIND_LOG)
        for export, reason in (
            (ExportFoldRequest(topic="?"), "INVALID_NAME"),
            (ExportFoldRequest(topic="none"), "TOPIC_NOT_FOUND"),
            (ExportFoldRequest(topic="log"), "NOT_KV"),
            (ExportFoldRequest(topic="kv"), "INVALID_ARGUMENT"),
            (ExportFoldRequest(topic="kv", if_epoch=99), "EPOCH_MISMATCH"),
        ):
            assert (await answers_of(store.fold.ExportFold(export)))[1] == reason
        for request, reason in (
            (ImportFoldRequest(topic="?"), "INVALID_NAME"),
            (ImportFoldRequest(topic="none"), "TOPIC_NOT_FOUND"),
            (ImportFoldRequest(topic="log"), "NOT_KV"),
            (ImportFoldRequest(topic="kv", if_epoch=99), "EPOCH_MISMATCH"),
            (ImportFoldRequest(topic="kv", from_topic="?"), "INVALID_NAME"),
            (ImportFoldRequest(topic="kv"), "ARTIFACT_NOT_FOUND"),
        ):
            assert (await answers_of(store.fold.ImportFold(request)))[1] == reason
        await refused(store.fold.ListArtifacts(ListArtifactsRequest(topic="?")), "INVALID_NAME")


async def test_steps_travel_as_they_are() -> None:
    state = FoldState(9, 7, "LIVE", 12)
    door = ScriptedShard(
        {
            "export_fold": [ArtifactProgress("dump", 1, 3), FoldExported(ARTIFACT, True, "newer")],
            "import_fold": [ArtifactProgress("load", 2), FoldImported(ARTIFACT, True, state)],
        }
    )
    async with scripted_store(door) as store:
        out, _ = await answers_of(store.fold.ExportFold(ExportFoldRequest(topic="t", if_epoch=7)))
        into, _ = await answers_of(store.fold.ImportFold(ImportFoldRequest(topic="t", artifact="x")))
    assert (out[0].progress.stage, out[0].progress.done_count, out[0].progress.total_count) == ("dump", 1, 3)
    assert (out[1].result.superseded, out[1].result.latest) == (True, "newer")
    assert (into[1].result.position_set, into[1].result.state.source_state) == (True, "LIVE")
    assert into[1].result.artifact.source_position == b"p1"
    assert door.asked == [
        ("export_fold", ("t",), {"if_epoch": 7}),
        ("import_fold", ("t",), {"from_topic": "", "artifact": "x", "if_epoch": 0}),
    ]


async def test_an_import_that_fails_ends_with_its_error_and_a_cancelled_one_is_closed() -> None:
    door = ScriptedShard({"import_fold": [ArtifactProgress("load", 2), ArtifactInvalid("no", artifact="x")]})
    async with scripted_store(door) as store:
        answers, reason = await answers_of(store.fold.ImportFold(ImportFoldRequest(topic="t")))
        assert (len(answers), reason) == (1, "ARTIFACT_INVALID")
        door.scripts["export_fold"] = [ArtifactProgress("dump", 1)] * 100_000
        call = store.fold.ExportFold(ExportFoldRequest(topic="t"))
        await anext(aiter(call))
        call.cancel()
        await until(lambda: "export_fold" in door.closed)
