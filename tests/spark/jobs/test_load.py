"""The job `load`: files into a topic, each row once, gone on with where it was stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eddyline.core.errors import EddylineError, InvalidArgument
from eddyline.core.model.topic import Kind
from eddyline.core.records.record import MetaEntry, Op, Record
from eddyline.spark.jobs.files.file_rows import open_rows
from eddyline.spark.jobs.job import EXIT_FAILED, EXIT_OK, EXIT_USAGE, JobError, main
from eddyline.spark.jobs.load import ABOUT, ENDINGS, InputFile, Load, LoadPlan, find_files, load_file
from eddyline.spark.options.write import BATCH_RECORDS
from eddyline.spark.writer.partition import Target
from tests.support.spark.arrow_rows import rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from eddyline.spark.jobs.files.file_rows import FileRows
    from eddyline.spark.writer.partition import RowChunk
    from tests.support.spark.target import TopicAt

pytestmark = pytest.mark.spark


def write_parquet(path: Path, records: Sequence[Record], *, row_group_size: int = 700) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_batches([rows_of(records)]), path, row_group_size=row_group_size)
    return path


def write_lines(path: Path, lines: Sequence[object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def records_of(count: int, name: str = "") -> list[Record]:
    return [Record(data=f"{name}{index}".encode()) for index in range(count)]


def rows_in(path: Path, kind: Kind = Kind.LOG, bad: list[str] | None = None) -> FileRows:
    def on_bad(place: int, error: EddylineError) -> None:
        if bad is None:
            raise error
        bad.append(f"{place} {error.reason} {error.message}")

    is_parquet = ENDINGS[path.suffix]
    return open_rows(str(path), name=path.name, is_parquet=is_parquet, kind=kind, topic="t", on_bad=on_bad)


def pieces_of(rows: FileRows) -> list[RowChunk]:
    return list(iter(rows.next_piece, None))


def joined(pieces: Sequence[RowChunk]) -> list[Record]:
    return [record for piece in pieces for record in piece.batch.to_rows()]


@pytest.mark.parametrize("ending", [".parquet", ".jsonl"])
def test_a_file_is_gone_on_with_behind_each_of_its_pieces(tmp_path: Path, ending: str) -> None:
    records = records_of(12_000)
    path = tmp_path / f"rows{ending}"
    if ending == ".parquet":
        write_parquet(path, records)
    else:
        write_lines(path, [{"data": (record.data or b"").decode()} for record in records])
    pieces = pieces_of(rows_in(path))
    assert joined(pieces) == records
    assert len(pieces) > 2
    assert [piece.position.is_final for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    written = 0
    for piece in pieces:
        rows = rows_in(path)
        written += piece.batch.count
        assert rows.resume(piece.position, ())
        assert joined(pieces_of(rows)) == records[written:]
        assert rows.was_done is piece.position.is_final


def test_a_place_within_a_row_group_is_gone_on_with(tmp_path: Path) -> None:
    records = records_of(3_000)
    path = write_parquet(tmp_path / "rows.parquet", records, row_group_size=1_000)
    whole = pieces_of(rows_in(path))[0].position
    rows = rows_in(path)
    assert rows.resume(whole._replace(ordinal=1_234, is_final=False), ())
    assert joined(pieces_of(rows)) == records[1_234:]


@pytest.mark.parametrize("ending", [".parquet", ".jsonl"])
def test_a_file_that_was_changed_is_refused(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"rows{ending}"
    for data in ("a", "b"):
        if ending == ".parquet":
            write_parquet(path, [Record(data=data.encode())])
        else:
            write_lines(path, [{"data": data}])
        if data == "a":
            position = pieces_of(rows_in(path))[0].position
    with pytest.raises(InvalidArgument, match=f"file rows{ending} was changed since a part of it was loaded"):
        rows_in(path).resume(position, ())


def test_lines_are_the_form_that_the_command_prints(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "rows.jsonl",
        [
            {"seq": 5, "ts_ms": 1, "version": "x", "topic": "t", "op": "put", "key": "k", "data": "é", "tag": "t"},
            {"key_base64": "AP8=", "data_base64": "", "source_ts_ns": -5, "meta": {"a": "1"}},
            "",
            {"op": "DELETE", "key": "k", "meta": [{"name": "n", "value_base64": "/w=="}], "node": "x"},
        ],
    )
    assert joined(pieces_of(rows_in(path, Kind.KV))) == [
        Record(op=Op.PUT, key=b"k", data="é".encode(), tag="t"),
        Record(op=Op.PUT, key=b"\0\xff", data=b"", source_ts_ns=-5, meta=(MetaEntry("a", b"1"),)),
        Record(op=Op.DELETE, key=b"k", meta=(MetaEntry("n", b"\xff"),), node="x"),
    ]


def test_bad_lines_are_reported_with_their_byte_and_passed_over(tmp_path: Path) -> None:
    wrong: list[object] = [
        "{",
        "[]",
        {"data": "ok", "value": 1},
        {"op": "PUT", "key": "k"},
        {"data": 5},
        {"data": "a", "data_base64": "YQ=="},
        {"data_base64": "?"},
        {"tag": "t" * 257},
        {"data": "\ud800"},
        {"source_ts_ns": 1.5},
        {"meta": "m"},
        {"meta": [{"name": "n", "other": 1}]},
        "\ufffe" + "x" * 10,
        {"gap": "EVICTED", "first_seq": 1, "last_seq": 2},
    ]
    path = write_lines(tmp_path / "rows.jsonl", [{"data": "first"}, *wrong, {"data": "last"}])
    bad: list[str] = []
    rows = rows_in(path, bad=bad)
    assert [record.data for record in joined(pieces_of(rows))] == [b"first", b"last"]
    assert rows.skipped == len(bad) == len(wrong)
    places = sorted(int(text.split()[0]) for text in bad)
    lines = path.read_bytes().splitlines(keepends=True)
    assert places == [sum(map(len, lines[:index])) for index in range(1, len(wrong) + 1)]
    assert any("RECORD_TOO_LARGE" in text and "tag has 257 bytes" in text for text in bad)
    with pytest.raises(EddylineError, match="byte 18: not JSON"):
        pieces_of(rows_in(path))


def test_names_of_meta_are_the_users_where_it_is_an_object(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", [{"meta": {"sum": "1", "sum_base64": "?"}}])
    assert joined(pieces_of(rows_in(path))) == [
        Record(meta=(MetaEntry("sum", b"1"), MetaEntry("sum_base64", b"?"))),
    ]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "latin-1"])
def test_lines_that_are_not_utf8_are_bad(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "rows.jsonl"
    # Without a line's end: to json, bytes alone look like text of another encoding.
    path.write_bytes('{"data": "ü"}'.encode(encoding))
    bad: list[str] = []
    assert joined(pieces_of(rows_in(path, bad=bad))) == []
    assert [text.split(": ")[0] for text in bad] == ["0 MALFORMED_COLUMNS byte 0"]


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes('{"data": "ü"}\r\n'.encode("utf-8-sig"))
    assert joined(pieces_of(rows_in(path))) == [Record(data="ü".encode())]


@pytest.mark.parametrize("count", [1, BATCH_RECORDS - 1, BATCH_RECORDS, 2 * BATCH_RECORDS])
def test_blank_lines_at_the_end_belong_to_the_last_piece(tmp_path: Path, count: int) -> None:
    path = write_lines(tmp_path / "rows.jsonl", [{"data": f"{index}"} for index in range(count)] + ["", " ", ""])
    pieces = pieces_of(rows_in(path))
    assert joined(pieces) == records_of(count)
    assert [piece.position.is_final for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    again = rows_in(path)
    again.resume(pieces[-1].position, ())
    assert again.was_done


def test_bad_rows_of_parquet_are_reported_with_their_number_and_passed_over(tmp_path: Path) -> None:
    records = [
        record._replace(op=Op.PUT, key=b"" if index in {3, 2_500} else b"k")
        for index, record in enumerate(records_of(3_000))
    ]
    path = write_parquet(tmp_path / "rows.parquet", records)
    bad: list[str] = []
    rows = rows_in(path, Kind.KV, bad)
    assert joined(pieces_of(rows)) == [record for record in records if record.key]
    assert [text.split()[:2] for text in bad] == [["3", "KEY_REQUIRED"], ["2500", "KEY_REQUIRED"]]


def test_a_load_that_failed_goes_on_and_one_that_is_done_reads_nothing(topic: TopicAt, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", [{"data": f"{index:0100}"} for index in range(9_000)])
    whole = path.read_bytes()
    at = whole.index(b'{"data": "%0100d"}' % 6_000)
    target = Target((topic.address,), topic.topic, Kind.LOG, 0, "")
    file = InputFile(str(path), path.name, is_parquet=False)
    # As many bytes as before, so that it is the same file but for one line far from its ends.
    path.write_bytes(whole[:at] + b"?" + whole[at + 1 :])
    failed = load_file(file, LoadPlan((file,), target, "", skips_bad=False))
    assert str(failed["failure"]).startswith("MALFORMED_COLUMNS")
    assert failed["appended"] == 5_000
    path.write_bytes(whole)
    mended = load_file(file, LoadPlan((file,), target, "", skips_bad=False))
    assert (mended["failure"], mended["appended"], mended["first_seq"], mended["was_done"]) == (
        None,
        4_000,
        5_001,
        False,
    )
    again = load_file(file, LoadPlan((file,), target, "", skips_bad=False))
    assert (again["failure"], again["appended"], again["was_done"]) == (None, 0, True)


@pytest.mark.parametrize(
    ("names", "given", "named"),
    [
        ((), ("nowhere",), "nowhere: no such file or folder"),
        (("a/x.csv",), ("a/x.csv",), "give --input-format"),
        (("a/_SUCCESS", "a/.hidden.jsonl", "a/x.csv"), ("a",), "0 files"),
        (("a/x.jsonl", "b/x.jsonl"), ("a", "b"), "are both x.jsonl"),
    ],
)
def test_inputs_that_cannot_be_loaded_are_refused(
    tmp_path: Path, names: Sequence[str], given: Sequence[str], named: str
) -> None:
    for name in names:
        write_lines(tmp_path / name, [])
    with pytest.raises(Exception, match=named):
        find_files([str(tmp_path / name) for name in given], "auto")


def test_a_file_of_no_known_ending_is_refused_however_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_lines(tmp_path / "a" / "x.csv", [])
    good = write_lines(tmp_path / "a" / "x.jsonl", [])
    monkeypatch.chdir(tmp_path)
    for given in (str(path), "a/x.csv", "./a/x.csv", f"{tmp_path}/a/../a/x.csv", path.as_uri()):
        with pytest.raises(JobError, match=r"x\.csv: .*: give --input-format"):
            find_files([str(good), given], "auto")


@pytest.mark.parametrize("given", ["nosuch://place/file", "file://["])
def test_a_file_system_that_is_not_known_is_refused_by_its_input(given: str) -> None:
    with pytest.raises(JobError) as caught:
        find_files([given], "auto")
    assert caught.value.usage
    assert given in caught.value.message


def test_files_of_a_uri_have_any_name(tmp_path: Path) -> None:
    names = ["a b.jsonl", "a%20b.jsonl", "#1?.jsonl", "é/ü.jsonl", "plain.jsonl"]
    for name in names:
        write_lines(tmp_path / name, [{"data": name}])
    for given in (str(tmp_path), tmp_path.as_uri(), f"{tmp_path.as_uri()}/"):
        found = find_files([given], "auto")
        assert sorted(file.name for file in found) == sorted(names)
        for file in found:
            rows = open_rows(
                file.path,
                name=file.name,
                is_parquet=False,
                kind=Kind.LOG,
                topic="t",
                on_bad=lambda _place, _error: None,
            )
            assert joined(pieces_of(rows)) == [Record(data=file.name.encode())]


async def test_folders_are_loaded_once_and_the_last_line_states_what_was_done(
    spark: SparkSession, topic: TopicAt, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    inputs = tmp_path / "in"
    write_parquet(inputs / "day=1" / "a.parquet", records_of(2_000, "a"))
    write_lines(inputs / "day=2" / "b.jsonl", [{"data": f"b{index}"} for index in range(1_500)] + ["?"])
    made = topic._replace(topic=f"{topic.topic}-made")
    command = ["--store", made.address, "--topic", made.topic, "--create", "log", str(inputs)]

    def load(*more: str) -> tuple[int, dict[str, object], str]:
        code = main("load", ABOUT, Load(), [*command, *more])
        said = capfd.readouterr()
        return code, json.loads(said.out.splitlines()[-1]), said.err

    code, result, told = load()
    assert code == EXIT_FAILED
    assert (result["files"], result["files_failed"], result["records"]) == (2, 1, 2_000)
    assert "load: day=2/b.jsonl: MALFORMED_COLUMNS" in told
    code, result, told = load("--on-bad", "skip")
    assert code == EXIT_OK
    assert (result["files_done_before"], result["files_failed"]) == (1, 0)
    assert (result["records"], result["skipped"]) == (1_500, 1)
    assert "load: day=2/b.jsonl: passed over: MALFORMED_COLUMNS" in told
    found = await made.data()
    for name, count in (("a", 2_000), ("b", 1_500)):
        assert [data for data in found if data.startswith(name.encode())] == [
            f"{name}{index}".encode() for index in range(count)
        ]


def test_the_command_runs_by_itself(topic: TopicAt, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", [{"data": "a"}, {"data": "b"}])
    command = ["--store", topic.address, "--topic", topic.topic, str(path)]
    ended = subprocess.run(
        [sys.executable, "-m", "eddyline.spark.jobs.load", *command],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
    )
    assert ended.returncode == EXIT_OK, ended.stderr
    assert json.loads(ended.stdout.splitlines()[-1]) == {
        "topic": topic.topic,
        "files": 1,
        "files_done_before": 0,
        "files_failed": 0,
        "records": 2,
        "skipped": 0,
        "first_seq": 1,
        "last_seq": 2,
    }


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], EXIT_OK),
        ([], EXIT_USAGE),
        (["--store", "nowhere", "--topic", "t", "x"], EXIT_USAGE),
        (["--store", "a:1", "--topic", "t", "--on-bad", "ask", "x"], EXIT_USAGE),
    ],
)
def test_the_exit_code_states_how_it_ended(arguments: list[str], code: int, capfd: pytest.CaptureFixture[str]) -> None:
    assert main("load", ABOUT, Load(), arguments) == code
    said = capfd.readouterr()
    assert (said.out if code == EXIT_OK else said.err).strip()
