"""Wrong schedules of many kinds: each is refused in well under a second, for its own reason."""

import time

import pytest

from pp_lab.schedule import (
    Cost,
    Move,
    Op,
    Pair,
    Placement,
    Schedule,
    ScheduleError,
    loop,
    lower,
    schedules,
    simulate,
    verify,
)
from pp_lab.schedule.schedules import alternate


def rows(schedule):
    return [list(row) for row in schedule.ranks]


def like(schedule, changed):
    """The same schedule with other rows."""
    return Schedule("wrong", changed, schedule.placement, schedule.microbatches)


PLAIN, ZERO, DUAL = schedules.one_f_one_b(4, 8), schedules.zb_h1(4, 8), schedules.dualpipe(4, 8)


def lost_forward():
    changed = rows(PLAIN)
    changed[2].remove(Op("F", 2, 5))
    return like(PLAIN, changed), 2, None, "rank 2 never runs 2F5"


def lost_backward_of_every_micro_batch_but_the_last():
    """Gradients of one micro-batch only."""
    changed = rows(PLAIN)
    changed[1] = [op for op in changed[1] if op.kind == "F" or op.microbatch == 7]
    return like(PLAIN, changed), 1, None, "in all, 7 of stage 1's 8 are missing"


def doubled_forward():
    changed = rows(PLAIN)
    changed[0].insert(3, Op("F", 0, 1))
    return like(PLAIN, changed), 0, 3, "0F1 is there twice; the first is at position 1"


def backward_twice_once_whole_and_once_split():
    changed = rows(PLAIN)
    changed[3] += Op("I", 3, 7), Op("W", 3, 7)
    return like(PLAIN, changed), 3, 16, "3I7 does again what 3B7 at position 15 does"


def input_gradient_without_weight_gradient():
    changed = rows(ZERO)
    changed[1].remove(Op("W", 1, 3))
    return like(ZERO, changed), 1, None, "1I3 is there, so the weight gradient is missing"


def weight_gradient_without_input_gradient():
    changed = rows(ZERO)
    changed[0].remove(Op("I", 0, 3))
    return like(ZERO, changed), 0, None, "0W3 is there, so the input gradient is missing"


def weight_gradient_before_input_gradient():
    changed = rows(ZERO)
    a, b = changed[3].index(Op("I", 3, 2)), changed[3].index(Op("W", 3, 2))
    changed[3][a], changed[3][b] = changed[3][b], changed[3][a]
    return like(ZERO, changed), 3, a, f"3W2 needs 3I2, which stands only later.*position {b}"


def weight_gradient_in_the_warm_up():
    """ "W fills the warm-up bubble": there is none before the first backward."""
    changed = rows(ZERO)
    changed[0].remove(Op("W", 0, 0))
    changed[0].insert(4, Op("W", 0, 0))
    return like(ZERO, changed), 0, 4, "0W0 needs 0I0, which stands only later"


def backward_before_forward():
    changed = rows(PLAIN)
    changed[3][0], changed[3][1] = changed[3][1], changed[3][0]
    return like(PLAIN, changed), 3, 0, "3B0 needs 3F0, which stands only later"


def op_on_the_wrong_rank():
    changed = rows(PLAIN)
    changed[2].insert(0, changed[1].pop(0))
    return like(PLAIN, changed), 2, 0, "1F0 belongs to rank 1, which owns stage 1"


def swapped_stages():
    changed = rows(PLAIN)
    changed[1], changed[2] = changed[2], changed[1]
    return like(PLAIN, changed), 1, 0, "2F0 belongs to rank 2"


def direction_of_the_wrong_copy():
    """A micro-batch that entered at the last rank, run as if it had entered at the first."""
    changed = rows(DUAL)
    k = changed[3].index(Op("F", 0, 4))
    changed[3][k] = Op("F", 0, 3)
    return like(DUAL, changed), 3, k, "0F3 belongs to rank 0, which owns stage 0 for micro-batch 3"


