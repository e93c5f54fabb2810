"""A fold put to the test, and a lost one settled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eddyline.client.transport.call import call_once, domain_errors, kv_topic_wanted
from eddyline.client.transport.items import read_once
from eddyline.core.codec.calls import settled_from_pb, verify_step_from_pb
from eddyline.v1 import fold_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from eddyline.core.model.fold_check import FoldCheckProgress, FoldSettled, FoldVerdict
    from eddyline.v1.fold_pb2_grpc import FoldServiceStub

CHECK_TIMEOUT_S: Final = 86_400.0
"""Both build a fold from base and log: minutes by the ten million records, never a day."""


@read_once("verify_fold")
async def verify_fold(stub: FoldServiceStub, topic: str) -> AsyncGenerator[FoldCheckProgress | FoldVerdict, None]:
    """Yield how far a check is, then its verdict. A caller that stops early closes it.

    Raises:
        EddylineError: TopicNotFound, NotKv, FoldLost, TooManyScans, ScanExpired, DataCorrupt, and a store that went away:
            the second fold is gone with it, so a check does not resume.
    """
    call = stub.VerifyFold(fold_pb2.VerifyFoldRequest(topic=topic), timeout=CHECK_TIMEOUT_S)
    try:
        with kv_topic_wanted(), domain_errors():
            async for answer in call:
                step = verify_step_from_pb(answer)
                if step is not None:
                    yield step
    finally:
        call.cancel()


async def settle_fold(stub: FoldServiceStub, topic: str, *, if_epoch: int) -> FoldSettled:
    """Take what base and log still give as the fold.

    Raises:
        EddylineError: TopicNotFound, NotKv, EpochMismatch, DiskFloor, ReadOnly, CommitUnknown, DataCorrupt.
    """
    request = fold_pb2.SettleFoldRequest(topic=topic, if_epoch=if_epoch)
    with kv_topic_wanted():
        return settled_from_pb(await call_once(stub.SettleFold(request, timeout=CHECK_TIMEOUT_S)))
