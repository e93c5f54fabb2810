"""The options of a write, parsed once, on the driver, and the plan that its tasks are given.

Spark gives keys in any case and values as text. An option that a write does not know is refused by its name, but those that
Spark adds or that are Spark's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, get_args

from eddyline.core.model.topic import Kind, check_name
from eddyline.core.records.record import APPEND_RECORDS_MAX
from eddyline.core.runtime.settings import SettingsError, check_address
from eddyline.export.split.channels import NO_ACCESS
from eddyline.spark.options.access import ACCESS_NAMES, NOT_ASKED, asked_access
from eddyline.spark.options.values import choice, refused, unknown, whole_number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eddyline.core.auth.caller_channel import CallerAccess
    from eddyline.spark.options.access import AccessOptions

OnDifferentRows = Literal["append", "appendFewer", "fail"]
"""The policy for rows that differ from those of an earlier attempt: all of them are written in addition, even if they are
fewer, or the task fails."""
KindName = Literal["LOG", "KV"]

BATCH_RECORDS: Final = 5_000
"""Elsewhere 500 to 1 000 rows a request. From 1 000 on the cost of a call is small beside that of its rows; 5 000 of 100
bytes are half a megabyte."""
BATCH_RECORDS_MIN: Final = 1_000
BATCH_BYTES: Final = 4 << 20
"""A record may have 1 MiB; four calls of this size are what the store reads ahead of one stream."""
BATCH_BYTES_MAX: Final = 32 << 20
"""Half a message: one record more than the bound always fits."""
PATIENCE_S: Final = 60
"""A store is back within seconds of its death; one that recovers a full log takes up to a minute."""
PATIENCE_S_MAX: Final = 3_600
WRITE_ID_CHARS_MAX: Final = 200
"""A writer's name has 255, and the partition's number is in it."""
NAMES: Final = {
    name.lower(): name
    for name in (
        "store",
        "topic",
        "createTopic",
        "writeId",
        "onDifferentRows",
        "batchRecords",
        "batchBytes",
        "patienceSeconds",
        *ACCESS_NAMES,
    )
}
"""Every option, by how Spark may spell it."""
_OF_SPARK: Final = {"path", "checkpointlocation", "queryname"}


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write, parsed. `create` None = a missing topic is an error; `write_id` "" = the job's or query's
    own."""

    stores: tuple[str, ...]
    topic: str
    create: Kind | None = None
    write_id: str = ""
    on_different_rows: OnDifferentRows = "append"
    batch_records: int = BATCH_RECORDS
    batch_bytes: int = BATCH_BYTES
    patience_s: int = PATIENCE_S
    asked: AccessOptions = NOT_ASKED
    access: CallerAccess = field(default=NO_ACCESS, repr=False)
    """`asked` with its files read, which parsing does not do."""


def parse_write_options(given: Mapping[str, str]) -> WriteOptions:
    """Parse what Spark gave.

    Raises:
        EddylineError: InvalidArgument, InvalidName: unknown, missing or malformed options, by name.
    """
    named: dict[str, str] = {}
    for key, text in given.items():
        name = NAMES.get(key.lower())
        if name is not None:
            named[name] = text.strip()
        elif key.lower() not in _OF_SPARK:
            raise unknown(key, NAMES.values(), "write")
    if not named.get("topic"):
        raise refused("topic", "it is missing: the one topic that rows are written to")
    check_name(named["topic"], "topic")
    write_id = named.get("writeId", "")
    if write_id:
        check_name(write_id, "writeId")
    if len(write_id) > WRITE_ID_CHARS_MAX:
        raise refused("writeId", f"it has {len(write_id)} characters, at most {WRITE_ID_CHARS_MAX}")
    create = named.get("createTopic")
    # Who names a write means to repeat it: rows that differ then are a mistake, not a retry.
    different = named.get("onDifferentRows", "fail" if write_id else "append")
    return WriteOptions(
        stores=stores_of(named.get("store", "")),
        topic=named["topic"],
        create=Kind[choice("createTopic", create, get_args(KindName))] if create else None,
        write_id=write_id,
        on_different_rows=choice("onDifferentRows", different, get_args(OnDifferentRows)),
        batch_records=_number(named, "batchRecords", BATCH_RECORDS_MIN, APPEND_RECORDS_MAX, BATCH_RECORDS),
        batch_bytes=_number(named, "batchBytes", 1, BATCH_BYTES_MAX, BATCH_BYTES),
        patience_s=_number(named, "patienceSeconds", 1, PATIENCE_S_MAX, PATIENCE_S),
        asked=asked_access(named),
    )


def stores_of(text: str) -> tuple[str, ...]:
    """The addresses of the option `store`.

    Raises:
        InvalidArgument: none, or one is not `host:port`.
    """
    addresses = tuple(part.strip() for part in text.split(",") if part.strip())
    if not addresses:
        raise refused("store", "it is missing: host:port of any role, or several with commas")
    for address in addresses:
        try:
            check_address("store", address)
        except SettingsError as error:
            raise refused("store", str(error)) from None
    return addresses


def _number(named: Mapping[str, str], option: str, low: int, high: int, default: int) -> int:
    text = named.get(option)
    return default if text is None else whole_number(option, text, low, high)
