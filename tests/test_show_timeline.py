"""Timelines: what stands where, what is said about it, and what a page gets."""

import hashlib
import io
import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import matplotlib.style
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageColor

from pp_lab.schedule import Cost, LabError, Op, Pair, Schedule, Trace, schedules, simulate
from pp_lab.schedule.op import parse
from pp_lab.show import assets, bundle, stack, timeline
from pp_lab.show.explainer import Explainer
from pp_lab.show.layout import held, memory
from pp_lab.show.palette import KINDS, LABEL, MARK, fill
from pp_lab.show.picture import SHARPNESS

ROOT = Path(__file__).parent.parent
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def trace():
    return simulate(schedules.one_f_one_b(4, 8))


def slowed(schedule, unit, clock, cost):
    """A run like a measured one: ops take up to a quarter longer than F=1, B=2."""
    ideal = simulate(schedule, Cost(F=1, B=2))
    free, ran = [0.0] * schedule.p, {}
    for k, event in enumerate(sorted(ideal.events, key=lambda event: event.start)):
        start = max([free[event.rank], *(ran[id(e)].end for e, _ in ideal.needs(event))])
        free[event.rank] = start + float(event.end - event.start) * unit * (1 + k % 5 / 16)
        ran[id(event)] = event._replace(start=start, end=free[event.rank])
    return Trace(schedule, [ran[id(event)] for event in ideal.events], cost, clock)


def looped(p, v, m):
    """Breadth-first: all micro-batches through one stage after the other."""
    order = [("F", chunk) for chunk in range(v)] + [("B", chunk) for chunk in reversed(range(v))]
    rows = [[Op(kind, chunk * p + r, i) for kind, chunk in order for i in range(m)]
            for r in range(p)]  # fmt: skip
    return simulate(Schedule("looped", rows, microbatches=m), Cost(F=1, B=2).split(v))


def combined(m):
    """One rank that runs every backward together with the next forward."""
    pairs = [Pair(Op("F", 0, i + 1), Op("B", 0, i)) for i in range(m - 1)]
    row = [Op("F", 0, 0), *pairs, Op("B", 0, m - 1)]
    return simulate(Schedule("combined", [row]), Cost(F=1, B=2, pair=2))


def texts(figure):
    return [text.text for text in figure.scene.texts]


def boxes(figure):
    return {(row.name, str(box.event.op)): box for row in figure.scene.rows for box in row.boxes}