def stage_that_does_not_exist():
    changed = rows(PLAIN)
    changed[0][0] = Op("F", 4, 0)
    return like(PLAIN, changed), 0, 0, "only stages 0 to 3"


def forwards_numbered_from_1():
    """torch 2.13's get_schedule_ops("1F1B"): the last rank's forwards are 1 to m."""
    changed = rows(PLAIN)
    changed[3] = [op._replace(microbatch=op.microbatch + (op.kind == "F")) for op in changed[3]]
    return like(PLAIN, changed), 3, 14, "3F8 names micro-batch 8, but there are only .* 0 to 7"


def negative_micro_batch():
    changed = rows(PLAIN)
    changed[0][-1] = Op("B", 0, -1)
    return like(PLAIN, changed), 0, 15, "0B-1 names micro-batch -1"


def unknown_kind():
    changed = rows(PLAIN)
    changed[0][0] = Op("f", 0, 0)
    return like(PLAIN, changed), 0, 0, "has the kind 'f'. Kinds are F forward"


def text_instead_of_an_op():
    changed = rows(PLAIN)
    changed[0][2] = "0F2"
    return like(PLAIN, changed), 0, 2, "'0F2' is not an op"


def half_a_micro_batch():
    changed = rows(PLAIN)
    changed[0][2] = Op("F", 0, 2.5)
    return like(PLAIN, changed), 0, 2, "stage and micro-batch must be whole numbers"


def group_smaller_than_p():
    """Interleaved order in groups of 2 on 4 ranks, which Megatron refuses."""
    p, m, v, group = 4, 8, 2, 2
    changed = []
    for rank in range(p):
        table = [(c, i) for g in range(0, m, group) for c in range(v) for i in (g, g + 1)]
        forwards = [Op("F", c * p + rank, i) for c, i in table]
        backwards = [Op("B", (v - 1 - c) * p + rank, i) for c, i in table]
        changed.append(alternate(forwards, backwards, 2 * (p - 1 - rank) + (v - 1) * group))
    return Schedule("wrong", changed, loop(p, v), m), 0, None, "deadlock: rank 0 waits at position"


def no_warm_up_on_the_first_rank():
    changed = rows(PLAIN)
    f = [Op("F", 0, i) for i in range(8)]
    b = [Op("B", 0, i) for i in range(8)]
    changed[0] = alternate(f, b, 0)
    changed[1] = alternate([Op("F", 1, i) for i in range(8)], [Op("B", 1, i) for i in range(8)], 2)
    return like(PLAIN, changed), 0, 1, "deadlock.*0B0.*1B0.*1F1.*0F1.*So rank 0 waits for itself"


def circle_of_three_ranks():
    changed = [
        [Op("F", 0, 0), Op("B", 0, 0), Op("F", 0, 1), Op("B", 0, 1)],
        [Op("F", 1, 0), Op("F", 1, 1), Op("B", 1, 0), Op("B", 1, 1)],
        [Op("F", 2, 0), Op("F", 2, 1), Op("B", 2, 0), Op("B", 2, 1)],
    ]
    return Schedule("wrong", changed), 0, 1, "rank 0 waits .*; rank 1 waits"


def second_micro_batch_first_on_one_rank():
    """Backwards in another order than the forwards may be legal; then nobody may object."""
    changed = rows(PLAIN)
    changed[2][:2] = Op("F", 2, 1), Op("F", 2, 0)
    return like(PLAIN, changed), None, None, None


def pair_of_a_micro_batch_with_itself():
    changed = [[Pair(Op("F", 0, 0), Op("B", 0, 0))]]
    return Schedule("wrong", changed), 0, 0, "needs itself: a pair starts as one"


def pair_of_two_forwards():
    changed = [[Pair(Op("F", 0, 0), Op("F", 0, 1)), Op("B", 0, 0), Op("B", 0, 1)]]
    return Schedule("wrong", changed), 0, 0, "0F0 and 0F1 are no pair: .* with a backward"


