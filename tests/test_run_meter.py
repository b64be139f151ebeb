"""Bytes held on real ranks: as counted by hand, op by op, and drawn as the strip of a timeline."""

import pytest
import torch

from pp_lab import Cost, Grid, Lab, Layers, schedules, simulate, stack, timeline
from pp_lab.run.lab import ProblemError
from pp_lab.run.meter import Meter
from pp_lab.run.recompute import KINDS, keeping
from pp_lab.run.transformer import Layer, transformer_lab
from pp_lab.schedule.text import in_bytes
from pp_lab.show.explainer import Explainer

ONE = 4 * 16 * 8  # bytes of a tensor between stages: [4, 16], float64
STAGE = 3 * ONE  # what Linear, tanh, Linear, tanh keep: the input and what each tanh gave


@pytest.mark.parametrize("make", [schedules.gpipe, schedules.one_f_one_b, schedules.eager_1f1b])
def test_a_rank_holds_a_stages_bytes_for_each_micro_batch_in_flight(make):
    schedule = make(4, 8)
    run = Lab(4, 8).run(schedule, meter=True)
    assert run.peak_bytes == [STAGE * n for n in run.peak_activations]
    assert run.trace == simulate(schedule)


@pytest.mark.parametrize(
    "schedule",
    [
        schedules.one_f_one_b(3, 5),
        schedules.interleaved(2, 4, 2),
        schedules.zb_h1(3, 4),
        schedules.dualpipe(2, 4),
        schedules.zb_v(2, 4),
    ],
    ids=lambda schedule: schedule.name,
)
def test_every_step_is_at_an_op_and_nothing_is_held_at_the_end(schedule):
    lab = Lab(schedule.stages, schedule.microbatches)
    run, bare = (lab.run(schedule, meter=meter) for meter in (True, False))
    assert lab.check(run).passed and run.trace == bare.trace
    assert all(torch.equal(grad, bare.grads[name]) for name, grad in run.grads.items())
    assert bare.held_bytes is None and bare.peak_bytes is None and bare.trace.held_bytes is None
    for rank, steps in enumerate(run.held_bytes):
        times = [t for e in run.trace.ranks[rank] for t in (e.start, e.end)]
        assert [time for time, _ in steps] == times
        assert steps[-1][1] == 0
        assert max(count for _, count in steps) == run.peak_bytes[rank] > 0


def test_a_split_backward_frees_at_its_weight_gradient():
    """Between I and W a Linear's input and the gradient of its output are there, and no more."""
    lab = Lab(1, 1, activation="identity")
    (steps,) = lab.run(schedules.zb_h1(1, 1), meter=True).held_bytes
    after = [count for _, count in steps[1::2]]  # F, I, W
    assert after == [after[0], 4 * ONE, 0]  # two Linears


def test_outputs_are_left_out_on_demand():
    """A Linear keeps its input only; the output is what the next stage takes."""
    lab = Lab(2, 2, blocks=2, activation="identity")
    both, inputs = (
        lab.run(schedules.gpipe(2, 2), meter=Meter(outputs=outputs)).peak_bytes
        for outputs in (True, False)
    )
    assert (both[0], inputs[0]) == (4 * ONE, 2 * ONE)
    assert both[1] == inputs[1]  # the last stage gives nothing on


@pytest.mark.parametrize("recompute", [True, lambda stage, i: i == 0])
def test_what_is_computed_again_lives_while_its_backward_runs(recompute):
    lab, schedule = Lab(2, 3), schedules.gpipe(2, 3)
    seen, unseen, whole = (
        lab.run(schedule, recompute=again, meter=meter).peak_bytes
        for again, meter in (
            (recompute, Meter(outputs=False)),
            (recompute, Meter(outputs=False, again=False)),
            (None, Meter(outputs=False)),
        )
    )
    assert all(u <= s <= w for u, s, w in zip(unseen, seen, whole, strict=True))
    assert unseen < whole


def test_a_rank_program_and_a_grid_are_metered_too():
    def program(rank):
        for i in rank.mine:
            rank.send_forward(i, rank.forward(i, rank.recv_forward(i)))
        for i in rank.mine:
            rank.send_backward(i, rank.backward(i, rank.recv_backward(i)))

    run = Lab(2, 4).run(program, grid=Grid(dp=2, pp=2), meter=True)
    assert run.peak_bytes == [2 * STAGE] * 4
    run = Lab(2, 3).run(program, clock="wall", meter=True)
    assert run.peak_bytes == [3 * STAGE] * 2 and "peak bytes" in str(run.trace)


@pytest.mark.parametrize("meter", ["yes", 1, Meter])
def test_what_is_no_meter_is_refused(meter):
    with pytest.raises(ProblemError, match=r"meter=.*give True, or a pp_lab\.run\.meter\.Meter"):
        Lab(2, 2).run(schedules.gpipe(2, 2), meter=meter)


