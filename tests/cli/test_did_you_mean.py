"""A misspelt verb, flag, choice or field is answered with the one that was meant; groups know `ls`."""

from __future__ import annotations

import pytest

from eddyline.cli.errors import CommandError
from eddyline.cli.main import parse_arguments
from eddyline.cli.terminal.json_record import record_from_json
from eddyline.core.records.record import Record
from eddyline.core.runtime.nearest import did_you_mean


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("statsu", "eddyline: error: no verb 'statsu'; did you mean status?"),
        ("topics", "did you mean topic?"),
        ("tail t", "did you mean watch or read?"),
        ("produce t x", "did you mean append?"),
        ("topic crate t", "eddyline topic: error: no verb 'crate'; did you mean create?"),
        ("topic describe t", "did you mean get?"),
        ("topic rm t", "did you mean delete?"),
        ("source rm t", "did you mean delete?"),
        ("kv putt b k v", "did you mean put?"),
        ("xyzzy", "no verb 'xyzzy'; there are up, topic, "),
        ("topic create t --tll 5m", "unrecognized arguments: --tll 5m; did you mean --ttl"),
        ("append t --jsn", "did you mean --json?"),
        ("status --clutser=a:1", "did you mean --cluster?"),
        ("status --xyzzy", "eddyline status: error: unrecognized arguments: --xyzzy\n"),
        ("topic create t --durability fsyn", "'fsyn' is none of disk, fsync, ephemeral; did you mean fsync?"),
        ("status -o jsn", "did you mean json?"),
        ("", "eddyline: error: name a verb: `eddyline --help` says what each does"),
        ("topic", "eddyline topic: error: name a verb: `eddyline topic --help` says what each does"),
        ("append t -", "leave VALUE out to read standard input"),
        ("append t --key k -", "leave VALUE out to read standard input"),
        ("kv put b k -", "leave VALUE out to read standard input"),
        ("kv update b k --revision 1 -", "leave VALUE out to read standard input"),
        ("read t -", "eddyline read: error: unrecognized arguments: -\n"),
    ],
)
def test_misspelt_word_gets_a_suggestion(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_arguments(line.split())
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "name", "given"),
    [
        ("kv put b k --wait-applied v", "value", "v"),
        ("kv create b k --ttl 3s v", "value", "v"),
        ("kv update b k --revision 1 v", "value", "v"),
        ("ls t --data d p", "prefix", "p"),
        ("edge range --file f p", "prefix", "p"),
        ("topic list -o json p", "prefix", "p"),
        ("verify --repair s", "source", "s"),
        ("append t --key k v", "values", ["v"]),
        ("append t v --key k w", "values", ["v", "w"]),
    ],
)
def test_word_that_may_be_left_out_is_taken_behind_flags_too(line: str, name: str, given: object) -> None:
    assert getattr(parse_arguments(line.split()), name) == given


@pytest.mark.parametrize("line", ["kv put b k v --wait-applied w", "kv put b k --wait-applied v w", "ls t p -o json q"])
def test_words_too_many_are_refused(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(line.split())
    assert "unrecognized arguments: " in capsys.readouterr().err


def test_misspelt_field_of_a_json_line_is_answered_likewise() -> None:
    with pytest.raises(CommandError, match=r"unknown field 'dta' \(did you mean data"):
        record_from_json(b'{"dta": "x"}', Record())
    with pytest.raises(CommandError, match=r"unknown field 'xyzzy'; fields are key, "):
        record_from_json(b'{"xyzzy": "x"}', Record())


@pytest.mark.parametrize(("group", "rest"), [("topic", ""), ("source", ""), ("fold", " t")])
def test_groups_know_ls(group: str, rest: str) -> None:
    alias, named = (parse_arguments(f"{group} {verb}{rest}".split()) for verb in ("ls", "list"))
    assert (alias.run, alias.verb) == (named.run, f"{group} list")


def test_nothing_is_meant_by_a_word_that_is_like_none() -> None:
    assert did_you_mean("xyzzy", ["status", "topic"]) == ""
    assert did_you_mean("topc", ["status", "topic"]) == "did you mean topic?"
