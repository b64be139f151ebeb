"""Runs on real processes: what the simulator says, and what one process computes."""

import contextlib
import io

import pytest
import torch
from programs import gpipe, one_f_one_b

import pp_lab as pp
from pp_lab import Cost, Op, schedules, simulate
from pp_lab.run.execute import _receives_first
from pp_lab.run.lab import ProblemError
from pp_lab.run.rank import P2POp
from pp_lab.schedule.lower import lower
from pp_lab.schedule.op import Move

SIZES = [(1, 1), (1, 3), (2, 1), (2, 2), (4, 2), (4, 8), (3, 5), (6, 4)]


@pytest.mark.parametrize(("p", "m"), SIZES)
@pytest.mark.parametrize("name", ["gpipe", "one_f_one_b"])
def test_rank_program_and_schedule_equal_simulation_and_reference(p, m, name):
    lab = pp.Lab(p, m, hidden=8)
    schedule = getattr(schedules, name)(p, m)
    cost = Cost(F=3, B=5, comm=2)
    # A rank program is blocked while it receives, so a hop's latency can delay it elsewhere
    # than a schedule; without latency the two agree.
    for program, price in [(schedule, cost), (globals()[name], Cost(F=3, B=5))]:
        run = lab.run(program, cost=price)
        expected = simulate(schedule, price)
        assert run.trace == expected
        assert run.peak_activations == expected.peak_activations
        score = lab.check(run, makespan=expected.makespan, peak=expected.peak_activations)
        assert score == 3, str(score)
        assert run.exact
        assert "to the last bit" in str(score)
        assert torch.equal(torch.tensor(run.loss), torch.tensor(lab.reference.loss))
        assert all(torch.equal(run.grads[k], g) for k, g in lab.reference.grads.items())
        assert all(torch.equal(run.weights[k], w) for k, w in lab.reference.weights.items())
        assert sum(run.messages) == 2 * (p - 1) * m


def test_reference_is_autograd_on_the_whole_batch():
    lab = pp.Lab(3, 4, hidden=8, lr=0.5)
    problem = lab.problem
    model = torch.nn.Sequential(*(problem.module(s) for s in range(3)))
    x, y = torch.cat(problem.inputs()), torch.cat(problem.targets())
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    names = [n for s in range(3) for n in problem.names(s)]
    assert lab.reference.loss == pytest.approx(loss.item())
    for name, parameter in zip(names, model.parameters(), strict=True):
        torch.testing.assert_close(lab.reference.grads[name], parameter.grad)
        torch.testing.assert_close(
            lab.reference.weights[name], (parameter - 0.5 * parameter.grad).detach()
        )


def test_any_order_of_backwards_is_right_within_the_stated_bound():
    ranks = [
        [Op("F", s, i) for i in range(4)] + [Op("B", s, i) for i in reversed(range(4))]
        for s in range(3)
    ]
    lab = pp.Lab(3, 4, hidden=8)
    run = lab.run(pp.Schedule("GPipe, last in first out", ranks))
    assert not run.exact
    assert "in another order" in str(lab.check(run))
    assert lab.check(run) == 1


def test_split_backward_and_several_stages_per_rank_equal_the_reference():
    lab = pp.Lab(4, 4, hidden=8)

    def rows(owned):
        row = [Op("F", s, i) for i in range(4) for s in owned]
        return row + [Op(k, s, i) for i in range(4) for s in owned[::-1] for k in "IW"]

    v_shape = pp.Placement("V", ((0, 1, 1, 0),))
    inner = [Op("F", s, i) for i in range(4) for s in (1, 2)]
    inner += [Op(k, s, i) for i in range(4) for s in (2, 1) for k in "IW"]
    outer = [Op("F", 0, i) for i in range(4)]
    outer += [Op(k, 3, i) for i in range(4) for k in "FIW"]
    outer += [Op(k, 0, i) for i in range(4) for k in "IW"]
    schedule = pp.Schedule("V", [outer, inner], v_shape, 4)
    run = lab.run(schedule)
    assert run.trace == simulate(schedule)
    assert lab.check(run) == 1, str(lab.check(run))
    assert sum(run.messages) == 2 * 2 * 4  # stages 1 and 2 share a rank: no message


def test_two_copies_of_the_model_sum_their_gradients():
    lab = pp.Lab(2, 4, hidden=8)
    both = pp.Placement("bidirectional", ((0, 1), (1, 0)))
    ranks = [[], []]
    for kind, stages in (("F", (0, 1)), ("B", (1, 0))):
        for i in range(4):
            for s in stages:
                ranks[both.copies[both.copy(i, 4)][s]].append(Op(kind, s, i))
    # In an order that can run: both directions start at once and meet in the middle.
    ranks = [
        sorted(
            row,
            key=lambda op: (
                op.kind == "B",
                op.microbatch % 2,
                op.stage if op.kind == "F" else -op.stage,
            ),
        )
        for row in ranks
    ]
    schedule = pp.Schedule("both ways", ranks, both, 4)
    run = lab.run(schedule)
    assert run.trace == simulate(schedule)
    assert not run.exact
    assert lab.check(run) == 1, str(lab.check(run))