def half_a_pair():
    changed = rows(PLAIN)
    changed[1][3] = Pair(Op("F", 1, 3), None)
    return like(PLAIN, changed), 1, 3, "1F3 and None are no pair"


def pair_of_a_forward_and_a_weight_gradient():
    changed = [[Op("F", 0, 0), Op("I", 0, 0), Pair(Op("F", 0, 1), Op("W", 0, 0)), Op("B", 0, 1)]]
    return Schedule("wrong", changed), 0, 2, "0F1 and 0W0 are no pair"


def pair_whose_backward_comes_back_too_late():
    """Pairs on 1F1B with one extra forward on the last stage only."""
    changed = [
        alternate(
            [Op("F", r, i) for i in range(8)],
            [Op("B", r, i) for i in range(8)],
            3 - r + (r == 3),
            pair=True,
        )
        for r in range(4)
    ]
    return like(PLAIN, changed), 2, 1, "deadlock"


def send_without_receive():
    changed = rows(lower(PLAIN))
    changed[2].remove(Move("RECV", "F", 2, 3))
    return like(PLAIN, changed), 2, None, "rank 2 has no 2RECV_F3, although rank 1 has 1SEND_F3"


def receive_without_send():
    changed = rows(lower(PLAIN))
    changed[3].remove(Move("SEND", "B", 3, 3))
    return like(PLAIN, changed), 3, None, "rank 3 has no 3SEND_B3, although rank 2 has 2RECV_B3"


def message_sent_twice():
    changed = rows(lower(PLAIN))
    changed[0].append(Move("SEND", "F", 0, 3))
    return like(PLAIN, changed), 0, len(changed[0]) - 1, "0SEND_F3 is there twice"


def message_that_nobody_needs():
    changed = rows(lower(PLAIN))
    changed[3].append(Move("SEND", "F", 3, 0))
    return like(PLAIN, changed), 3, len(changed[3]) - 1, "moves nothing that an op of another rank"


def message_from_the_wrong_rank():
    changed = rows(lower(PLAIN))
    changed[1].append(Move("SEND", "F", 2, 0))
    changed[2].remove(Move("SEND", "F", 2, 0))
    return like(PLAIN, changed), 1, len(changed[1]) - 1, "2SEND_F0 belongs to rank 2"


def both_send_first():
    reason = "deadlock: rank 2 waits at position 5 (2SEND_F1) .* rank 3 waits at .*(3SEND_B0)"
    return lower(PLAIN, matched=False), 2, 5, reason


def two_receives_swapped():
    """Where messages have no names this gives wrong gradients, in silence."""
    changed = rows(lower(PLAIN))
    a, b = (changed[1].index(Move("RECV", "F", 1, i)) for i in (1, 2))
    changed[1][a], changed[1][b] = changed[1][b], changed[1][a]
    return like(PLAIN, changed), 0, None, "deadlock.*0SEND_F1.*1RECV_F1"


def value_sent_before_it_is_made():
    changed = rows(lower(PLAIN))
    k = changed[0].index(Move("SEND", "F", 0, 0))
    changed[0].insert(0, changed[0].pop(k))
    return like(PLAIN, changed), 0, 0, "0SEND_F0 needs 0F0, which stands only later"


WRONG = [
    lost_forward, lost_backward_of_every_micro_batch_but_the_last, doubled_forward,
    backward_twice_once_whole_and_once_split, input_gradient_without_weight_gradient,
    weight_gradient_without_input_gradient, weight_gradient_before_input_gradient,
    weight_gradient_in_the_warm_up,
    backward_before_forward, op_on_the_wrong_rank, swapped_stages, direction_of_the_wrong_copy,
    stage_that_does_not_exist, forwards_numbered_from_1, negative_micro_batch, unknown_kind,
    text_instead_of_an_op, half_a_micro_batch, group_smaller_than_p, no_warm_up_on_the_first_rank,
    circle_of_three_ranks, pair_of_a_micro_batch_with_itself, pair_of_two_forwards,
    half_a_pair,
    pair_of_a_forward_and_a_weight_gradient, pair_whose_backward_comes_back_too_late,
    send_without_receive, receive_without_send, message_sent_twice, message_that_nobody_needs,
    message_from_the_wrong_rank, both_send_first, two_receives_swapped,
    value_sent_before_it_is_made,
]  # fmt: skip


