"""Output of verbs: lines for people, one JSON object a line for programs (`-o json`).

Bytes in JSON: as text under their own name where they are UTF-8, else as base64 under `<name>_base64`; absent ones are left
out. JSON is UTF-8 whatever the locale.
*Invariant:* a character that is not printable leaves the command as JSON escapes it, in text too, because a terminal would
obey it. Line feeds and tabs of a text stay. `raw` alone writes bytes as they are.
Failure: a reader that went away (a closed pipe) is `ReaderGone`, which ends the command in silence. Any other failure to
write standard output (a full disk) is a `CommandError`. A line that stderr does not take is dropped.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import shutil
import stat
import sys
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Literal, TextIO

from eddyline.cli.errors import EXIT_FAILED, EXIT_OK, CommandError
from eddyline.core.records.record import MARKER_REASON, GapReason, Op
from eddyline.core.runtime.text import escaped, printable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    from eddyline.core.records.record import Gap, Record

_OPS = frozenset(int(op) for op in Op)
_GAP_REASONS = frozenset(int(reason) for reason in GapReason)

Json = str | int | float | bool | None | list["Json"] | dict[str, "Json"]
OutputFormat = Literal["text", "json"]
_KEPT = "\n\t"
_MARKERS = {"MaxAge": "expired", "Purge": "purged", "Remove": "removed"}
VERSION_NUMBER_BYTES: Final = 8
"""Sources give NATS's revision so, the store a `seq`."""


class ReaderGone(CommandError):
    """Nobody reads standard output any more (`| head` has what it wants): the end of the command, and no failure."""

    def __init__(self) -> None:
        super().__init__("the reader of standard output has closed it", exit_code=EXIT_OK)


class Output:
    """One command's standard output. Every method raises ReaderGone, and CommandError where it cannot be written."""

    def __init__(self, output_format: OutputFormat = "text", *, stream: TextIO | None = None) -> None:
        self._json = output_format == "json"
        self._stream: TextIO | None = stream if stream is not None else sys.stdout
        if isinstance(self._stream, io.TextIOWrapper):
            # A locale that lacks a character is no reason to fail; programs get UTF-8.
            self._stream.reconfigure(encoding="utf-8" if self._json else None, errors="backslashreplace")

    @property
    def is_json(self) -> bool:
        return self._json

    @property
    def is_terminal(self) -> bool:
        """True = a person looks, so lines may be redrawn."""
        return not self._json and self._stream is not None and self._stream.isatty()

    @property
    def width(self) -> int:
        """Columns of the terminal, or what COLUMNS says; 120 where there is none."""
        return shutil.get_terminal_size((120, 24)).columns

    def print_result(self, text: str, fields: Mapping[str, Json]) -> None:
        """Say one thing: `text` to people, `fields` to programs."""
        line = json.dumps(fields, ensure_ascii=False, separators=(",", ":")) if self._json else text
        self._write(escaped(line, keep=_KEPT) + "\n")

    def print_text(self, text: str) -> None:
        """Say something that programs need not hear."""
        if not self._json:
            self._write(escaped(text, keep=_KEPT) + "\n")

    def print_notice(self, text: str, fields: Mapping[str, Json]) -> None:
        """Say something that is no result: `text` on stderr to people, `fields` in their place to programs."""
        if self._json:
            self.print_result("", fields)
        else:
            print_error(text)

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]], fields: Sequence[Mapping[str, Json]]) -> None:
        """Say a table: aligned columns to people, an object a row to programs."""
        if self._json:
            for row_fields in fields:
                self.print_result("", row_fields)
            return
        if rows:
            self._write("".join(f"{line}\n" for line in aligned([header, *rows])))

    def redraw(self, lines: Sequence[str], *, over: int) -> None:
        """Say lines to people in the place of the last `over` ones, on a terminal."""
        up = f"\x1b[{over}A\x1b[J" if over else ""
        self._write(up + "".join(f"{escaped(line)}\n" for line in lines))

    def raw(self, value: bytes) -> None:
        """Write bytes as they are, and nothing else."""
        if isinstance(self._stream, io.TextIOWrapper):
            with _reported():
                self._stream.flush()
                self._stream.buffer.write(value)
                self._stream.buffer.flush()
        else:  # of a test
            self._write(value.decode("utf-8", "surrogateescape"))

    @asynccontextmanager
    async def until_reader_leaves(self) -> AsyncIterator[None]:
        """Raise ReaderGone within the block as soon as the reader of a pipe leaves, even while nothing is written.

        Without it a verb that follows a topic would wait in `… | head -n 4` for a fifth line before it ends.
        """
        descriptor = self._pipe()
        if descriptor is None:
            yield
            return
        loop = asyncio.get_running_loop()

        def leave() -> None:
            loop.remove_reader(descriptor)
            bound.reschedule(loop.time())

        try:
            async with asyncio.timeout(None) as bound:
                # The writing end of a pipe becomes readable when the last reader closes the other end.
                loop.add_reader(descriptor, leave)
                try:
                    yield
                finally:
                    loop.remove_reader(descriptor)
        except TimeoutError:
            if bound.expired():
                raise ReaderGone from None
            raise

    def _pipe(self) -> int | None:
        try:
            descriptor = -1 if self._stream is None else self._stream.fileno()
            return descriptor if stat.S_ISFIFO(os.fstat(descriptor).st_mode) else None
        except (OSError, io.UnsupportedOperation):
            return None

    def _write(self, text: str) -> None:
        if self._stream is None:  # closed by whoever started us
            raise CommandError("standard output is closed", "give it a file or a pipe")
        with _reported():
            self._stream.write(text)
            self._stream.flush()


