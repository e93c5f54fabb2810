"""The options of a read, parsed once, on the driver. Tasks get what they need in their partitions.

Spark gives keys in any case and values as text. An option that a read does not know is refused by its name, but `path`,
which Spark adds by itself. Contradicting options are refused with both names.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal, get_args

from eddyline.core.model.read import ALL_RECORDS, RecordFilter
from eddyline.core.model.topic import check_name
from eddyline.core.runtime.settings import SettingsError, check_address
from eddyline.export.split.channels import NO_ACCESS
from eddyline.export.split.plan import BYTES_PER_SPLIT, RECORDS_PER_SPLIT
from eddyline.spark.options import values
from eddyline.spark.options.access import ACCESS_NAMES, NOT_ASKED, asked_access, read_access
from eddyline.spark.options.values import SEQ_MAX, SeqBound, refused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eddyline.core.auth.caller_channel import CallerAccess
    from eddyline.spark.options.access import AccessOptions

ReadKind = Literal["log", "fold", "asOf", "gaps"]
OnGap = Literal["fail", "warn", "rows"]
TimeBy = Literal["source", "commit"]

PATIENCE_S: Final = 60
"""A store is back within seconds of its death; one that recovers a full log takes up to a minute."""
SHARES_MAX: Final = 4_096
NAMES: Final = {
    name.lower(): name
    for name in (
        "store",
        "topic",
        "topics",
        "read",
        "startingSeq",
        "endingSeq",
        "startingTimestamp",
        "endingTimestamp",
        "timeBy",
        "asOfSeq",
        "asOfTimestamp",
        "asOfPartitions",
        "columns",
        "keyPrefixes",
        "tags",
        "ops",
        "excludeNodes",
        "maxRecordsPerPartition",
        "maxBytesPerPartition",
        "maxRecordsPerTrigger",
        "onGap",
        "patienceSeconds",
        *ACCESS_NAMES,
    )
}
"""Every option, by how Spark may spell it."""
_OF_SPARK: Final = {"path"}
_RANGE: Final = ("startingSeq", "endingSeq", "startingTimestamp", "endingTimestamp", "timeBy")
_OF_LOG: Final = ("tags", "ops", "excludeNodes", "onGap")
_OF_AS_OF: Final = ("asOfSeq", "asOfTimestamp")
_ONLY_BATCH: Final = ("endingSeq", "endingTimestamp", *_OF_AS_OF, "asOfPartitions")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a read, parsed. `topics` are names, or one prefix (`topic_prefix`); `None` = not given.

    Seqs: `starting_seq` inclusive, `ending_seq` exclusive. Times in nanoseconds, likewise.
    `access` is what is shown to roles: `asked` with its files read (`with_access`), which parsing does not do.
    """

    stores: tuple[str, ...]
    topics: tuple[str, ...] = ()
    topic_prefix: str | None = None
    read: ReadKind = "log"
    starting_seq: SeqBound | dict[str, SeqBound] | None = None
    ending_seq: SeqBound | dict[str, SeqBound] | None = None
    starting_ns: int | None = None
    ending_ns: int | None = None
    time_by: TimeBy | None = None
    as_of_seq: int | None = None
    as_of_ns: int | None = None
    as_of_partitions: int | None = None
    columns: tuple[str, ...] = ()
    records: RecordFilter = field(default=ALL_RECORDS)
    records_per_partition: int = RECORDS_PER_SPLIT
    bytes_per_partition: int = BYTES_PER_SPLIT
    records_per_trigger: int | None = None
    on_gap: OnGap = "fail"
    patience_s: int = PATIENCE_S
    asked: AccessOptions = NOT_ASKED
    access: CallerAccess = field(default=NO_ACCESS, repr=False)

    @property
    def folds(self) -> bool:
        """True = it reads values by key, not the log."""
        return self.read in {"fold", "asOf"}


def parse_options(given: Mapping[str, str]) -> ReadOptions:
    """Parse what Spark gave.

    Raises:
        EddylineError: InvalidArgument, InvalidName: unknown, missing, malformed or contradicting options, by name.
    """
    named: dict[str, str] = {}
    for key, text in given.items():
        name = NAMES.get(key.lower())
        if name is not None:
            named[name] = text
        elif key.lower() not in _OF_SPARK:
            raise values.unknown(key, NAMES.values(), "read")
    topics, prefix = _topics(named)
    parsed = ReadOptions(
        stores=_stores(named),
        topics=topics,
        topic_prefix=prefix,
        read=values.choice("read", named.get("read", "log"), get_args(ReadKind)),
        starting_seq=_seqs(named, "startingSeq"),
        ending_seq=_seqs(named, "endingSeq"),
        starting_ns=_time(named, "startingTimestamp"),
        ending_ns=_time(named, "endingTimestamp"),
        time_by=values.choice("timeBy", named["timeBy"], get_args(TimeBy)) if "timeBy" in named else None,
        as_of_seq=_number(named, "asOfSeq", 0, SEQ_MAX),
        as_of_ns=_time(named, "asOfTimestamp"),
        as_of_partitions=_number(named, "asOfPartitions", 1, SHARES_MAX),
        columns=values.texts("columns", named["columns"]) if "columns" in named else (),
        records=RecordFilter(
            key_prefixes=values.key_prefixes("keyPrefixes", named["keyPrefixes"]) if "keyPrefixes" in named else (),
            tags=values.texts("tags", named["tags"]) if "tags" in named else (),
            exclude_nodes=values.texts("excludeNodes", named["excludeNodes"]) if "excludeNodes" in named else (),
            ops=values.ops("ops", named["ops"]) if "ops" in named else (),
        ),
        records_per_partition=_number(named, "maxRecordsPerPartition", 1, 1 << 40) or RECORDS_PER_SPLIT,
        bytes_per_partition=_number(named, "maxBytesPerPartition", 1, 1 << 50) or BYTES_PER_SPLIT,
        records_per_trigger=_number(named, "maxRecordsPerTrigger", 1, SEQ_MAX),
        on_gap=values.choice("onGap", named.get("onGap", "fail"), get_args(OnGap)),
        patience_s=_number(named, "patienceSeconds", 1, 3_600) or PATIENCE_S,
        asked=asked_access(named),
    )
    _check_together(parsed, named)
    return parsed


