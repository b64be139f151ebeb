"""Schedules of mixture-of-experts layers on real processes: simulated = run, node by node."""

import threading
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pp_lab as pp
from pp_lab import Layers, RunError, schedules, simulate
from pp_lab.run.lab import ProblemError
from pp_lab.run.moe import MoELayer
from pp_lab.run.streams import Event, Stream, finish


class Broken(MoELayer):
    """A layer whose experts fail."""

    def mlp(self, tokens, plan):
        raise ValueError("no expert is there")


def lab_of(schedule, model, make=MoELayer, experts=4):
    random = torch.Generator().manual_seed(7)
    m = schedule.microbatches * model.ep
    x, target = (torch.randn(5 * m, 8, generator=random, dtype=torch.float64) for _ in range(2))
    blocks = [make(8, experts, seed=k) for k in range(schedule.stages * model.layers)]
    return pp.Lab(schedule.stages, m, blocks=blocks, inputs=x, targets=target)


def agree(schedule, model):
    lab, predicted = lab_of(schedule, model), simulate(schedule, model)
    run = lab.run(schedule, cost=model)
    assert run.trace == predicted
    assert run.peak_activations == predicted.peak_activations
    kind, said = run.compare()
    assert kind == "yes", said
    assert set(run.grads) == set(lab.reference.grads)
    return said


@pytest.mark.parametrize(
    ("schedule", "model"),
    [
        (schedules.combined_1f1b(1, 4), Layers(2)),  # gradient accumulation, 1 x 1
        (schedules.combined_1f1b(1, 3), Layers(2, ep=2)),  # 1 x 2
        (schedules.combined_1f1b(2, 4, 2), Layers(1, ep=2, comm=1)),  # 2 x 2
        (schedules.combined_1f1b(2, 4, 2), Layers(1, ep=2, streams=1)),
        (schedules.one_f_one_b(2, 3), Layers(1, mlp=[1, 3], ep=2, split=False)),  # a hot expert
        (schedules.zb_h1(2, 4), Layers(2, a2a=2)),
        (schedules.zb_h1(2, 3), Layers(1, split=False)),  # the schedule splits by itself
        (schedules.zb_v(2, 4), Layers(1, ep=2)),
        (schedules.dualpipe_v(2, 4), Layers(1, attn=2)),
        (schedules.dualpipe(2, 4), Layers(1)),
    ],
    ids=lambda value: getattr(value, "name", None) or str(value),
)
def test_the_virtual_clock_gives_the_simulated_trace_and_the_gradients_are_right(schedule, model):
    agree(schedule, model)


def test_with_one_copy_the_gradients_are_equal_to_the_last_bit():
    assert "to the last bit" in agree(schedules.combined_1f1b(2, 4, 2), Layers(1))


TIMES = st.fractions(0, 3, max_denominator=4)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.data())
def test_whatever_the_costs_a_run_is_what_was_simulated(data):
    schedule = data.draw(
        st.sampled_from(
            [
                schedules.combined_1f1b(2, 3, 1),
                schedules.interleaved(2, 2, 2),
                schedules.zb_h2(2, 3),
                schedules.gpipe(2, 2),
            ]
        )  # fmt: skip
    )
    ep = data.draw(st.sampled_from([1, 2]))
    model = Layers(
        data.draw(st.integers(1, 2)), data.draw(TIMES), [data.draw(TIMES) for _ in range(ep)],
        data.draw(TIMES), data.draw(TIMES), data.draw(st.sampled_from([1, 2])),
        data.draw(st.booleans()), ep,
    )  # fmt: skip
    agree(schedule, model)


@pytest.mark.parametrize("streams", [1, 2])
def test_in_real_time_the_gradients_are_right_and_every_stream_keeps_its_order(streams):
    schedule, model = schedules.combined_1f1b(2, 4, 2), Layers(1, ep=2, streams=streams)
    run = lab_of(schedule, model).run(schedule, cost=model, clock="pace", pace=0.004)
    assert run.compare()[0] == "yes"
    predicted = simulate(schedule, model)
    for lane in ("compute", "all-to-all"):
        order = [[e.op for e in t.events if e.lane == lane] for t in (run.trace, predicted)]
        assert order[0] == order[1]
    assert run.trace.makespan > 0.9 * predicted.makespan


def test_on_the_wall_clock_times_are_measured_in_seconds():
    schedule, model = schedules.combined_1f1b(1, 4), Layers(1, ep=2)
    run = lab_of(schedule, model).run(schedule, cost=model, clock="wall")
    assert run.compare()[0] == "yes"
    assert run.trace.cost is None and 0 < run.trace.makespan < run.seconds