def test_float32_relu_and_an_uneven_cut_are_exact_too():
    lab = pp.Lab(3, 4, cut=[1, 3, 2], dtype="float32", activation="relu", batch=8, hidden=5, seed=7)
    run = lab.run(one_f_one_b)
    assert run.grads["block1.linear.weight"].dtype == torch.float32
    assert "to the last bit" in str(lab.check(run))


def test_seeds_differ_and_repeat():
    a, b, c = (pp.Lab(2, 2, seed=s).reference for s in (0, 0, 1))
    assert a.loss == b.loss != c.loss


def test_data_is_on_the_first_rank_only_and_targets_on_the_last():
    lab = pp.Lab(3, 2)

    def program(rank):
        rank.data(0) if rank.index == 1 else gpipe(rank)

    with pytest.raises(pp.RunError, match="rank 1 has no data: only the first rank does"):
        lab.run(program)

    def other(rank):
        rank.loss(0, rank.empty()) if rank.index == 1 else gpipe(rank)

    with pytest.raises(pp.RunError, match="rank 1 has no targets"):
        lab.run(other)


def test_generator_of_lists_is_a_schedule():
    def mine(p, m):
        return [[Op(k, s, i) for k in "FB" for i in range(m)] for s in range(p)]

    run = pp.Lab(2, 2).run(mine)
    assert run.schedule.name == "mine"
    assert run.trace == simulate(schedules.gpipe(2, 2))


def test_learner_steps_take_the_place_of_ours():
    lab = pp.Lab(3, 4)

    def forward_step(rank, i, x):
        x.requires_grad_()
        y = rank.module(x)
        return rank.loss(i, y) / rank.microbatches if rank.is_last else y

    def backward_step(rank, i, x, y, dy):
        torch.autograd.backward(y, dy)
        return x.grad

    run = lab.run(gpipe, forward_step=forward_step, backward_step=backward_step)
    assert lab.check(run) == 1

    def undivided(rank, i, x):
        x.requires_grad_()
        y = rank.module(x)
        return rank.loss(i, y) if rank.is_last else y

    assert "m = 4 times too large" in str(lab.check(lab.run(gpipe, forward_step=undivided)))


def test_point_to_point_has_torchs_names_and_meaning(capsys):
    def swap(rank):
        mine = torch.full((3,), float(rank.index))
        theirs = torch.empty(3)
        peer = 1 - rank.index
        ops = [P2POp(rank.isend, mine, peer), P2POp(rank.irecv, theirs, peer)]
        for request in rank.batch_isend_irecv(ops):
            assert request.wait()
            assert request.wait()  # a second wait is harmless
            assert request.is_completed()
        total = torch.ones(2)
        rank.all_reduce(total)
        out = torch.empty(2)
        rank.all_to_all_single(out, torch.tensor([0.0, 1.0]) + 10 * rank.index)
        print(theirs.tolist(), total.tolist(), out.tolist())

    pp.Lab(2, 1).run(swap)
    assert capsys.readouterr().out.splitlines() == [
        "[rank 0] [1.0, 1.0, 1.0] [2.0, 2.0] [0.0, 10.0]",
        "[rank 1] [0.0, 0.0, 0.0] [2.0, 2.0] [1.0, 11.0]",
    ]


def test_a_request_knows_when_it_is_done():
    def program(rank):
        import time

        if rank.index == 0:
            request = rank.isend(torch.ones(2), 1)
            assert not request.is_completed()
            rank.recv(torch.empty(1), 1)  # rank 1 has not received yet when it sends this
            rank.send(torch.empty(1), 1)
            while not request.is_completed():
                time.sleep(0.001)
            request.wait()
        else:
            rank.send(torch.empty(1), 0)
            first = torch.empty(2)
            request = rank.irecv(first, 0, tag=0)
            second = torch.empty(1)
            rank.recv(second, 0)
            request.wait()
            assert first.tolist() == [1, 1]

    pp.Lab(2, 1).run(program)


def test_latency_of_a_hop_reaches_the_receiver_of_a_rank_program():
    run = pp.Lab(2, 1).run(gpipe, cost=Cost(F=1, B=2, comm=5))
    assert [tuple(e[2:]) for e in run.trace.events] == [
        (Op("F", 0, 0), 0, 1),
        (Op("B", 0, 0), 14, 16),
        (Op("F", 1, 0), 6, 7),
        (Op("B", 1, 0), 7, 9),
    ]


