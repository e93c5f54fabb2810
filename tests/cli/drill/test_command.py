"""The verb `drill`: every drill is named in its help, and each named one is run; a drill's line has its own counts."""

from __future__ import annotations

import io
import json

import pytest

from eddyline.cli.drill.drills import DRILLS
from eddyline.cli.drill.run import LONG, ON_ONE_CLUSTER, VICTIMS, print_verdict
from eddyline.cli.drill.scenarios.store_jobs import STAGES
from eddyline.cli.drill.support.scene import Verdict
from eddyline.cli.terminal.output import Output
from tests.support.command_line import main


def test_help_names_every_drill(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["drill", "--help"])
    said = capsys.readouterr().out.partition("drills:")[2]
    for name, what in DRILLS.items():
        assert f"  {name:<10}  {what}\n" in said


def test_every_named_drill_is_run() -> None:
    assert set(DRILLS) == {*VICTIMS, *ON_ONE_CLUSTER, *LONG, *STAGES, "disk", "clock"}


@pytest.mark.parametrize("findings", [[], ["rollback: 1 key differs"]])
def test_drill_line_has_its_own_counts(findings: list[str]) -> None:
    verdict = Verdict("rollback", kills=4, counts={"behind_kept_keys": 79, "heal_s_max": 2.5}, findings=findings)
    text, lines = io.StringIO(), io.StringIO()
    assert print_verdict(verdict, Output(stream=text)) == bool(findings)
    print_verdict(verdict, Output("json", stream=lines))
    line = json.loads(lines.getvalue())
    assert line["counts"] == {"behind_kept_keys": 79, "heal_s_max": 2.5}
    assert (line["ok"], line["findings"]) == (not findings, findings)
    assert "0 gaps  behind_kept_keys 79  heal_s_max 2.5  0.0 s" in text.getvalue()
    assert text.getvalue().split()[1] == ("LOSS" if findings else "ok")