@contextmanager
def _reported() -> Iterator[None]:
    """A write to standard output, its failure as a command's."""
    try:
        yield
    except BrokenPipeError:
        raise ReaderGone from None
    except OSError as error:
        raise CommandError(f"standard output cannot be written: {error.strerror or error}") from None


def print_error(text: str) -> None:
    """Say something on stderr, in one line; dropped where it cannot be written."""
    print_error_lines(f"eddyline: {' '.join(text.split())}")


def print_error_lines(text: str) -> None:
    """Say lines on stderr, as they are; dropped likewise."""
    if sys.stderr is not None:
        with suppress(OSError):
            print(escaped(text, keep=_KEPT), file=sys.stderr, flush=True)


def ask(question: str) -> None:
    """Say a question on stderr, and stay on its line."""
    print(f"eddyline: {escaped(question)} ", end="", file=sys.stderr, flush=True)


def flushed_exit_code(exit_code: int) -> int:
    """The exit code at the end of a command, with what standard output and stderr still hold.

    Python would flush them at exit, with a traceback and a code of its own where that fails.
    """
    try:
        if sys.stdout is not None:
            with _reported():
                sys.stdout.flush()
    except ReaderGone:
        _discard(sys.stdout)
    except CommandError as error:
        _discard(sys.stdout)
        if not exit_code:
            print_error(error.message)
            exit_code = EXIT_FAILED
    try:
        if sys.stderr is not None:
            sys.stderr.flush()
    except OSError:
        _discard(sys.stderr)
    return exit_code


