"""Options that a verb does not have: the error names the positional argument or the option of that meaning."""

from __future__ import annotations

import pytest

from eddyline.cli.main import parse_arguments


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("get orders --key 99", "KEY is positional: `eddyline get orders 99`\n"),
        ("get orders --key=99", "KEY is positional: `eddyline get orders 99`\n"),
        ("get --key 99 orders", "KEY is positional: `eddyline get orders 99`\n"),
        ("get --topic orders 99 -o json", "TOPIC is positional: `eddyline get orders 99 -o json`\n"),
        ("history orders --key 1", "KEY is positional: `eddyline history orders 1`\n"),
        ("append orders --value x --key k", "VALUE is positional: `eddyline append orders x --key k`\n"),
        ("topic create --topic=x", "NAME is positional: `eddyline topic create x`\n"),
        ("topic create --name x --kind kv", "NAME is positional: `eddyline topic create x --kind kv`\n"),
        ("source get --source s", "NAME is positional: `eddyline source get s`\n"),
        ("kv put b --key k v", "KEY is positional: `eddyline kv put b k v`\n"),
        ("read --topic", "TOPIC is positional: `eddyline read TOPIC`\n"),
        ("read t --from 5", "unrecognized arguments: --from 5; did you mean --after?"),
        ("read t --offset=5", "did you mean --after?"),
        ("watch t --from-beginning", "did you mean --start?"),
        ("topic create t --retention 7d", "did you mean --ttl or --cap-bytes?"),
        ("get orders 99 --xyzzy", "unrecognized arguments: --xyzzy\n"),
        ("get orders", "the following arguments are required: KEY\n"),
    ],
)
def test_error_names_the_argument_that_an_unknown_option_stands_for(
    line: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_arguments(line.split())
    assert ended.value.code == 2
    assert hint in capsys.readouterr().err