def with_access(options: ReadOptions, environ: Mapping[str, str]) -> ReadOptions:
    """The same with the files read that options and environment name.

    Raises:
        InvalidArgument: one of them cannot be used.
    """
    return replace(options, access=read_access(options.asked, environ))


def check_stream(given: Mapping[str, str]) -> None:
    """Refuse what a stream cannot have.

    Raises:
        InvalidArgument: an option of batch reads only.
    """
    names = {NAMES.get(key.lower()) for key in given}
    for name in _ONLY_BATCH:
        if name in names:
            raise refused(name, "it is for batch reads only: a stream reads the log and has no end")
    if "read" in names and parse_options(given).folds:
        raise refused("read", "a stream reads log or gaps")


def _stores(named: Mapping[str, str]) -> tuple[str, ...]:
    if not named.get("store", "").strip():
        raise refused("store", "it is required: host:port of a role of the cluster, or several with commas")
    addresses = values.texts("store", named["store"])
    for address in addresses:
        try:
            check_address("store", address)
        except SettingsError as error:
            raise refused("store", str(error)) from None
    return addresses


def _topics(named: Mapping[str, str]) -> tuple[tuple[str, ...], str | None]:
    if ("topic" in named) == ("topics" in named):
        raise refused("topic", "exactly one of topic and topics is required (the argument of load() does not count)")
    option = "topic" if "topic" in named else "topics"
    names = values.texts(option, named[option])
    prefixes = [name for name in names if name.endswith("*")]
    if prefixes:
        if len(names) > 1:
            raise refused(option, "give one prefix with * at its end, or names with commas")
        return (), prefixes[0][:-1]
    for name in names:
        check_name(name, option)
    return names, None


def _seqs(named: Mapping[str, str], option: str) -> SeqBound | dict[str, SeqBound] | None:
    words: tuple[Literal["earliest", "latest"], ...] = (
        ("earliest", "latest") if option == "startingSeq" else ("latest",)
    )
    return values.seqs(option, named[option], words) if option in named else None


def _time(named: Mapping[str, str], option: str) -> int | None:
    return values.time_ns(option, named[option]) if option in named else None


def _number(named: Mapping[str, str], option: str, low: int, high: int) -> int | None:
    return values.whole_number(option, named[option], low, high) if option in named else None


def _check_together(parsed: ReadOptions, named: Mapping[str, str]) -> None:
    for one, other in (("startingSeq", "startingTimestamp"), ("endingSeq", "endingTimestamp"), _OF_AS_OF):
        if one in named and other in named:
            raise refused(one, f"it does not go with {other}")
    _check_named("startingSeq", parsed.starting_seq, parsed)
    _check_named("endingSeq", parsed.ending_seq, parsed)
    if parsed.folds:
        for name in (*_RANGE, *_OF_LOG):
            if name in named:
                raise refused(name, f"it does not go with read={parsed.read}, which returns one value per key")
    elif "asOfPartitions" in named:
        raise refused("asOfPartitions", f"it does not go with read={parsed.read}")
    if parsed.read == "asOf" and not any(name in named for name in _OF_AS_OF):
        raise refused("asOfSeq", "read=asOf needs it, or asOfTimestamp")
    if parsed.read != "asOf":
        for name in _OF_AS_OF:
            if name in named:
                raise refused(name, f"it goes with read=asOf, not with read={parsed.read}")
    if parsed.time_by is not None and parsed.starting_ns is None and parsed.ending_ns is None:
        raise refused("timeBy", "it goes with startingTimestamp or endingTimestamp")
    if parsed.as_of_seq is not None and (parsed.topic_prefix is not None or len(parsed.topics) > 1):
        raise refused("asOfSeq", "it is for one topic; for several give asOfTimestamp")


def _check_named(option: str, bound: SeqBound | dict[str, SeqBound] | None, parsed: ReadOptions) -> None:
    """Seqs by topic are of topics that are read: under a misspelt name all of the topic would be read."""
    for topic in bound if isinstance(bound, dict) else ():
        prefix = parsed.topic_prefix
        if not (topic in parsed.topics if prefix is None else topic.startswith(prefix)):
            raise refused(
                option, f"topic {topic!r} is not among the topics read: {', '.join(parsed.topics) or f'{prefix}*'}"
            )