@pytest.mark.parametrize("clock", ["virtual", "pace"])
def test_what_fails_in_a_node_is_named_and_nothing_hangs(clock):
    schedule, model = schedules.combined_1f1b(1, 3), Layers(1, ep=2)
    lab = lab_of(schedule, model)
    lab.problem.given_blocks[0].__class__ = Broken
    lab._try_shapes = lambda: None
    began = time.monotonic()
    with pytest.raises(RunError, match="ValueError: no expert is there"):
        lab.run(schedule, cost=model, clock=clock)
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    ("schedule", "model", "sentence"),
    [
        (schedules.gpipe(2, 4), Layers(2), "the cost has 2 layers per stage, this lab's stages"),
        (schedules.gpipe(2, 4), Layers(1, ep=3), "4 micro-batches cannot be dealt out evenly to 3"),
        (schedules.gpipe(2, 4), Layers(1, ep=2), "make a Lab"),
        (lambda rank: None, Layers(1), "give a schedule, not a rank program"),
    ],
)
def test_what_does_not_fit_is_refused(schedule, model, sentence):
    lab = lab_of(schedules.gpipe(2, 4), Layers(1))
    with pytest.raises(ProblemError, match=sentence):
        lab.run(schedule, cost=model)


def test_layers_need_blocks_that_are_layers():
    with pytest.raises(ProblemError, match="whose blocks are all MoELayer"):
        pp.Lab(2, 4).run(schedules.gpipe(2, 4), cost=Layers(1))


def test_experts_that_ranks_cannot_share_evenly_are_named():
    schedule, model = schedules.gpipe(1, 2), Layers(1, ep=2)
    with pytest.raises(RunError, match="3 experts cannot be shared evenly by 2 ranks"):
        lab_of(schedule, model, experts=3).run(schedule, cost=model)


# ---- streams


def test_a_stream_keeps_its_order_and_an_event_holds_up_the_other():
    said, one, two, event, go = [], Stream(), Stream(), Event(), threading.Event()
    one.enqueue(go.wait)
    one.enqueue(said.append, "one")
    one.record(event)
    two.wait(event)
    two.enqueue(said.append, "two")
    two.enqueue(said.append, "three")
    assert said == []
    go.set()
    finish([one, two])
    assert said == ["one", "two", "three"]


def test_an_event_that_was_not_recorded_holds_nobody_up():
    said, one = [], Stream()
    one.wait(Event())
    one.enqueue(said.append, "one")
    finish([one])
    assert said == ["one"]


def test_a_wait_is_for_the_point_recorded_before_it_not_for_a_later_one():
    said, one, two, event, go = [], Stream(), Stream(), Event(), threading.Event()
    one.record(event)
    two.wait(event)
    one.enqueue(go.wait)
    one.record(event)
    two.enqueue(said.append, "two")
    finish([two])
    assert said == ["two"] and not go.is_set()
    go.set()
    finish([one])


def test_an_exception_in_a_stream_is_raised_even_while_another_waits():
    one, two, event, go = Stream(), Stream(), Event(), threading.Event()
    two.enqueue(go.wait)
    two.record(event)
    one.enqueue(lambda: 1 / 0)
    one.enqueue(pytest.fail, "nothing more runs on a stream that failed")
    with pytest.raises(ZeroDivisionError):
        finish([two, one])
    go.set()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="two CUDA streams need a GPU")
def test_on_a_gpu_an_event_orders_two_streams():
    from pp_lab.run.streams import CudaStream, stream

    device = torch.device("cuda")
    one, two, event = stream("one", device), stream("two", device, priority=-1), Event()
    assert isinstance(one, CudaStream)
    x = torch.zeros(1 << 22, device=device)

    def slow():
        for _ in range(200):
            x.add_(1)

    seen = []
    one.enqueue(slow)
    one.record(event)
    two.wait(event)
    two.enqueue(lambda: seen.append(x.clone()))
    finish([one, two])
    assert bool((seen[0] == 200).all())


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="ranks need a GPU each: 1 x 2 needs two")
def test_on_gpus_layers_run_on_two_streams_and_gradients_are_right():
    schedule, model = schedules.combined_1f1b(1, 4), Layers(1, ep=2)
    run = lab_of(schedule, model).run(schedule, cost=model, clock="wall")
    assert run.compare()[0] == "yes"