class Page(HTMLParser):
    """The elements of a piece of HTML, and the text of its scripts."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts, self.inside = [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.inside = tag

    def handle_data(self, text):
        if self.inside == "script":
            self.scripts.append(text)

    @property
    def data(self):
        return json.loads(self.scripts[0])


# What a notebook gets


def test_the_repr_is_the_text_timeline_and_it_is_the_alt_text_of_the_picture(trace):
    figure = timeline(trace)
    assert repr(figure) == str(trace)
    assert figure._repr_mimebundle_() == {"text/plain": str(trace), "text/html": figure.html}
    tag, image = next(x for x in Page(figure.html).tags if x[0] == "img")
    assert image["alt"] == str(trace)
    assert image["src"].startswith("data:image/png;base64,")


def test_a_bare_trace_is_shown_as_its_timeline(trace):
    assert bundle(trace, include=None, exclude=None) == timeline(trace)._repr_mimebundle_()


def test_the_repr_names_both_the_run_and_the_prediction(trace):
    run = Trace(trace.schedule, trace.events, trace.cost, "virtual")
    assert repr(timeline(run, predicted=trace)) == f"{run}\npredicted: {trace}"


def test_the_same_trace_gives_the_same_page_in_another_process(trace):
    code = (
        "import hashlib, sys; from pp_lab.schedule import *; from pp_lab.show import timeline\n"
        "page = timeline(simulate(schedules.one_f_one_b(4, 8))).html\n"
        "print(hashlib.sha256(page.encode()).hexdigest(), 'matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [
        hashlib.sha256(timeline(trace).html.encode()).hexdigest(),
        "False",
    ]


def test_importing_the_show_room_imports_neither_matplotlib_nor_numpy():
    code = "import sys, pp_lab.show; print({'matplotlib', 'numpy', 'PIL'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("set()\n", "")


def test_the_picture_of_4_ranks_and_8_micro_batches_is_small_and_can_be_saved(trace, tmp_path):
    figure = timeline(trace)
    figure.save(tmp_path / "timeline.png")
    assert (tmp_path / "timeline.png").read_bytes() == figure.png
    assert figure.png.startswith(PNG)
    assert len(figure.png) < 80_000


def test_a_readers_matplotlib_style_does_not_change_the_picture(trace):
    usual = timeline(trace).png
    with matplotlib.style.context(["dark_background", "ggplot", {"hatch.linewidth": 5}]):
        assert timeline(trace).png == usual


def test_a_schedules_name_cannot_break_out_of_the_page():
    name = '</script><b onclick="x">"\'&'
    schedule = Schedule(name, [[Op("F", 0, 0), Op("B", 0, 0)]])
    page = Page(timeline(simulate(schedule)).html)
    assert [tag for tag, _ in page.tags] == ["div", "img", "script", "script"]
    assert page.tags[1][1]["alt"].startswith(name)
    assert page.data["name"].startswith(name)


def test_a_figure_states_its_cost_model():
    title, figures, *_ = texts(timeline(simulate(schedules.gpipe(2, 3), Cost(F=2, B=5, comm=1))))
    assert title == "GPipe p=2 m=3, cost F=2 B=5 comm=1"
    assert figures.startswith("makespan ")


# What stands where


def test_boxes_stand_where_their_times_are(trace):
    figure = timeline(trace)
    scale = (figure.scene.rows[0].right - figure.scene.rows[0].left) / 33
    for row in figure.scene.rows:
        assert [box.event for box in row.boxes] == trace.ranks[row.rank]
        for box in row.boxes:
            assert box.x == pytest.approx(row.left + box.event.start * scale)
            assert box.width == pytest.approx((box.event.end - box.event.start) * scale)


def test_a_run_and_its_prediction_share_one_axis_and_equal_times_stand_above_each_other(trace):
    run = slowed(trace.schedule, 1.0, "pace", trace.cost)
    figure = timeline(run, predicted=trace)
    names = [row.name for row in figure.scene.rows]
    assert names[:4] == ["rank 0, measured", "rank 0, predicted", "rank 1, measured",
                         "rank 1, predicted"]  # fmt: skip
    per_unit = {
        round((box.x + box.width - row.left) / float(box.event.end), 9)
        for row in figure.scene.rows for box in row.boxes
    }  # fmt: skip
    assert len(per_unit) == 1
    ends = {row.name: row.right for row in figure.scene.rows}
    assert ends["rank 0, measured"] > ends["rank 0, predicted"]
    assert not any("event for event" in text for text in texts(figure))


def test_a_run_that_equals_its_prediction_says_so(trace):
    run = Trace(trace.schedule, trace.events, trace.cost, "virtual")
    figure = timeline(run, predicted=trace)
    assert any(text.endswith("equal, event for event") for text in texts(figure))
    assert {row.name for row in figure.scene.rows} >= {"rank 0, run", "rank 0, predicted"}


def test_a_prediction_in_units_is_stretched_to_the_work_of_a_run_measured_in_seconds(trace):
    run = slowed(trace.schedule, 0.02, "wall", None)
    figure = timeline(run, predicted=trace)
    work = [
        sum(box.width for row in figure.scene.rows if name in row.name for box in row.boxes)
        for name in ("measured", "predicted")
    ]
    assert work[0] == pytest.approx(work[1])
    unit = 1000 * sum(run.busy) / sum(trace.busy)
    assert f"one unit of the prediction is drawn as {unit:.4g} ms" in " ".join(texts(figure))
    assert "time in ms, measured" in texts(figure)


def test_every_lane_of_a_rank_has_its_own_row():
    blocking = simulate(schedules.one_f_one_b(2, 2), Cost(F=1, B=2, comm=1, blocking=True))
    figure = timeline(blocking)
    assert [row.name for row in figure.scene.rows] == [
        "rank 0, simulated", "rank 0, comm", "rank 1, simulated", "rank 1, comm"
    ]  # fmt: skip
    sent = [box.parts[0] for box in figure.scene.rows[1].boxes if box.parts[0].kind == "SEND"]
    assert [part.label for part in sent] == ["→F0", "→F1"]


@pytest.mark.parametrize("p", [1, 4])
@pytest.mark.parametrize("schedule", [schedules.gpipe, schedules.one_f_one_b])
def test_the_memory_strip_reaches_the_peak_and_ends_at_nothing(schedule, p):
    trace = simulate(schedule(p, 6))
    for rank, peak in enumerate(trace.peak_activations):
        steps = memory(trace, rank)
        assert max(level for _, level in steps) == peak
        assert steps[-1] == (trace.ranks[rank][-1].end, 0)
        times = [time for time, _ in steps]
        assert times == sorted(times)
        assert f"peak {peak}" in texts(timeline(trace))


def test_a_split_backward_frees_its_activation_at_its_weight_gradient():
    row = [parse(op) for op in ["0F0", "0F1", "0I0", "0I1", "0W0", "0W1"]]
    steps = memory(simulate(Schedule("split", [row])), 0)
    assert steps == [(0, 1), (1, 2), (2, 2), (3, 2), (4, 2), (5, 1), (6, 0)]


def test_strips_of_several_ranks_and_traces_have_one_scale():
    figure = stack(*(simulate(make(4, 8)) for make in (schedules.gpipe, schedules.one_f_one_b)))
    heights = [max(y for _, y in strip) - min(y for _, y in strip) for strip in figure.scene.memory]
    assert [round(height / heights[7]) for height in heights] == [8, 8, 8, 8, 4, 3, 2, 1]


def test_activations_that_messages_interrupt_are_counted_at_the_right_op():
    plain = simulate(schedules.one_f_one_b(3, 4))
    blocking = simulate(schedules.one_f_one_b(3, 4), Cost(F=1, B=2, comm=1, blocking=True))
    for rank in range(3):
        assert [(event.op, n) for event, n in held(plain, rank)] == [
            (event.op, n) for event, n in held(blocking, rank)
        ]


# Looks


def contrast(one, other):
    """WCAG's contrast of two colours, 1 to 21."""

    def luminance(colour):
        channels = (int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5))
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_labels_are_readable_on_every_fill():
    for kind in KINDS:
        for shade in (0, 0.5, 1):
            assert contrast(LABEL, fill(kind, shade)) >= 7