def test_at_a_pace_messages_take_the_latency_of_a_hop():
    lab, schedule = pp.Lab(2, 3), schedules.gpipe(2, 3)
    cost = Cost(F=1, B=2, comm=3)
    run = lab.run(schedule, clock="pace", cost=cost, pace=0.01)
    predicted = simulate(schedule, cost)
    assert run.trace.makespan >= predicted.makespan == simulate(schedule).makespan + 6
    assert lab.check(run) == 1

    def program(rank):
        if rank.index == 0:
            rank.send_forward(0, rank.forward(0, rank.recv_forward(0)))
        else:
            began = rank.now
            rank.recv_forward(0)
            print(rank.now - began >= 3)

    with contextlib.redirect_stdout(io.StringIO()) as said:
        lab.run(program, clock="pace", cost=cost, pace=0.01)
    assert said.getvalue() == "[rank 1] True\n"


def test_at_a_pace_ranks_compute_one_after_the_other_within_ops_of_the_same_moment():
    def forward_step(rank, i, x):
        print(rank.now)
        return pp.run.rank.forward_step(rank, i, x)

    lab = pp.Lab(2, 3)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        run = lab.run(schedules.gpipe(2, 3), clock="pace", pace=0.05, forward_step=forward_step)
    computed = {0: [], 1: []}
    for line in said.getvalue().splitlines():
        rank, now = line.removeprefix("[rank ").split("] ")
        computed[int(rank)].append(float(now))
    for rank, turn in ((0, 1 / 12), (1, 3 / 12)):
        starts = [e.start for e in run.trace.events if e.rank == rank and e.op.kind == "F"]
        after = [now - start for now, start in zip(computed[rank], starts, strict=True)]
        assert all(turn <= late < 1 for late in after)


def test_at_a_pace_an_op_takes_what_is_declared_where_the_machine_wakes_up_late(monkeypatch):
    class Machine:
        now, late = 0.0, iter([3e-4, 5e-4, 2e-4] * 20)

        def monotonic(self):
            self.now += 1e-6  # as long as it takes to look
            return self.now

        def sleep(self, seconds):
            assert seconds > 0
            self.now += seconds + next(self.late)

    monkeypatch.setattr(pp.run.rank_clocks, "time", Machine())
    clock = pp.run.rank_clocks.PaceClock(Cost(F=1, B=2), unit=0.02, turn=0.1)
    took = []
    for i in range(20):
        start = clock.start()
        clock.turn(Op("F", 0, i), start)
        took.append(clock.stop(Op("F", 0, i), start) - start)
    assert min(took) >= 1, "never less than declared"
    assert max(took) > 1.01, "the first one cannot know how late it will be"
    assert max(took[5:]) < 1 + 0.25e-3 / 0.02, "then at most by how late one was beyond the others"


def test_messages_of_any_type_and_shape_arrive_as_they_were():
    def program(rank):
        import torch

        generator = torch.Generator().manual_seed(1)
        bits = torch.randint(0, 256, (96,), dtype=torch.uint8, generator=generator)
        kinds = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64,
                 torch.int8, torch.complex64)  # fmt: skip
        sent = [bits.view(kind).reshape(2, -1) for kind in kinds]
        sent += [bits > 100, torch.tensor(3.5), torch.empty(0, 4), torch.empty(0)]
        for tensor in sent:
            if rank.index == 0:
                rank.send(tensor, 1)
            else:
                arrived = torch.zeros_like(tensor)
                rank.recv(arrived, 0)
                assert arrived.flatten().view(torch.uint8).equal(tensor.flatten().view(torch.uint8))

    run = pp.Lab(2, 1).run(program)
    assert run.messages == [11, 0]


@pytest.mark.parametrize("tags", [True, False])
@pytest.mark.parametrize("name", ["gpipe", "one_f_one_b", "zb_h1"])
def test_receives_are_posted_in_batches_long_before_or_in_order_where_there_are_no_tags(name, tags):
    def receives(item):
        return isinstance(item, Move) and item.action == "RECV"

    for row in lower(getattr(schedules, name)(4, 40)).ranks:
        moved = _receives_first(row, tags)
        assert sorted(map(repr, moved)) == sorted(map(repr, row))
        assert [i for i in moved if not receives(i)] == [i for i in row if not receives(i)]
        needed, posted = (  # receive -> how many ops come before it
            {item: sum(not isinstance(i, Move) for i in order[:at])
             for at, item in enumerate(order) if receives(item)}
            for order in (row, moved)
        )  # fmt: skip
        ahead = [needed[item] - posted[item] for item in needed if posted[item]]
        if tags:
            assert all(needed[item] < 32 for item in needed if not posted[item])
            assert ahead and 16 <= min(ahead) and max(ahead) < 32, "buffers stay bounded"
            assert len(set(posted.values())) <= len(row) / 16, "together: each wakes a sender up"
        else:
            assert set(ahead) <= {0, 1}
            messages = [[i for i in order if isinstance(i, Move)] for order in (row, moved)]
            assert messages[0] == messages[1]


