"""A pipeline as one of several parallelisms, on real processes: data, tensor and context."""

import re

import pytest
import torch

import pp_lab as pp
from pp_lab import Cost, Grid, schedules, simulate
from pp_lab.run.lab import ProblemError
from pp_lab.run.tensor_parallel import ParallelMLP

TWO = Grid(dp=2, pp=2)
COST = Cost(F=1, B=2, sync=3)


def numbers(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def lab_of(blocks=4, microbatches=4, stages=2, rows=8):
    data = numbers(2, rows * microbatches, 8)
    given = [ParallelMLP(8, inner=8, seed=k) for k in range(blocks)]
    return pp.Lab(stages, microbatches, blocks=given, inputs=data[0], targets=data[1])


def pipeline(rank):
    """GPipe on this rank's own micro-batches, without any reduction."""
    for i in rank.mine:
        rank.send_forward(i, rank.forward(i, rank.recv_forward(i)))
    for i in rank.mine:
        rank.send_backward(i, rank.backward(i, rank.recv_backward(i)))


def reduced(average=True, copies=(0, 1), every=False, async_op=False):
    """A rank program that does data parallelism, or makes one of the classic mistakes."""

    def sync(rank):
        gradients = rank.gradients()
        requests = [rank.all_reduce(g, "dp", async_op) for g in gradients.values()]
        for request in requests if async_op else ():
            request.wait()
        for gradient in gradients.values() if average else ():
            gradient /= rank.grid.dp
        rank.set_gradients(gradients)

    def program(rank):
        if not every:
            pipeline(rank)
            if rank.coordinates["dp"] in copies:
                sync(rank)
            return
        for i in rank.mine:
            rank.send_forward(i, rank.forward(i, rank.recv_forward(i)))
            rank.send_backward(i, rank.backward(i, rank.recv_backward(i)))
            sync(rank)

    return program


@pytest.fixture(scope="module")
def plain():
    return pp.Lab(stages=2, microbatches=8)


@pytest.mark.parametrize("name", ["gpipe", "one_f_one_b", "zb_h1", "zb_h2"])
def test_a_schedule_on_two_copies_is_one_large_batch_and_runs_as_simulated(plain, name):
    schedule = getattr(schedules, name)(2, 4)
    run = plain.run(schedule, grid=TWO, cost=COST)
    assert plain.check(run).passed
    assert run.trace == simulate(TWO.spread(schedule), COST)
    assert [traffic["dp-cp"][0] for traffic in run.traffic] == [1] * 4  # all in one bucket


@pytest.mark.parametrize("p, make", [
    (2, lambda: schedules.interleaved(2, 4, 2)), (2, lambda: schedules.zb_v(2, 4)),
    (4, lambda: schedules.dualpipe(4, 8)),
])  # fmt: skip
def test_reductions_of_several_stages_per_rank_run_as_simulated(p, make):
    schedule = make()
    grid = Grid(dp=2, pp=2) if p == 2 else None
    lab = pp.Lab(schedule.stages, 8)
    run = lab.run(schedule, grid=grid, cost=COST)
    assert lab.check(run).passed
    assert run.trace == simulate(grid.spread(schedule) if grid else schedule, COST)


@pytest.mark.parametrize("order", ["tp-cp-ep-dp-pp", "pp-dp-tp-cp-ep"])
@pytest.mark.parametrize("sizes", [
    dict(tp=2, pp=2), dict(tp=2, pp=2, sequence_parallel=True), dict(cp=2, pp=2),
    dict(tp=2, dp=2, pp=2), dict(tp=2, cp=2, sequence_parallel=True, pp=1), dict(tp=4),
])  # fmt: skip
def test_every_layout_trains_as_one_process_does(sizes, order):
    grid = Grid(**sizes, order=order)
    lab = lab_of(stages=grid.pp)
    for schedule in (schedules.one_f_one_b, schedules.zb_h1):
        run = lab.run(schedule(grid.pp, 4 // grid.dp), grid=grid)
        assert lab.check(run).passed, lab.check(run)


def test_what_sequence_parallelism_leaves_whole_has_its_gradients_added_up_over_tp():
    whole = torch.nn.Linear(8, 8, dtype=torch.float64)  # on each tp rank, with its rows only
    blocks, data = [ParallelMLP(8), whole], numbers(2, 32, 8)
    lab = pp.Lab(2, 4, blocks=blocks, inputs=data[0], targets=data[1])
    run = lab.run(schedules.gpipe(2, 4), grid=Grid(tp=2, pp=2, sequence_parallel=True))
    assert lab.check(run).passed, lab.check(run)


def test_sequence_parallelism_halves_what_crosses_stages_and_moves_as_much_among_tp_ranks():
    lab = lab_of()
    whole, cut = (
        lab.run(schedules.gpipe(2, 4), grid=Grid(tp=2, pp=2, sequence_parallel=sp))
        for sp in (False, True)
    )
    assert whole.message_bytes == [8 * 8 * 8 * 4] * 4
    assert cut.message_bytes == [b // 2 for b in whole.message_bytes]
    last = slice(2, 4)  # the first stage needs no gradient of its input
    assert [t["tp"][1] for t in whole.traffic[last]] == [t["tp"][1] for t in cut.traffic[last]]
    assert [t["tp"][0] * 2 for t in whole.traffic[last]] == [t["tp"][0] for t in cut.traffic[last]]
    context = lab.run(schedules.gpipe(2, 4), grid=Grid(cp=2, pp=2))
    assert context.message_bytes == cut.message_bytes


def test_a_rank_program_reduces_its_gradients_itself(plain):
    for program in (reduced(), reduced(async_op=True), reduced(every=True)):
        assert plain.check(plain.run(program, grid=TWO)).passed


def test_a_reduction_after_every_micro_batch_is_right_and_costs_m_times_as_much(plain):
    once, often = (
        plain.run(reduced(every=every), grid=TWO, cost=COST).traffic for every in (False, True)
    )
    assert [4 * t["dp"][1] for t in once] == [t["dp"][1] for t in often]


@pytest.mark.parametrize("program, message", [
    (pipeline, "these are the gradients of micro-batches 0 to 3 only: they were not averaged over "
               "the 2 data-parallel copies"),
    (reduced(average=False), "they are dp = 2 times too large: they were added up over the "
                             "copies, and not divided by 2"),
])  # fmt: skip
def test_the_classic_mistakes_are_named(plain, program, message):
    score = plain.check(plain.run(program, grid=TWO))
    assert not score.passed and message in str(score)


def test_a_mistake_of_the_second_copy_alone_is_found(plain):
    def program(rank):
        reduced()(rank)
        if rank.coordinates["dp"] == 1:
            rank.set_gradients({n: g * 2 for n, g in rank.gradients().items()})

    score = plain.check(plain.run(program, grid=TWO))
    assert not score.passed and "rank 3" in str(score)


def test_a_copy_that_skips_the_reduction_is_named(plain):
    message = r"waits in all_reduce\(.*\) for rank \d to join in, but rank \d has ended without"
    with pytest.raises(pp.RunError, match=message):
        plain.run(reduced(copies=(0,)), grid=TWO)


def test_a_reduction_that_nobody_waited_for_is_reported(plain):
    def program(rank):
        pipeline(rank)
        for gradient in rank.gradients().values():
            rank.all_reduce(gradient, "dp", async_op=True)

    with pytest.raises(pp.RunError, match="all_reduce over dp"):
        plain.run(program, grid=TWO)


def test_on_the_virtual_clock_a_reduction_starts_with_its_last_member_and_takes_its_part():
    def program(rank):
        pipeline(rank)
        gradients = rank.gradients()
        if rank.coordinates["dp"] == 1:
            rank.clock.now += 5  # both copies do the same work; only their clocks differ
        requests = [rank.all_reduce(g, "dp", async_op=True) for g in gradients.values()]
        before = rank.now
        for request in requests:
            assert not request.is_completed()
            request.wait()
        assert rank.now == before + 3 + (5 if rank.coordinates["dp"] == 0 else 0)

    lab = pp.Lab(stages=1, microbatches=2)
    run = lab.run(program, grid=Grid(dp=2), cost=COST)
    spans = [(e.start, e.end) for e in run.trace.events if e.lane == "all-reduce" and e.rank == 0]
    assert spans[0][0] == 8 and spans[-1][1] == 11  # F B of one micro-batch, and 5 more


def test_beside_real_work_a_reduction_takes_its_time_on_a_lane_of_its_own():
    def program(rank):
        first, last = rank.mine[0], rank.mine[-1]
        for i in rank.mine:
            rank.forward(i, rank.recv_forward(i))
        rank.backward(first, None)
        request = rank.all_reduce(torch.zeros(544, dtype=torch.float64), "dp", async_op=True)
        rank.backward(last, None)
        request.wait()

    lab = pp.Lab(stages=1, microbatches=4)
    run = lab.run(program, grid=Grid(dp=2), cost=Cost(F=1, B=2, sync=2), clock="pace", pace=0.05)
    lanes = {lane: [e for e in run.trace.events if e.rank == 0 and e.lane == lane]
             for lane in ("compute", "all-reduce")}  # fmt: skip
    (reduction,), last = lanes["all-reduce"], lanes["compute"][-1]
    assert reduction.end - reduction.start >= 2  # and not after the backward, but beside it
    assert reduction.start < last.end and last.start < reduction.end


# ---- tied weights


def tied(rows=8):
    words, width = 11, 8
    embedding = torch.nn.Embedding(words, width, dtype=torch.float64)
    head = torch.nn.Linear(width, words, bias=False, dtype=torch.float64)
    with torch.no_grad():
        embedding.weight.copy_(numbers(words, width) * 0.3)
    head.weight = embedding.weight
    tokens = torch.arange(rows * 5).remainder(words).view(rows, 5)
    return pp.Lab(2, 4, blocks=[embedding, ParallelMLP(width), head], inputs=tokens,
                  targets=(tokens * 3 + 1) % words, loss=of_tokens)  # fmt: skip


def of_tokens(y, targets):
    return torch.nn.functional.cross_entropy(y.flatten(0, 1), targets.flatten())


def with_embedding(rank):
    pipeline(rank)
    name = "block0.weight" if rank.is_first else "block2.weight"
    gradient = rank.gradients()[name]
    rank.all_reduce(gradient, "embedding")
    rank.set_gradients({name: gradient})


def test_tied_weights_have_the_sum_of_their_gradients():
    lab = tied()
    right = lab.reference
    assert torch.equal(right.grads["block0.weight"], right.grads["block2.weight"])
    assert torch.equal(right.weights["block0.weight"], right.weights["block2.weight"])
    one = torch.nn.Embedding(11, 8, dtype=torch.float64)  # and that is what torch says
    blocks = lab.problem.given_blocks
    one.weight = torch.nn.Parameter(blocks[0].weight.detach().clone())
    loss = 0
    for x, t in zip(lab.problem.inputs(), lab.problem.targets(), strict=True):
        loss = loss + of_tokens(blocks[1](one(x)) @ one.weight.T, t) / 4
    loss.backward()
    torch.testing.assert_close(right.grads["block0.weight"], one.weight.grad)


@pytest.mark.parametrize("grid", [None, Grid(tp=2, pp=2), Grid(dp=2, pp=2)])
def test_a_schedule_adds_up_the_gradients_of_tied_weights(grid):
    lab = tied()
    schedule = schedules.one_f_one_b(2, 4 // (grid.dp if grid else 1))
    assert lab.check(lab.run(schedule, grid=grid)).passed


def test_a_v_placement_has_both_ends_of_a_tied_weight_on_one_rank():
    lab = tied()
    schedule = pp.Schedule("one rank", [[op for i in range(4) for op in (
        pp.Op("F", 0, i), pp.Op("F", 1, i), pp.Op("B", 1, i), pp.Op("B", 0, i))]],
        pp.Placement("loop", ((0, 0),)), 4)  # fmt: skip
    assert lab.check(lab.run(schedule)).passed


def test_a_program_that_forgets_the_tied_weight_hears_which_part_is_missing():
    lab = tied()
    assert lab.check(lab.run(with_embedding)).passed
    score = lab.check(lab.run(pipeline))
    assert not score.passed and re.search(
        "lacks the part that block0.weight found: the two are one weight", str(score)
    )


# ---- what is refused


@pytest.mark.parametrize("grid, message", [
    (Grid(dp=3, pp=2), "8 micro-batches cannot be dealt out evenly to dp=3 copies. Nearest"),
    (Grid(ep=2, pp=2), "expert parallelism runs with Layers"),
    (Grid(dp=2, pp=3), "schedule|pp=3"),
    (Grid(cp=3, pp=2), "the 4 rows of a micro-batch cannot be cut into 3 parts"),
])  # fmt: skip
def test_a_grid_that_does_not_fit_the_lab_is_refused(plain, grid, message):
    for program in (pipeline, schedules.gpipe(2, 8 // grid.dp if 8 % grid.dp == 0 else 8)):
        with pytest.raises((ProblemError, pp.LabError), match=message):
            plain.run(program, grid=grid)


def test_a_group_that_is_not_there_is_refused_with_those_that_are(plain):
    def program(rank):
        rank.all_reduce(torch.zeros(1), "tp-dp")

    with pytest.raises(pp.RunError, match="is in no group 'tp-dp': there are 'dp'"):
        plain.run(program, grid=TWO)
    with pytest.raises(pp.RunError, match="there is none; give the run a grid"):
        plain.run(program)


@pytest.mark.parametrize("clock", ["virtual", "pace", "wall"])
def test_tensors_that_cannot_be_added_up_are_refused_and_abort_nothing(plain, clock):
    def program(rank):
        rank.all_reduce(torch.zeros(2 + rank.coordinates["dp"]), "dp")

    message = r"all_reduce over dp: rank \d gives float32 of shape \[2\], and rank \d gives float32"
    with pytest.raises(pp.RunError, match=message):
        plain.run(program, grid=TWO, clock=clock)


@pytest.mark.parametrize("use, message", [
    (lambda rank: rank.all_reduce(rank.gradients(), "dp"),
     "all_reduce takes a tensor, not dict: one at a time"),
    (lambda rank: rank.all_reduce(torch.ones(1), "dp") / 2,
     "all_reduce returns None: it fills the tensor that it is given"),
    (lambda rank: 1 + rank.all_to_all_single(torch.ones(4), torch.ones(4)),
     "all_to_all_single returns None: it fills the tensor that it is given"),
])  # fmt: skip
def test_what_a_collective_takes_and_gives_is_said(plain, use, message):
    with pytest.raises(pp.RunError, match=message):
        plain.run(lambda rank: use(rank), grid=TWO)


def test_another_copy_s_micro_batches_are_refused(plain):
    def program(rank):
        if rank.is_first:
            rank.forward(rank.mine[0] ^ 4, rank.recv_forward(rank.mine[0]))

    with pytest.raises(pp.RunError, match="does not go through rank"):
        plain.run(program, grid=TWO)


@pytest.mark.parametrize("given, message", [
    ({"block9.weight": torch.zeros(1)}, "has no parameter 'block9.weight', but block0.linear"),
    ({"block0.linear.bias": torch.zeros(3)}, r"a tensor of shape \[16\], not \[3\]"),
    ({"block0.linear.bias": 7}, r"a tensor of shape \[16\], not 7"),
])  # fmt: skip
def test_gradients_that_do_not_fit_are_refused(given, message):
    def program(rank):
        rank.set_gradients(given)

    with pytest.raises(pp.RunError, match=message):
        pp.Lab(stages=1, microbatches=1).run(program)


def test_beside_the_last_backwards_a_schedule_s_reductions_run_as_predicted():
    lab = pp.Lab(stages=4, microbatches=4)
    schedule, cost = schedules.interleaved(2, 2, 2), Cost(F=1, B=2, sync=4)
    run = lab.run(schedule, grid=TWO, cost=cost, clock="pace", pace=0.03)
    predicted = simulate(TWO.spread(schedule), cost)
    assert lab.check(run).passed
    assert run.trace.makespan >= predicted.makespan

    def hidden(trace):  # the other chunk's reduction, which begins before the last backward
        return {
            (e.rank, e.op.stage)
            for e in trace.events
            if e.lane == "all-reduce" and e.start < trace.ranks[e.rank][-1].end
        }

    assert hidden(run.trace) == hidden(predicted) == {(r, 2 + r // 2) for r in range(4)}


def test_an_axis_of_one_has_nothing_to_add_up(plain):
    def program(rank):
        pipeline(rank)
        one = torch.ones(2)
        rank.all_reduce(one, "dp")
        assert one.tolist() == [1, 1]

    assert plain.check(plain.run(program, grid=Grid(pp=2))).passed


@pytest.mark.skipif(torch.cuda.device_count() < 4, reason="2 x 2 ranks need four GPUs")
def test_a_grid_on_gpus_trains_as_one_process_does():
    lab = lab_of()
    for grid in (Grid(dp=2, pp=2), Grid(tp=2, pp=2), Grid(tp=2, pp=2, sequence_parallel=True)):
        run = lab.run(schedules.one_f_one_b(2, 4 // grid.dp), grid=grid, clock="wall")
        assert lab.check(run).passed, lab.check(run)
