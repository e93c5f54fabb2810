"""Verification of a source: compares its fold with its bucket, and repairs the fold on request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from eddyline.client.transport.call import domain_errors
from eddyline.client.transport.items import read_once
from eddyline.v1 import source_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

    from eddyline.v1.source_pb2_grpc import SourceServiceStub

VERIFY_TIMEOUT_S: Final = 86_400.0
"""It waits for others, and reads bucket and fold: minutes by the ten million keys, never a day."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A key whose fold entry is not what the bucket has: `MISSING`, `SURPLUS`, `VALUE` or `DEAD_LETTER`, which is no
    drift; revision 0 = not live there."""

    key: bytes
    kind: str
    bucket_revision: int
    fold_revision: int


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """How far it is: `COUNTS`, `HASHES`, `KEYS` or `REPAIR`, and keys read of about how many (0 = not known yet)."""

    stage: str
    bucket_read: int
    bucket_total: int
    fold_read: int
    fold_total: int
    suspect_count: int


@dataclass(frozen=True, slots=True)
class PrefixDrift:
    """Keys that begin with `prefix`, of which some differ; b"" = all keys without a prefix of their own."""

    prefix: bytes
    bucket_count: int
    fold_count: int
    difference_count: int


@dataclass(frozen=True, slots=True)
class SourceVerdict:
    """The differences, and `left`: those that remained after a repair. The rest is the contract's."""

    bucket_count: int
    fold_count: int
    difference_count: int
    differences: tuple[Difference, ...]
    prefixes: tuple[PrefixDrift, ...]
    position_revision: int
    unsettled_count: int
    unexamined_count: int
    unconfirmed_count: int
    repaired: bool
    repair_trouble: str
    left_count: int
    left: tuple[Difference, ...]
    left_bucket_count: int = 0
    left_fold_count: int = 0
    source_status: str = ""
    source_reason: str = ""
    dead_letter_count: int = 0
    missing_count: int = 0
    surplus_count: int = 0
    value_count: int = 0

    @property
    def is_right(self) -> bool:
        """True = no key is known to differ now, and none was left out."""
        return self.left_count == 0 and (self.unexamined_count == 0 or self.repaired)


@read_once("verify")
async def verify_source(
    stub: SourceServiceStub, name: str, *, settle_ms: int, limit: int, repair: bool
) -> AsyncGenerator[SourceProgress | SourceVerdict, None]:
    """Yield how far a verification is, then its verdict. A caller that stops early closes it.

    Raises:
        EddylineError: SourceNotFound, NotKv, Throttled, BucketNotFound, NatsUnreachable, StoreUnreachable, and a replica
            that went away.
    """
    request = source_pb2.VerifySourceRequest(source=name, settle_ms=settle_ms, limit=limit, repair=repair)
    call = stub.VerifySource(request, timeout=VERIFY_TIMEOUT_S)
    try:
        with domain_errors():
            async for answer in call:
                match answer.WhichOneof("step"):
                    case "progress":
                        yield _progress(answer.progress)
                    case "verdict":
                        yield _verdict(answer.verdict)
                    case None:
                        pass  # a newer replica sends another kind of answer
    finally:
        call.cancel()


def differences_from_pb(differences: Iterable[source_pb2.Difference]) -> tuple[Difference, ...]:
    """Keys that differ."""
    return tuple(
        Difference(one.key, _kind_name(one.kind), one.bucket_revision, one.fold_revision) for one in differences
    )


def _progress(progress: source_pb2.SourceVerifyProgress) -> SourceProgress:
    return SourceProgress(
        stage=_stage_name(progress.stage),
        bucket_read=progress.bucket_read,
        bucket_total=progress.bucket_total,
        fold_read=progress.fold_read,
        fold_total=progress.fold_total,
        suspect_count=progress.suspect_count,
    )


def _verdict(verdict: source_pb2.SourceVerdict) -> SourceVerdict:
    return SourceVerdict(
        bucket_count=verdict.bucket_count,
        fold_count=verdict.fold_count,
        difference_count=verdict.difference_count,
        differences=differences_from_pb(verdict.differences),
        prefixes=tuple(
            PrefixDrift(one.prefix, one.bucket_count, one.fold_count, one.difference_count) for one in verdict.prefixes
        ),
        position_revision=verdict.position_revision,
        unsettled_count=verdict.unsettled_count,
        unexamined_count=verdict.unexamined_count,
        unconfirmed_count=verdict.unconfirmed_count,
        repaired=verdict.repaired,
        repair_trouble=verdict.repair_trouble,
        left_count=verdict.left_count,
        left=differences_from_pb(verdict.left),
        source_status=status_name(verdict.source_status),
        source_reason=verdict.source_reason,
        dead_letter_count=verdict.dead_letter_count,
        left_bucket_count=verdict.left_bucket_count,
        left_fold_count=verdict.left_fold_count,
        missing_count=verdict.missing_count,
        surplus_count=verdict.surplus_count,
        value_count=verdict.value_count,
    )


# Open sets: a newer role may know more.
def status_name(number: source_pb2.SourceStatus.ValueType) -> str:
    """A source's state by its name."""
    known = number in source_pb2.SourceStatus.values()
    return source_pb2.SourceStatus.Name(number).removeprefix("SOURCE_STATUS_") if known else str(number)


def _kind_name(number: source_pb2.DifferenceKind.ValueType) -> str:
    known = number in source_pb2.DifferenceKind.values()
    return source_pb2.DifferenceKind.Name(number).removeprefix("DIFFERENCE_KIND_") if known else str(number)


def _stage_name(number: source_pb2.VerifyStage.ValueType) -> str:
    known = number in source_pb2.VerifyStage.values()
    return source_pb2.VerifyStage.Name(number).removeprefix("VERIFY_STAGE_") if known else str(number)