def test_wall_clock_is_measured_and_pace_takes_its_time():
    lab = pp.Lab(2, 3)
    wall = lab.run(gpipe, clock="wall").trace
    assert wall.cost is None
    assert all(e.end > e.start >= 0 for e in wall.events)
    assert wall.makespan < 5
    pace = lab.run(schedules.gpipe(2, 3), clock="pace", pace=0.01)
    predicted = simulate(schedules.gpipe(2, 3))
    assert pace.seconds > 0.01 * predicted.makespan
    assert pace.trace.makespan >= predicted.makespan
    assert [e.op for e in pace.trace.events] == [e.op for e in predicted.events]
    assert lab.check(pace) == 1, "these messages go without header and without copy"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            dict(stages=4, microbatches=5, batch=16),
            "Nearest: batch=15 or batch=20, or microbatches=4",
        ),
        (dict(stages=4, microbatches=32, batch=16), "Nearest: batch=32, or microbatches=16"),
        (dict(stages=4, blocks=3), "3 blocks cannot fill 4 stages.*blocks=4 or more, or stages=3"),
        (dict(stages=0), "stages=0: stages must be a whole number, at least 1"),
        (dict(stages=2.0), "stages=2.0"),
        (dict(microbatches=0), "microbatches=0"),
        (dict(stages=2, cut=[1, 2, 3]), "is for 3 stages, this lab has 2"),
        (dict(stages=2, cut=[1, 0]), "each entry of cut"),
        (dict(stages=2, cut=[1, 2], blocks=4), "has 3 blocks, not 4"),
        (dict(activation="swish"), "choose tanh or relu"),
        (dict(dtype="int8"), "choose float64 or float32"),
        (dict(backend="mpi"), "choose gloo or nccl"),
    ],
)
def test_impossible_labs_are_refused_with_the_nearest_values(arguments, sentence):
    with pytest.raises(ProblemError, match=sentence):
        pp.Lab(**arguments)


def test_nccl_without_a_gpu_per_rank_is_refused():
    if torch.cuda.device_count() >= 2:
        pytest.skip("this machine has a GPU for every rank")
    with pytest.raises(ProblemError, match="NCCL needs a GPU for every rank, .*: 2 ranks"):
        pp.Lab(2, 2, backend="nccl").run(gpipe)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL needs two GPUs")
def test_nccl_runs_both_schedules():
    lab = pp.Lab(2, 4, backend="nccl")
    assert lab.check(lab.run(one_f_one_b)) == 1
    assert lab.check(lab.run(schedules.gpipe)) == 1


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        (lambda p, m, v: None, "takes 3 arguments"),
        (lambda p, m: None, "is a return missing"),
        ("gpipe", "cannot run 'gpipe'"),
        (schedules.gpipe(3, 2), r"make a Lab\(stages=3, microbatches=2\)"),
    ],
)
def test_what_cannot_be_run_is_refused(program, sentence):
    with pytest.raises(ProblemError, match=sentence):
        pp.Lab(2, 2).run(program)


def test_an_illegal_schedule_is_refused_before_anything_starts():
    ranks = [[Op("B", 0, 0), Op("F", 0, 0)], [Op("F", 1, 0), Op("B", 1, 0)]]
    with pytest.raises(pp.ScheduleError, match="rank 0, position 0: 0B0 needs 0F0"):
        pp.Lab(2, 1).run(pp.Schedule("bad", ranks))


def test_a_plan_can_be_run_again_on_the_same_ranks():
    """As benchmarks do, which measure several steps in a row."""
    from pp_lab.run.execute import Plan
    from pp_lab.schedule.lower import lower

    rows = lower(schedules.one_f_one_b(3, 4)).ranks

    def program(rank):
        plan, found = Plan(rank, rows[rank.index]), []
        for posted in (False, True, False):
            rank.module.zero_grad()
            rank.seen.clear()
            rank.items.clear()
            if posted:
                plan.post()
            plan.run()
            found.append([p.grad.clone() for p in rank.module.parameters()])
        assert all(a.equal(b) for again in found for a, b in zip(found[0], again, strict=True))

    lab = pp.Lab(stages=3, microbatches=4)
    assert lab.check(lab.run(program, tags=True)).passed
