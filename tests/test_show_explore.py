"""The explorer: what it shows for a choice, under widgets and on its page."""

import subprocess
import sys
import urllib.request
from fractions import Fraction

import pytest

import pp_lab as pp
from pp_lab import Op, simulate
from pp_lab.show import page
from pp_lab.show.explore import FAMILY, LIMITS, NAMES, Choice, moments, view


@pytest.mark.parametrize("name", FAMILY)
def test_every_schedule_is_shown_with_its_figures(name):
    seen = view(Choice(name, p=4, m=8))
    assert seen.sentence == "" and seen.picture.startswith("<svg ")
    assert seen.picture.count("peak ") >= 4
    assert f"<td>{float(seen.trace.bubble):.1%}</td>" in seen.figures


@pytest.mark.parametrize("name", [name for name in FAMILY if FAMILY[name][2]])
def test_a_closed_form_is_what_is_simulated_or_does_not_apply(name):
    applied = 0
    for p in (1, 2, 3, 4, 6):
        for m in (1, 2, 5, 6, 12):
            for comm in (0, 0.5):
                for W in (0.5, 1, 3):
                    seen = view(Choice(name, p, m, F=2, I=1.5, W=W, comm=comm))
                    assert "not as simulated" not in seen.figures, (name, p, m, comm, W)
                    applied += ", as simulated" in seen.figures
    assert applied >= 30


@pytest.mark.parametrize(
    ("choice", "sentence"),
    [
        (Choice("DualPipe", p=3), "DualPipe needs an even p"),
        (Choice("GPipe", cap=3), "holds 4 activations, and the cap is 3"),
        (Choice(p=99), "p=99: from 1 to 16"),
        (Choice("nonsense"), "there is no schedule 'nonsense': choose from GPipe"),
        (Choice(other="nonsense"), "there is no schedule 'nonsense'"),
    ],
)
def test_what_cannot_be_is_one_sentence(choice, sentence):
    seen = view(choice)
    assert sentence in seen.sentence and "\n" not in seen.sentence
    assert (seen.picture, seen.figures, seen.trace) == ("", "", None)


def test_the_cursor_says_of_every_rank_what_it_does_or_why_it_idles():
    seen = view(Choice("1F1B", time=5))
    assert 'class="cursor"' in seen.picture
    assert seen.sentence.startswith("At 5: rank 0 is idle until 10: its next op, B0, needs 1B0")
    assert "rank 3 runs B0" in seen.sentence
    assert view(Choice("1F1B", time=33)).sentence.count("is done") == 4
    assert 'class="cursor"' not in view(Choice("1F1B")).picture


def test_a_step_of_the_cursor_goes_to_where_something_starts_or_ends():
    assert moments(view(Choice("GPipe", p=1, m=1)).trace) == [0, 1, 3]


def test_two_schedules_stand_under_each_other_on_one_axis():
    seen = view(Choice("1F1B", other="ZB-H1"))
    assert "1F1B p=4 m=8" in seen.picture and "ZB-H1 p=4 m=8" in seen.picture
    assert seen.figures.count("<tr") == 3


def test_costs_stay_exact():
    assert Choice(F=0.25, I=1, W=0.1).cost.W == Fraction(1, 10)
    assert simulate(Choice().made("1F1B"), Choice().cost).makespan == 33


def test_every_limit_has_a_name():
    assert set(LIMITS) == set(NAMES)


# ---- under widgets


def test_moving_a_slider_changes_what_is_shown():
    explorer = pp.explore(schedule="ZB-V", p=4, m=8)
    assert "makespan 25.5" in explorer.picture.value
    explorer.controls["schedule"].value = "1F1B"
    explorer.controls["m"].value = 10
    assert "makespan 39" in explorer.picture.value and "<td>39</td>" in explorer.figures.value
    explorer.step.value = 3
    assert explorer.says.value.startswith("At 3: rank 0 runs F3")
    explorer.controls["p"].value = 2
    assert explorer.step.value == -1 and explorer.says.value == ""


def test_what_cannot_be_is_said_under_the_sliders_and_the_way_back_is_open():
    explorer = pp.explore(schedule="DualPipe")
    explorer.controls["p"].value = 3
    assert explorer.says.value.startswith("DualPipe needs an even p")
    explorer.step.value = 0  # nothing to step through
    explorer.controls["p"].value = 4
    assert "makespan 26" in explorer.picture.value


def test_it_saves_what_torch_reads(tmp_path):
    explorer = pp.explore(schedule="1F1B", p=2, m=2)
    explorer.file.value = str(tmp_path / "mine.csv")
    explorer._save(None)
    assert "saved as" in explorer.says.value
    assert pp.Schedule.from_csv(tmp_path / "mine.csv").ranks == explorer.view.trace.schedule.ranks
    explorer.file.value = str(tmp_path / "missing" / "mine.csv")
    explorer._save(None)
    assert "nothing was saved" in explorer.says.value


def test_without_a_kernel_a_picture_stays():
    image = pp.explore()._repr_mimebundle_()["text/html"]
    assert image.startswith('<img alt="1F1B p=4 m=8') and 'src="data:image/svg+xml;base64,' in image


def test_a_schedule_by_hand_offers_what_can_come_and_names_what_was_built():
    from pp_lab.show.widget import Hand

    hand = Hand()
    hand.p.value, hand.m.value = 2, 1
    assert [len(row.children) - 1 for row in hand.ranks.children] == [1, 0]
    hand.asked.value = "1F0"
    assert hand.says.value == "Not now: 1F0 needs 0F0, which has not run yet."
    hand.asked.value = "what?"
    assert "is not an op" in hand.says.value
    for text in ("0F0", "1F0", "1B0", "0B0"):
        hand.add(pp.schedule.op.parse(text))
    assert "complete and legal: makespan 6" in hand.says.value
    assert "This is GPipe and 1F1B and eager 1F1B." in hand.says.value
    hand._undo()
    assert hand.says.value == "0B0 is taken back." and hand.hand.ready(0) == [Op("B", 0, 0)]


# ---- on its page


def test_the_page_has_a_control_for_every_field_of_a_choice():
    text = page.page()
    for name in (*LIMITS, "schedule", "other", "time"):
        assert f'name="{name}"' in text


def test_a_query_is_answered_with_a_picture_or_a_sentence():
    seen = page.seen("schedule=GPipe&p=2&m=3&time=1")
    assert seen["makespan"] == 12 and "cursor" in seen["picture"]
    assert page.seen("p=many")["sentence"] == "p='many' is not a number"
    assert page.seen("schedule=%3Cscript%3E")["picture"] == ""


def test_the_command_serves_it_without_torch_matplotlib_and_widgets():
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['torch', 'matplotlib', 'ipywidgets']));"
        "sys.argv = ['explore', '--port', '0']; import runpy;"
        "runpy.run_module('pp_lab.explore', run_name='__main__')"
    )
    server = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        url = server.stdout.readline().split()[0]
        with urllib.request.urlopen(f"{url}view?schedule=ZB-H2&p=4&m=8") as answer:
            assert b"makespan 27" in answer.read()
        with pytest.raises(urllib.error.HTTPError, match="404") as missing:
            urllib.request.urlopen(f"{url}nothing")
        missing.value.close()
    finally:
        server.kill()
        server.communicate()
