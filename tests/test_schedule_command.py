"""python -m pp_lab.simulate, and the table and picture that put schedules side by side."""

import json
import subprocess
import sys
from fractions import Fraction

import pytest

import pp_lab
from pp_lab.schedule import Cost, Schedule, schedules, simulate, verify
from pp_lab.schedule.table import table
from pp_lab.show.comparison import compare


def command(*arguments):
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "pp_lab.simulate", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


def test_the_command_prints_the_timeline_and_the_figures():
    done = command("1f1b", "-p", "4", "-m", "8")
    assert done.returncode == 0 and done.stderr == ""
    assert str(simulate(schedules.one_f_one_b(4, 8), Cost(F=1, B=2))) in done.stdout
    assert "critical path" in done.stdout and "cost of a rank's share: F=1 B=2" in done.stdout


def test_the_command_splits_a_ranks_cost_among_its_chunks_and_compares():
    done = command("1f1b", "--cost", "F=1,B=2,comm=1/4", "--compare", "interleaved", "zb_v")
    assert done.returncode == 0
    figures = done.stdout[done.stdout.rindex("cost of a rank's share") :]
    asked = [schedules.one_f_one_b(4, 8), schedules.interleaved(4, 8, 2), schedules.zb_v(4, 8)]
    assert figures.strip() == str(table(asked, Cost(F=1, B=2, comm=Fraction(1, 4))))


def test_the_command_writes_a_csv_a_trace_and_a_picture_and_reads_the_csv(tmp_path):
    files = [tmp_path / name for name in ("s.csv", "t.json", "p.png")]
    done = command(
        "zb-h1", "-p", "3", "-m", "4", "--csv", files[0], "--trace", files[1], "--png", files[2]
    )
    assert done.returncode == 0, done.stderr
    back = Schedule.from_csv(files[0])
    assert back.ranks == schedules.zb_h1(3, 4).ranks
    assert len(json.loads(files[1].read_text())["traceEvents"]) == 3 + 3 * 4 * 3
    assert files[2].read_bytes().startswith(b"\x89PNG")
    assert "makespan 14" in command(str(files[0])).stdout


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["dualpipe", "-p", "3"], "the nearest that will do is p=2 m=8 or p=4 m=8"),
        (["nonsense"], "there is no schedule 'nonsense': choose from gpipe, 1f1b"),
        (["1f1b", "--cost", "F=x"], "'F=x' is not a name and a number"),
        (["1f1b", "--cost", "F=1/0"], "'F=1/0' is not a name and a number"),
        (["1f1b", "--cost", "G=1"], "a cost has no G, only F, B, I, W, pair, comm, blocking"),
        (["1f1b", "--cost", "F=-1"], "F=-1 is not a duration"),
        (["1f1b", "-m", "0"], "m must be a whole number, at least 1"),
        (["missing.csv"], "missing.csv"),
    ],
)
def test_a_wrong_request_gets_one_sentence(arguments, sentence):
    done = command(*arguments)
    assert done.returncode == 1
    assert sentence in done.stderr and len(done.stderr.splitlines()) == 1


def test_pp_lab_simulate_is_the_function_whatever_is_imported():
    done = python(
        "import pp_lab; first = pp_lab.simulate\n"
        "import pp_lab.simulate\n"
        "from pp_lab import simulate\n"
        "import importlib; again = importlib.import_module('pp_lab.simulate')\n"
        "assert first is pp_lab.simulate is simulate is again is pp_lab.schedule.simulate\n"
        "print(simulate(pp_lab.schedules.gpipe(2, 2)).makespan)"
    )
    assert (done.stdout, done.stderr) == ("9\n", "")


def test_a_table_has_a_row_per_schedule_with_the_same_work_for_all():
    cost = Cost(F=1, B=2, pair=3)
    asked = [
        schedules.one_f_one_b(4, 8),
        schedules.interleaved(4, 8, 2),
        schedules.zb_v(4, 8),
        schedules.dualpipe(4, 8),
    ]
    rows = {row.schedule: row for row in table(asked, cost).rows}
    assert {name: float(row.makespan) for name, row in rows.items()} == {
        "1F1B": 33,
        "interleaved 1F1B v=2": 28.5,
        "ZB-V": 25.5,
        "DualPipe": 26,
    }
    assert [float(row.peak) for row in rows.values()] == [4, 5.5, 4, 5]
    assert [row.messages for row in rows.values()] == [48, 112, 96, 48]
    assert [row.parameters for row in rows.values()] == [1, 1, 1, 2]
    assert [float(row.least) for row in rows.values()] == [33, 28.5, 25.5, 25]
    assert float(rows["ZB-V"].span) == 24


def test_a_table_as_text_and_as_html_names_its_cost_model():
    t = table([schedules.gpipe(2, 2), schedules.zb_v(2, 4)], Cost(F=1, B=2, comm=0.5))
    lines = str(t).splitlines()
    assert lines[0] == "cost of a rank's share: F=1 B=2 comm=0.5" and len(lines) == 4
    assert lines[1].split() == [
        "schedule",
        "p",
        "m",
        "stages",
        "makespan",
        "bubble",
        "span",
        "least",
        "peak",
        "messages",
        "parameters",
    ]
    page = t._repr_html_()
    assert "cost of a rank&#x27;s share: F=1 B=2 comm=0.5" in page
    assert page.count("<tr>") == 3 and '<th scope="col" title="ranks">p</th>' in page


def test_ranks_that_cannot_share_the_stages_evenly_are_not_compared():
    s = Schedule("odd", [[*schedules.gpipe(1, 1).ranks[0]], []])
    odd = Schedule("odd", s.ranks, pp_lab.Placement("odd", ((0,),)), 1)
    verify(odd)
    with pytest.raises(ValueError, match="1 stages cannot share out the work of 2 ranks"):
        table([odd])


def test_a_comparison_is_a_table_and_one_picture_over_one_axis(tmp_path):
    both = compare([schedules.one_f_one_b(3, 4), schedules.zb_h1(3, 4)], Cost(F=1, B=2))
    assert repr(both) == str(both.table) and len(both.rows) == 2
    assert len(both.timeline.panels) == 2
    page = both._repr_mimebundle_()["text/html"]
    assert "<table>" in page and "<img alt=" in page
    for trace in both.table.traces:
        assert f"makespan {trace.makespan}" in page and "cost F=1 B=2" in page
    both.save(tmp_path / "both.png")
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")