def test_layers_run_node_by_node_and_are_not_metered():
    with pytest.raises(ProblemError, match="node by node: give no meter"):
        Lab(2, 2).run(schedules.gpipe(2, 2), cost=Layers(), meter=True)


# ---- the strip


def test_the_strip_of_a_metered_run_is_in_bytes():
    lab, schedule = Lab(3, 4), schedules.one_f_one_b(3, 4)
    run, predicted = lab.run(schedule, meter=True), simulate(schedule)
    figure = timeline(run.trace, predicted=predicted)
    texts = [text.text for text in figure.scene.texts]
    assert [f"{n * STAGE} B" for n in (3, 2, 1)] == [t for t in texts if t.endswith(" B")]
    assert "bytes held, on one scale for all ranks" in texts
    assert "peak activations 3 2 1, peak bytes 4608 3072 1536" in repr(figure)
    # The same outline as in activations, since each of them has as many bytes.
    plain = timeline(predicted)
    for ours, theirs in zip(figure.scene.memory, plain.scene.memory, strict=True):
        heights = [
            {round((area[0][1] - y) / 18, 3) for _, y in area} for area in (ours, theirs)
        ]  # fmt: skip
        assert heights[0] == heights[1]


def test_strips_in_bytes_and_in_activations_have_scales_of_their_own():
    lab, schedule = Lab(2, 2), schedules.gpipe(2, 2)
    run = lab.run(schedule, meter=True)
    figure = stack(run.trace, simulate(schedule))
    highest = [area[0][1] - min(y for _, y in area) for area in figure.scene.memory]
    assert len(set(highest)) == 1  # each reaches the top of its scale
    legend = [text.text for text in figure.scene.texts]
    assert "bytes and activations held, on one scale for all ranks" in legend


def test_an_op_of_a_metered_run_says_how_many_bytes_its_rank_holds():
    run = Lab(2, 2).run(schedules.gpipe(2, 2), meter=True)
    said = Explainer(run.trace).op(run.trace.ranks[0][1])
    assert said.endswith(f"Rank 0 holds 2 activations, {2 * STAGE} B at most, meanwhile.")


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (9999, "9999 B"), (10_240, "10 KiB"), (1671168, "1632 KiB"),
     (40 << 20, "40 MiB"), (90 << 30, "90 GiB")],
)  # fmt: skip
def test_bytes_as_people_write_them(count, text):
    assert in_bytes(count) == text


# ---- a transformer, and the ways to keep less of it


@pytest.mark.parametrize("what", KINDS)
@pytest.mark.parametrize("schedule", [schedules.one_f_one_b(2, 3), schedules.gpipe(1, 2)])
def test_what_is_kept_changes_no_bit_of_the_step_dropout_included(what, schedule):
    lab = transformer_lab(schedule.p, schedule.microbatches, sequence=6, h=8, dropout=0.3)
    run = lab.run(schedule, forward_step=keeping(what))
    assert lab.check(run).passed and run.exact


def test_the_less_is_kept_the_less_is_held():
    lab, schedule = transformer_lab(2, 4), schedules.one_f_one_b(2, 4)
    held = [lab.run(schedule, forward_step=keeping(w), meter=True).peak_bytes for w in KINDS]
    assert held[0] > held[1] > held[2]
    assert all(a > b > c for a, b, c in zip(*held, strict=True))


def test_a_layer_is_a_transformers():
    layer = Layer(h=12, heads=3, dropout=0.0, seed=1)
    x = torch.randn(2, 5, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    attention = torch.nn.MultiheadAttention(12, 3, dtype=torch.float64, batch_first=True)
    with torch.no_grad():
        attention.in_proj_weight.copy_(layer.qkv.weight)
        attention.in_proj_bias.copy_(layer.qkv.bias)
        attention.out_proj.weight.copy_(layer.proj.weight)
        attention.out_proj.bias.copy_(layer.proj.bias)
    normed = layer.norm1(x)
    h = x + attention(normed, normed, normed, need_weights=False)[0]
    y = h + layer.down(torch.nn.functional.gelu(layer.up(layer.norm2(h))))
    assert torch.allclose(layer(x), y, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Layer(h=10, heads=3), "h=10 numbers cannot be shared evenly by heads=3"),
        (lambda: Layer(dropout=1.0), "dropout=1.0: give a share, from 0 to below 1"),
        (lambda: keeping("half"), "'half': choose all, all but the core or inputs"),
        (lambda: transformer_lab(4, 2, layers=3), "3 blocks cannot fill 4 stages"),
    ],
)
def test_what_cannot_be_is_refused(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


def test_a_cost_of_recompute_is_a_matter_of_the_cost_model():
    """The strip shows what is held; the time of a second forward is declared as part of B."""
    lab = transformer_lab(2, 2)
    run = lab.run(schedules.gpipe(2, 2), cost=Cost(F=1, B=3), forward_step=keeping("inputs"))
    assert run.trace == simulate(schedules.gpipe(2, 2), Cost(F=1, B=3))
