"""Arguments that callers give, checked where the wire would refuse them without a word of which it was.

A mistake in a program is a TypeError or ValueError with the record's index, the field's name and what it takes; errors
of the cluster are of `eddyline.core.errors`. Correct records cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from eddyline.core.codec.records import record_to_pb
from eddyline.core.records.record import OP_OF_TOPIC, MetaEntry, Record
from eddyline.v1 import types_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

_TEXT_MAX: Final = 40
_TAKES: Final[dict[str, tuple[type, ...]]] = {
    "seq": (int,),
    "ts_ms": (int,),
    "source_ts_ns": (int,),
    "op": (int,),
    "key": (bytes, type(None)),
    "data": (bytes, type(None)),
    "tag": (str, type(None)),
    "node": (str, type(None)),
    "meta": (tuple, list),
    "version": (bytes,),
}
_RECORD: Final = "Record(key=b..., data=b...)"


def check_records(records: Iterable[Record]) -> None:
    """Refuse what is no collection of records.

    Raises:
        TypeError: it is one record alone, or nothing that has records.
    """
    given: object = records
    if isinstance(given, Record | str | bytes | dict) or not isinstance(given, Iterable):
        raise TypeError(f"records is {_named(given)}: give a list of records, [{_RECORD}]")


def fill_rows_of(rows: types_pb2.RecordBatch, records: Iterable[Record]) -> None:
    """Write the records of an append into an empty message, one by one; an op that was not given stays unset: the store
    takes APPEND on a LOG topic, PUT on a KV one.

    Raises:
        TypeError: one is no record, or a field has another type than its own. ValueError: a number or text that no
            record can have.
    """
    rows.SetInParent()
    for index, record in enumerate(records):
        try:
            row = record_to_pb(record)
        except (TypeError, ValueError, OverflowError, AttributeError) as error:
            _refuse(index, record)
            # The field has its type, and what the message says of its value is all that is known.
            raise ValueError(f"record {index}: {error}") from None
        if record.op is OP_OF_TOPIC:
            row.op = types_pb2.OP_UNSPECIFIED
        rows.records.append(row)


def check_bytes(**given: object) -> None:
    """Arguments that are bytes.

    Raises:
        TypeError: one is something else.
    """
    for name, value in given.items():
        if not isinstance(value, bytes):
            raise _wrong_type(name, value, (bytes,))


def check_each_bytes(name: str, values: Sequence[bytes]) -> None:
    """An argument that is a sequence of bytes.

    Raises:
        TypeError: it is one value alone, or one of its values is something else.
    """
    given: object = values
    if isinstance(given, str | bytes):
        raise TypeError(f"{name} is {_named(given)}: give a list of bytes")
    for index, value in enumerate(values):
        if not isinstance(value, bytes):
            raise _wrong_type(f"{name}[{index}]", value, (bytes,))


def _refuse(index: int, record: object) -> None:
    """Name what is wrong with the types of a record, if anything is."""
    if not isinstance(record, Record):
        raise TypeError(f"record {index} is {_named(record)}: give {_RECORD}")
    for name, takes in _TAKES.items():
        if not isinstance(getattr(record, name), takes):
            raise _wrong_type(f"record {index}: {name}", getattr(record, name), takes)
    for at, entry in enumerate(record.meta):
        place = f"record {index}: meta[{at}]"
        given: object = entry
        if not isinstance(given, tuple) or len(given) != len(MetaEntry._fields):
            raise TypeError(f"{place} is {_named(given)}: give MetaEntry(name, value)")
        for name, value, takes in zip(MetaEntry._fields, entry, ((str,), (bytes,)), strict=True):
            if not isinstance(value, takes):
                raise _wrong_type(f"{place}.{name}", value, takes)


def _wrong_type(place: str, value: object, takes: tuple[type, ...]) -> TypeError:
    wanted = " or ".join("None" if one is type(None) else one.__name__ for one in takes)
    give = ""
    if isinstance(value, str) and bytes in takes and len(value) <= _TEXT_MAX:
        give = f": give {value.encode('utf-8', 'surrogatepass')!r}"
    return TypeError(f"{place} is {wanted}, not {_named(value)}{give}")


def _named(value: object) -> str:
    """A value's type as a person says it."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"one {name}" if isinstance(value, Record) else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
