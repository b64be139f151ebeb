"""What works where neither torch nor what draws is installed, as in a browser's Python."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from without_torch import BLOCKED, SOLUTIONS

ROOT = Path(__file__).parent.parent
BLOCKING = (
    "import sys; sys.path.insert(0, 'tests'); from without_torch import Blocked\n"
    "sys.meta_path.insert(0, Blocked)\n"
)
# Of each lab the exercises that a simulation can judge; the others run rank programs or compute
# with tensors.
JUDGED = {
    "lab01": "bubble cut in_flight enough is_legal as_data",
    "lab02": "place bubble tables warmup interleaved price choose refused rounds",
    "lab03": "held zb_h1 zb_h2 bubble_rate in_a_row",
    "lab04": "placements zb_v dualpipe dualpipe_v v_min_block fits step_counts crossing",
    "lab05": "held_layers layer_bytes recomputed parse_layout split",
    "lab06": "calls hops exposed eager warmup",
    "lab07": "share together saved",
    "lab08": "combined_one pair_warmup combined total_time paired_share accepted choose",
    "lab09": "layout exposed crossing volumes",
    "lab10": "undominated state_bytes fullest stage_seconds step_seconds search worth",
}


def blocked(code):
    """What a process prints in which none of `BLOCKED` can be imported."""
    done = subprocess.run(
        [sys.executable, "-c", BLOCKING + code], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def test_what_is_blocked_cannot_be_imported():
    for name in BLOCKED:
        code = f"try: import {name}\nexcept ImportError as error: print(error)"
        assert blocked(code) == f"blocked: {name}\n"


@pytest.fixture(scope="module")
def verdicts():
    done = subprocess.run(
        [sys.executable, "tests/without_torch.py"], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("lab", JUDGED)
def test_what_a_simulation_can_judge_gets_full_marks_and_says_by_what(verdicts, lab):
    for name in JUDGED[lab].split():
        points, of, reasons = verdicts[lab][name]
        assert points == of, f"{name}: {reasons}"
        said = [text for kind, text in reasons if "real ranks" in text]
        assert len(said) <= 1 and all("by simulation only" in text for text in said), name


@pytest.mark.parametrize("lab", JUDGED)
def test_what_needs_torch_earns_nothing_and_says_so_in_one_sentence(verdicts, lab):
    for name in verdicts[lab].keys() - set(JUDGED[lab].split()):
        points, _, reasons = verdicts[lab][name]
        kind, text = reasons[-1]
        assert (points, kind) == (0, "note") and "pip install torch" in text, f"{name}: {reasons}"


def test_at_least_45_of_80_exercises_are_judged_without_torch():
    exercises = sum(
        len([c for c in json.loads(path.read_text("utf-8"))["cells"]
             if c["metadata"].get("pp_lab", {}).get("role") == "check"])
        for path in SOLUTIONS.glob("*.ipynb")
    )  # fmt: skip
    assert exercises == 80
    assert sum(len(names.split()) for names in JUDGED.values()) >= 45


def test_a_wrong_answer_is_refused_without_torch_as_with_it():
    code = (
        "from pp_lab import schedules\n"
        "from pp_lab.course import lab03\n"
        "score = lab03.zb_h1(lambda p, m: [list(row) for row in schedules.zb_h2(p, m).ranks])\n"
        "print(score < score.of, score.reasons[-1][1])"
    )
    assert "activations" in blocked(code) and blocked(code).startswith("True ")


def test_a_stub_is_not_attempted_without_torch():
    code = (
        "from pp_lab.course import lab01, lab04\n"
        "def stub(*arguments): raise NotImplementedError\n"
        "print(lab01.as_data(stub).reasons, lab04.zb_v(stub).reasons)"
    )
    assert blocked(code).count("not attempted") == 2


def test_a_lab_says_in_one_sentence_what_is_missing_and_what_works():
    code = (
        "import pp_lab as pp\n"
        "from pp_lab import Lab, P2POp, Run, RunError, Score\n"
        "try: Lab(stages=4)\n"
        "except pp.LabError as error: print(error)"
    )
    (said,) = blocked(code).splitlines()
    assert said.startswith("pp_lab.Lab computes with tensors, on real processes, and needs torch")
    assert "simulate" in said and "pip install torch" in said


def test_a_timeline_shows_its_svg_and_is_saved_as_one(tmp_path):
    code = (
        "import pp_lab as pp\n"
        "figure = pp.timeline(pp.simulate(pp.schedules.one_f_one_b(3, 4)))\n"
        "page = figure._repr_mimebundle_()['text/html']\n"
        "print('src=\"data:image/svg+xml;base64,' in page, '<script' in page)\n"
        f"figure.save({str(tmp_path / 'a.svg')!r})\n"
        f"try: figure.save({str(tmp_path / 'a.png')!r})\n"
        "except pp.LabError as error: print(error)"
    )
    first, second = blocked(code).splitlines()
    assert first == "True True"
    assert "matplotlib" in second and ".svg" in second
    assert (tmp_path / "a.svg").read_text().startswith("<svg ")
    assert not (tmp_path / "a.png").exists()


def test_charts_and_blueprints_show_their_text():
    code = (
        "import pp_lab as pp\n"
        "chart = pp.chart([1, 2], {'a': [1, 2]}, xlabel='x', ylabel='y')\n"
        "for still in chart, pp.blueprint(pp.Grid(dp=2)): print(*still._repr_mimebundle_())"
    )
    assert blocked(code) == "text/plain\ntext/plain\n"


def test_the_explorers_page_and_the_comparison_work():
    code = (
        "import pp_lab as pp\n"
        "from pp_lab.show.page import page, seen\n"
        "from pp_lab.show.explore import Choice, view\n"
        "print('<form' in page(), seen('schedule=ZB-V&p=4&m=8')['makespan'])\n"
        "print(view(Choice(schedule='DualPipe')).picture[:4])\n"
        "shown = pp.compare([pp.schedules.gpipe(2, 2)])._repr_mimebundle_()\n"
        "print('svg+xml' in shown['text/html'])"
    )
    assert blocked(code) == "True 25.5\n<svg\nTrue\n"


def test_a_score_shows_its_reasons_and_its_picture():
    code = (
        "from pp_lab.course import lab02\n"
        "score = lab02.interleaved(lambda p, m, v: [[] for _ in range(p)])\n"
        "print(score.passed, len(score._repr_html_()) > 100)"
    )
    assert blocked(code) == "False True\n"