def test_ops_and_messages_differ_among_themselves_by_more_than_colour():
    for group in ("FBIW", ("SEND", "RECV")):
        assert len({KINDS[kind].hatch for kind in group}) == len(group)
        assert len({KINDS[kind].sign for kind in group}) == len(group)


@pytest.mark.parametrize("make", [schedules.gpipe, schedules.one_f_one_b])
def test_up_to_8_micro_batches_every_box_has_its_label(make):
    for box in boxes(timeline(simulate(make(4, 8)))).values():
        assert [part.label for part in box.parts] == [op.label for op in box.event.op.parts]


def test_where_whole_labels_do_not_fit_the_numbers_of_the_micro_batches_stand_alone():
    figure = timeline(simulate(schedules.one_f_one_b(8, 32)))
    found = {kind: {box.parts[0].label for box in boxes(figure).values()
                    if box.parts[0].kind == kind} for kind in "FB"}  # fmt: skip
    assert found["B"] == set(map(str, range(32)))
    assert found["F"] == {""}  # too narrow even for that: then colour and hatch remain
    assert "number: micro-batch" in texts(figure)


def test_a_rank_with_several_stages_shows_them_by_shade_and_in_the_label():
    figure = timeline(looped(p=2, v=2, m=2))
    part = {op: box.parts[0] for (_, op), box in boxes(figure).items()}
    assert (part["0F0"].label, part["0F0"].shade) == ("0F0", 0)
    assert (part["2F0"].label, part["2F0"].shade) == ("2F0", 1)
    assert fill("F", 0) != fill("F", 1)
    assert "lighter: another stage of the same rank" in texts(figure)