def _discard(stream: TextIO) -> None:
    """Let what a stream still holds go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines with aligned columns, two spaces apart."""
    rows = [[escaped(cell) for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def put_bytes(fields: dict[str, Json], name: str, value: bytes | None) -> None:
    """Put bytes into a JSON object: text, else base64 under another name; None is left out."""
    if value is None:
        return
    try:
        fields[name] = value.decode("utf-8")
    except UnicodeDecodeError:
        fields[name + "_base64"] = base64.b64encode(value).decode("ascii")


def format_time(ts_ms: int) -> str:
    """A time for people, UTC, to the millisecond."""
    return datetime.fromtimestamp(ts_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.") + f"{ts_ms % 1000:03d}"


def record_fields(record: Record) -> dict[str, Json]:
    """A record as a JSON object."""
    fields: dict[str, Json] = {"seq": record.seq, "ts_ms": record.ts_ms, "op": op_name(record.op)}
    if record.source_ts_ns:
        fields["source_ts_ns"] = record.source_ts_ns
    put_bytes(fields, "key", record.key)
    put_bytes(fields, "data", record.data)
    if record.tag is not None:
        fields["tag"] = record.tag
    if record.node is not None:
        fields["node"] = record.node
    if record.meta:
        meta: list[Json] = []
        for entry in record.meta:
            entry_fields: dict[str, Json] = {"name": entry.name}
            put_bytes(entry_fields, "value", entry.value)
            meta.append(entry_fields)
        fields["meta"] = meta
    if record.version:
        fields["version"] = version_field(record.version)
    return fields


def version_field(version: bytes) -> Json:
    """A version for programs: the number it is (a `seq`, NATS's revision), or hex where a writer gave it another length than
    8 bytes, since it may be no number to him."""
    return int.from_bytes(version, "big") if len(version) == VERSION_NUMBER_BYTES else version.hex()


def gap_fields(gap: Gap) -> dict[str, Json]:
    """A gap as a JSON object."""
    fields: dict[str, Json] = {"gap": gap_name(gap.reason), "first_seq": gap.first_seq, "last_seq": gap.last_seq}
    if gap.seq:
        fields["seq"] = gap.seq
    if gap.new_epoch:
        fields.update(old_epoch=gap.old_epoch, new_epoch=gap.new_epoch)
    if gap.source_first:
        fields.update(source_first=gap.source_first, source_last=gap.source_last)
    return fields


def record_line(record: Record, *, of_source: bool = False) -> str:
    """A record for people; `of_source`: with revision and time at its source, where it has them."""
    source = f"  {source_text(record)}" if of_source and record.source_ts_ns else ""
    key = "" if record.key is None else f"  {printable(record.key)}"
    data = "" if record.data is None else f"  {printable(record.data, 200)}"
    return f"{record.seq:>8}  {format_time(record.ts_ms)}  {op_name(record.op):<6}{source}{key}{data}{_marker_text(record)}"


def _marker_text(record: Record) -> str:
    """Why NATS removed the key, for people; "" = a client did, or it says nothing."""
    if record.op not in (Op.DELETE, Op.PURGE):
        return ""
    reasons = [printable(entry.value, 20) for entry in record.meta if entry.name == MARKER_REASON]
    return f"  (by NATS: {_MARKERS.get(reasons[0], reasons[0])})" if reasons else ""


def source_text(record: Record) -> str:
    """Revision and time at the source, for people."""
    return f"revision {version_field(record.version)} of {format_time(record.source_ts_ns // 1_000_000)}"


def gap_line(gap: Gap) -> str:
    """A gap for people."""
    if gap.new_epoch:
        return (
            f"     GAP  {gap_name(gap.reason)}: another topic of this name (epoch {gap.old_epoch}, now {gap.new_epoch})"
        )
    if gap.source_first:
        # A record of the topic tells it: what is lost are revisions of the source, and nothing of the topic.
        lost = f"{_source_range(gap)} lost (gap at {gap.own_seq})"
    elif gap.first_seq == gap.last_seq:
        lost = f"lost {gap.first_seq}"
    else:
        lost = f"lost {gap.first_seq} to {gap.last_seq}"
    return f"     GAP  {gap_name(gap.reason)}: {lost}"


def _source_range(gap: Gap) -> str:
    if not gap.source_last:
        return f"source revisions from {gap.source_first} on, in unknown number,"
    if gap.source_last == gap.source_first:
        return f"source revision {gap.source_first}"
    return f"source revisions {gap.source_first} to {gap.source_last}"


def op_name(op: int) -> str:
    """An op's name, or its number where a newer server has one that we do not know."""
    return Op(op).name if op in _OPS else str(op)


def gap_name(reason: int) -> str:
    """A gap reason's name, or its number."""
    return GapReason(reason).name if reason in _GAP_REASONS else str(reason)
