"""Nodes of mixture-of-experts layers on two streams: the facts, and the law that orders them."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pp_lab import Cost, Layers, Op, Pair, Schedule, needs, schedules, simulate
from pp_lab.schedule.layers import nodes, pair_time
from pp_lab.schedule.op import EXCHANGES, Node

PAIR = Pair(Op("F", 0, 1), Op("B", 0, 0))
HALF = Fraction(1, 2)


@pytest.mark.parametrize(
    ("a2a", "serial", "split", "whole"),
    [(HALF, 64, 48, 48), (1, 80, 48, 48), (3 * HALF, 96, 48.5, 56), (2, 112, 64, 64)],
)
def test_splitting_off_the_weight_gradient_pays_between_one_and_two(a2a, serial, split, whole):
    assert pair_time(Layers(8, a2a=a2a, streams=1)) == serial
    assert pair_time(Layers(8, a2a=a2a)) == split
    assert pair_time(Layers(8, a2a=a2a, split=False)) == whole


def test_a_pair_of_layers_is_enqueued_in_megatrons_order():
    assert list(map(str, nodes(PAIR, 1))) == [
        "0I0.combine", "0F1.attn", "0I0.mlp", "0F1.dispatch", "0W0.mlp",
        "0I0.dispatch", "0F1.mlp", "0F1.combine", "0I0.attn", "0W0.attn",
    ]  # fmt: skip


def test_in_a_pair_the_forward_goes_up_the_layers_while_the_backward_goes_down():
    layers = [(n.kind, n.stage) for n in nodes(PAIR, 3) if n.part == "mlp" and n.kind in "FI"]
    assert layers == [("I", 2), ("F", 0), ("I", 1), ("F", 1), ("I", 0), ("F", 2)]


@pytest.mark.parametrize(("kind", "count"), [("F", 4), ("B", 6), ("I", 4), ("W", 2)])
def test_every_op_has_its_own_nodes(kind, count):
    made = nodes(Op(kind, 1, 0), 2)
    assert len(made) == len(set(made)) == 2 * count
    assert {n.stage for n in made} == {2, 3}
    assert {n.kind for n in made} == set("IW" if kind == "B" else kind)


def test_a_backward_whose_weight_gradient_is_not_split_off_is_whole_where_there_are_weights():
    made = nodes(Op("B", 0, 0), 1, split=False)
    assert [n.kind + "." + n.part for n in made] == ["I.combine", "B.mlp", "I.dispatch", "B.attn"]


def test_the_law_for_parts():
    def of(text):
        return [str(n) for n in needs(text, 3)]

    assert of(Node("F", 0, 5, "attn")) == []
    assert of(Node("F", 1, 5, "attn")) == ["0F5.combine"]
    assert of(Node("F", 1, 5, "combine")) == ["1F5.mlp"]
    assert of(Node("I", 2, 5, "combine")) == ["2F5.combine"]
    assert of(Node("I", 1, 5, "combine")) == ["1F5.combine", "2I5.attn"]
    assert of(Node("B", 1, 5, "attn")) == ["1F5.attn", "1I5.dispatch"]
    assert of(Node("W", 1, 5, "mlp")) == ["1I5.mlp"]


SCHEDULES = st.sampled_from(
    [
        schedules.gpipe(2, 3), schedules.one_f_one_b(3, 4), schedules.interleaved(2, 4, 2),
        schedules.zb_h1(3, 4), schedules.zb_v(2, 4), schedules.dualpipe_v(2, 4),
        schedules.combined_1f1b(1, 4), schedules.combined_1f1b(2, 4, 2), schedules.dualpipe(2, 4),
    ]
)  # fmt: skip
TIMES = st.integers(0, 4)


@st.composite
def models(draw):
    ep = draw(st.sampled_from([1, 2]))
    return Layers(
        draw(st.integers(1, 3)), draw(TIMES), [draw(TIMES) for _ in range(ep)], draw(TIMES),
        draw(TIMES), draw(st.sampled_from([1, 2])), draw(st.booleans()), ep,
    )  # fmt: skip


@settings(deadline=None)
@given(SCHEDULES, models())
def test_nobody_starts_before_what_it_needs_and_streams_run_one_thing_at_a_time(schedule, model):
    if len(schedule.placement.copies) > 1:
        model = Layers(model.layers, model.attn, model.mlp[0], model.a2a, model.comm,
                       model.streams, model.split)  # fmt: skip
    trace = simulate(schedule, model)
    stages, made, busy, met = trace.schedule.stages, {}, {}, {}
    for event in trace.events:
        for kind in "IW" if event.op.kind == "B" else event.op.kind:
            assert made.setdefault(event.op._replace(kind=kind), event) is event
        stream = event.rank, event.lane if model.streams == 2 else "all"
        busy.setdefault(stream, []).append((event.start, event.end))
        if event.op.part in EXCHANGES:
            local = event.op.microbatch % schedule.microbatches
            met.setdefault(event.op._replace(microbatch=local), set()).add(event.start)
    for event in trace.events:
        for need in needs(event.op, stages):
            cause = made[need]
            assert event.start >= cause.end + (model.comm if cause.rank != event.rank else 0)
    for spans in busy.values():
        spans.sort()
        assert all(end <= start for (_, end), (start, _) in zip(spans, spans[1:], strict=False))
    if len(schedule.placement.copies) == 1:
        assert all(len(starts) == 1 for starts in met.values())  # an all-to-all starts together
    assert len(made) == stages * schedule.microbatches * model.ep * (4 + 4 + 2)  # F, I, W


@settings(deadline=None)
@given(SCHEDULES, TIMES, TIMES, st.integers(1, 3))
def test_without_all_to_alls_layers_take_no_longer_than_ops(schedule, attn, mlp, layers):
    work = layers * (attn + mlp)
    cost = Cost(F=work, I=work, W=work, B=2 * work)
    model = Layers(layers, attn, mlp, a2a=0, streams=1)
    assert simulate(schedule, model).makespan <= simulate(schedule, cost).makespan


def test_a_hot_expert_holds_up_every_rank_that_shares_the_experts():
    even = simulate(schedules.gpipe(1, 4), Layers(2, ep=2)).makespan
    hot = simulate(schedules.gpipe(1, 4), Layers(2, mlp=[1, 3], ep=2))
    assert hot.makespan > even
    assert hot.busy[0] < hot.busy[1]
    assert [e.start for e in hot.events if e.rank == 0 and e.lane == "all-to-all"] == [
        e.start for e in hot.events if e.rank == 1 and e.lane == "all-to-all"
    ]


def test_two_streams_hide_all_to_alls_that_one_cannot():
    schedule = schedules.combined_1f1b(2, 8, 2)
    assert (
        simulate(schedule, Layers(2)).makespan < simulate(schedule, Layers(2, streams=1)).makespan
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (dict(layers=0), "layers=0: give a whole number"),
        (dict(streams=3), "streams=3: compute and all-to-all share 1, or have 2"),
        (dict(mlp=[1, 2]), "mlp has 2 durations for 1 expert-parallel ranks"),
        (dict(a2a=-1), "a2a=-1 is not a duration"),
        (dict(attn="1"), "attn='1' is not a duration"),
        (dict(attn=True), "attn=True is not a duration"),
        (dict(comm=[1, 2]), "comm=.* is not a duration: give one number"),
        (dict(a2a=None), "a2a=None is not a duration"),
        (dict(mlp=float("nan")), "mlp=nan is not a duration"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Layers(**wrong)


def test_copies_of_the_model_and_expert_parallel_ranks_do_not_go_together():
    with pytest.raises(ValueError, match="DualPipe.* has 2 copies of the model: give ep=1"):
        simulate(schedules.dualpipe(2, 4), Layers(ep=2))


def test_a_schedule_that_deadlocks_is_refused_before_it_is_timed():
    wrong = Schedule("wrong", [[Op("B", 0, 0), Op("F", 0, 0)]])
    with pytest.raises(Exception, match="F0|B0"):
        simulate(wrong, Layers())


def test_the_text_timeline_has_a_row_for_every_stream():
    text = str(simulate(schedules.gpipe(1, 1), Layers(1))).splitlines()
    assert text[1].startswith("    rank 0 |F0 attn---- ............F0 mlp----- ")
    assert text[2].startswith("all-to-all |............F0 dispatch ............F0 combine- ")
    assert len(text[1]) == len(text[2])