def test_a_pair_is_a_box_with_two_halves_forward_above_backward():
    box = boxes(timeline(combined(3)))["rank 0, simulated", "(0F1;0B0)OVERLAP_F_B"]
    assert [(part.kind, part.label) for part in box.parts] == [("F", "F1"), ("B", "B0")]


def test_the_culprit_is_marked(trace):
    figure = timeline(trace, marks=[Op("B", 2, 3)])
    assert [key for key, box in boxes(figure).items() if box.marked] == [
        ("rank 2, simulated", "2B3")
    ]
    assert "look here" in texts(figure)
    row, box = next((row, box) for row in figure.scene.rows for box in row.boxes if box.marked)
    edge = tuple(round(SHARPNESS * x) for x in (box.x, row.y + row.height / 2))
    colour = Image.open(io.BytesIO(figure.png)).convert("RGB").getpixel(edge)
    assert colour == pytest.approx(ImageColor.getrgb(MARK), abs=12)
    assert [
        b["says"][:13] for r in Page(figure.html).data["rows"] for b in r["boxes"] if "mark" in b
    ] == ["B3 on rank 2,"]
    assert "look here" not in texts(timeline(trace))


# What is said


def test_an_op_says_what_it_needed_and_what_needed_it(trace):
    event = next(e for e in trace.events if e.op == Op("B", 1, 2))
    assert Explainer(trace).op(event) == (
        "B2 on rank 1, from 14 to 16. It needed 1F2 (rank 1, there at 4) and 2B2 (rank 2, there at "
        "14). Needed by 0B2 (rank 0, started at 16). Rank 1 holds 3 activations meanwhile."
    )
    first = Explainer(trace).op(trace.ranks[0][0])
    assert "It needed no other op. Needed by 1F0 (rank 1, started at 1) and 0B0 (rank 0" in first
    assert "No other op needed it. Rank 0 holds 1 activation m" in Explainer(trace).op(
        trace.ranks[0][-1]
    )


def test_an_idle_slot_says_why_in_the_words_of_the_trace(trace):
    said = Explainer(trace).idle(0, "compute", 4)
    assert said == f"R{trace.why_idle(0, 4)[1:]}."
    assert "3B0" in said


def test_a_measured_time_has_its_unit(trace):
    run = slowed(trace.schedule, 0.02, "wall", None)
    assert Explainer(run).op(run.ranks[0][0]).startswith("F0 on rank 0, from 0 s to 0.02 s.")


def test_the_page_knows_what_each_box_needed(trace):
    data = Page(timeline(trace).html).data
    said = {box["id"]: box["says"] for row in data["rows"] for box in row["boxes"] if "id" in box}
    assert sorted(said) == list(range(64))
    box = next(
        b for row in data["rows"] for b in row["boxes"] if b["says"].startswith("B2 on rank 1")
    )
    assert [said[k].split(",")[0] for k in box["needs"]] == ["F2 on rank 1", "B2 on rank 2"]
    slot = next(
        b for b in data["rows"][0]["boxes"] if b["says"].startswith("Rank 0 is idle until 10")
    )
    assert [said[k].split(",")[0] for k in slot["needs"]] == ["B0 on rank 1"]


def test_boxes_and_idle_slots_of_the_page_fill_each_row_without_a_gap(trace):
    for row in Page(timeline(trace).html).data["rows"]:
        assert sum(box["w"] for box in row["boxes"]) == pytest.approx(row["w"], abs=2)


# The edges


@settings(max_examples=25, deadline=None)
@given(p=st.integers(1, 5), m=st.integers(1, 5), comm=st.sampled_from([0, 0.3, 2]),
       predicted=st.booleans())  # fmt: skip