@pytest.mark.parametrize("make", WRONG, ids=lambda make: make.__name__)
def test_refused(make):
    schedule, rank, position, reason = make()
    pattern = reason.replace("(", r"\(").replace(")", r"\)")
    start = time.perf_counter()
    with pytest.raises(ScheduleError, match=pattern) as error:
        verify(schedule)
    assert time.perf_counter() - start < 1
    assert error.value.rank == rank
    if position is not None:
        assert error.value.position == position
        assert error.value.op == schedule.ranks[rank][position]
    assert len(error.value.reason.splitlines()) == 1, "one sentence, and then the picture"
    blocking = schedule.has_moves
    with pytest.raises(ScheduleError):
        simulate(schedule, Cost(F=1, B=2, blocking=blocking))


def test_a_schedule_that_is_only_unusual_is_not_refused():
    verify(second_micro_batch_first_on_one_rank()[0])


def test_weight_gradients_that_pile_up_have_gpipes_memory_and_break_the_cap():
    s = schedules.zb_h1(4, 8)
    piled = Schedule(
        "W last", [sorted(row, key=lambda op: op.kind == "W") for row in s.ranks], s.placement, 8
    )
    verify(piled)
    assert simulate(piled).peak_activations == [8] * 4
    assert simulate(piled).peaks("B") == [4, 3, 2, 1], "the count that papers use does not see it"
    with pytest.raises(ScheduleError) as error:
        verify(piled, memory_cap=4)
    assert (error.value.rank, error.value.op) == (0, Op("F", 0, 4))
    assert "holds 5 activations, and the cap is 4. Run a backward (or the W" in error.value.reason
    verify(s, memory_cap=4)


def test_a_gpipe_chart_whose_backwards_all_end_at_once_is_no_schedule():
    """Published: stage 0's last backward stands under stage 3's. It would need to start before."""
    trace = simulate(schedules.gpipe(4, 8), Cost(F=1, B=2))
    ends = [row[-1].end for row in trace.ranks]
    assert ends == [33, 31, 29, 27], "the way back to stage 0 takes a B per stage"


def test_a_large_wrong_schedule_is_refused_in_under_a_second():
    big = schedules.one_f_one_b(16, 512)
    changed = rows(big)
    changed[7].pop(500)
    start = time.process_time()
    with pytest.raises(ScheduleError, match="never runs"):
        verify(like(big, changed))
    assert time.process_time() - start < 1


def test_the_picture_marks_the_culprit_and_is_no_wider_than_a_page():
    changed = rows(schedules.one_f_one_b(4, 64))
    changed[1].insert(60, Op("F", 1, 1))
    with pytest.raises(ScheduleError) as error:
        verify(Schedule("wrong", changed))
    picture = str(error.value).splitlines()[1:]
    assert len(picture) == 4 and "!F1!" in picture[1] and picture[1].startswith("  rank 1: … ")
    assert max(map(len, picture)) < 160


def test_in_a_notebook_only_the_explanation_is_shown():
    with pytest.raises(ScheduleError) as error:
        verify(lost_forward()[0])
    shown = error.value._render_traceback_()
    assert shown[0].startswith("ScheduleError: rank 2 never runs 2F5") and len(shown) == 5


def test_a_rank_without_work_is_no_mistake():
    verify(
        Schedule(
            "one idle rank", [[Op("F", 0, 0), Op("B", 0, 0)], []], Placement("its own", ((0,),)), 1
        )
    )