def test_any_size_is_laid_out_inside_the_picture_and_explained(p, m, comm, predicted):
    trace = simulate(schedules.one_f_one_b(p, m), Cost(F=1, B=2, comm=comm))
    figure = timeline(trace, predicted=simulate(schedules.gpipe(p, m)) if predicted else None)
    scene = figure.scene
    for row in scene.rows:
        assert row.y + row.height <= scene.height
        assert all(row.left <= box.x and box.x + box.width <= row.right + 1e-6 for box in row.boxes)
        explainer = Explainer(row.trace)
        assert all(explainer.op(box.event) for box in row.boxes)
    assert all(0 <= text.x <= scene.width and 0 < text.y < scene.height for text in scene.texts)


def test_a_trace_in_which_nothing_ran_says_so(trace):
    figure = timeline(Trace(trace.schedule, [], trace.cost))
    assert "nothing ran" in texts(figure)
    assert figure.png.startswith(PNG) and "<img" in figure.html


def test_ops_that_take_no_time_can_be_drawn():
    figure = timeline(simulate(schedules.one_f_one_b(2, 2), Cost(F=0, B=0)))
    assert figure.png.startswith(PNG) and "<script>" in figure.html


def test_a_run_that_stopped_early_can_be_drawn(trace):
    early = Trace(trace.schedule, [e for e in trace.events if e.end <= 12], trace.cost)
    assert memory(early, 0)[-1] == (12, 3)  # 4 forwards, 1 backward
    assert timeline(early, predicted=trace).png.startswith(PNG)


def test_a_step_of_16_ranks_and_512_micro_batches_is_drawn_as_shares_of_time():
    trace = simulate(schedules.one_f_one_b(16, 512))
    figure = timeline(trace)
    assert not any(row.boxes for row in figure.scene.rows)
    for row in figure.scene.rows:
        for kind, busy in (("F", 512), ("B", 1024)):
            area = (
                abs(
                    sum(
                        x1 * y2 - x2 * y1
                        for (x1, y1), (x2, y2) in zip(
                            row.shares[kind],
                            row.shares[kind][1:] + row.shares[kind][:1],
                            strict=True,
                        )
                    )
                )
                / 2
            )
            whole = (row.right - row.left) * row.height
            assert area / whole == pytest.approx(busy / trace.makespan)
    assert "A picture only: 16384 ops are too many for a live timeline." in figure.html
    assert "<script" not in figure.html
    assert figure.png.startswith(PNG)


def test_a_live_timeline_is_left_out_where_it_would_make_a_notebook_heavy():
    trace = simulate(schedules.gpipe(8, 96), Cost(F=1, B=1))
    figure = timeline(trace)
    assert all(row.boxes for row in figure.scene.rows)
    assert "A picture only: 1536 ops are too many for a live timeline." in figure.html
    assert "<script" not in figure.html


# Refusals


def test_what_is_not_a_trace_is_refused_with_what_to_give(trace):
    with pytest.raises(LabError, match=r"trace is a Schedule, not a Trace: give what simulate"):
        timeline(trace.schedule)
    with pytest.raises(LabError, match=r"predicted is a Schedule, not a Trace"):
        timeline(trace, predicted=trace.schedule)


def test_a_prediction_for_another_number_of_ranks_is_refused(trace):
    with pytest.raises(LabError, match="the prediction has p=2 ranks and the trace p=4"):
        timeline(trace, predicted=simulate(schedules.gpipe(2, 8)))


def test_seconds_and_units_are_not_stacked_on_one_axis(trace):
    with pytest.raises(LabError, match="all of them in the same unit"):
        stack(trace, slowed(trace.schedule, 0.02, "wall", None))


def test_assets_holds_the_pictures_that_the_package_makes():
    assert {path.name for path in assets.FOLDER.iterdir()} == set(assets.pictures())
    for name, figure in assets.pictures().items():
        assert (assets.FOLDER / name).read_bytes()[16:24] == figure.png[16:24]  # width and height
