"""A wrong gradient is found, located, and the usual causes are recognised."""

import re

import pytest
import torch
from programs import forwards, gpipe

import pp_lab as pp
from pp_lab.run.diagnosis import bounds, diagnose, differences, per_microbatch

M = 4
LAB = pp.Lab(3, M, hidden=6)
PARTS, INPUTS, OUTPUTS = per_microbatch(LAB.problem)
RIGHT = LAB.reference.grads
STAGE1 = LAB.problem.names(1)


def wrong(change, stages=(1,)):
    """The reference's gradients, those of some stages changed."""
    names = {n for s in stages for n in LAB.problem.names(s)}
    return {n: change(n) if n in names else g for n, g in RIGHT.items()}


def cause(got):
    return diagnose(LAB.problem, got, RIGHT, differences(LAB.problem, got, RIGHT, None))


def test_parts_of_micro_batches_add_up_to_the_gradient():
    for name, terms in PARTS.items():
        assert torch.equal(sum(terms[1:], terms[0]), RIGHT[name])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda n: M * RIGHT[n],
            "m = 4 times too large: the loss of each micro-batch must be divided",
        ),
        (lambda n: RIGHT[n] / M, "m = 4 times too small: is the loss divided by m twice?"),
        (lambda n: PARTS[n][-1], "only the last micro-batch, 3, counts"),
        (lambda n: PARTS[n][0], "only the first micro-batch, 0, counts"),
        (lambda n: RIGHT[n] - PARTS[n][2], "micro-batch 2 is missing"),
        (lambda n: RIGHT[n] + PARTS[n][1], "micro-batch 1 counts twice"),
        (lambda n: -RIGHT[n], "the wrong sign"),
        (lambda n: torch.zeros_like(RIGHT[n]), "all gradients of stage 1 are zero.*from stage 2"),
        (lambda n: None, "stage 1 has no gradients at all"),
        (lambda n: RIGHT[LAB.problem.names(2)[STAGE1.index(n)]], "the gradients of stage 2"),
    ],
)
def test_usual_causes_are_recognised(change, sentence):
    assert re.search(sentence, cause(wrong(change)))


@pytest.mark.parametrize(
    ("order", "sentence"),
    [
        ([3, 2, 1, 0], "mirror image.*last in, first out"),
        ([1, 2, 3, 0], "micro-batch 0's activations met the gradient of micro-batch 1"),
        ([3, 0, 1, 2], "micro-batch 0's activations met the gradient of micro-batch 3"),
    ],
)
def test_stale_activations_are_recognised(order, sentence):
    module = LAB.problem.module(1)
    for i, x in enumerate(INPUTS[1]):
        module(x).backward(OUTPUTS[1][order[i]])
    stale = dict(zip(STAGE1, (p.grad for p in module.parameters()), strict=True))
    assert re.search("stale activations on stage 1: .*" + sentence, cause(wrong(stale.get)))


def test_an_unknown_cause_is_not_guessed():
    assert cause(wrong(lambda n: RIGHT[n] * 1.7 + 0.1)) is None


def test_the_last_wrong_stage_is_where_it_begins():
    got = wrong(lambda n: RIGHT[n] * 3 if n in STAGE1 else -RIGHT[n], stages=(0, 1))
    assert cause(got) is None  # -RIGHT on stage 0 would be a sign, but stage 1 comes first
    found = differences(LAB.problem, got, RIGHT, None)
    assert {d.stage for d in found} == {0, 1}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e-12])
def test_one_wrong_element_is_named_with_its_index(value):
    grad = RIGHT["block2.linear.weight"].clone()
    grad[3, 5] += value
    found = differences(LAB.problem, {**RIGHT, "block2.linear.weight": grad}, RIGHT, None)
    assert [(d.name, d.index) for d in found] == [("block2.linear.weight", [3, 5])]
    assert str(found[0]).startswith("block2.linear.weight at [3, 5] is ")


def test_bounds_allow_every_order_of_adding_and_no_more_than_rounding():
    allowed = bounds(LAB.problem)
    for name, terms in PARTS.items():
        backwards = sum(terms[-2::-1], terms[-1])
        assert ((backwards - RIGHT[name]).abs() <= allowed[name]).all()
        assert allowed[name].max() < 1e-13 * RIGHT[name].abs().max()


def real(program=gpipe, **steps):
    return str(LAB.check(LAB.run(program, **steps)))


def test_loss_that_is_not_divided_shows_on_every_stage():
    def undivided(rank, i, x):
        x.requires_grad_()
        y = rank.module(x)
        return rank.loss(i, y) if rank.is_last else y

    text = real(forward_step=undivided)
    assert text.startswith("0 of 1\n✗ rank 2: the gradient of block")
    assert "m = 4 times too large" in text and "12 of 12 parameters are wrong" in text


def test_replaced_gradients_count_the_last_micro_batch_only():
    def replacing(rank, i, x, y, dy):
        rank.module.zero_grad()
        torch.autograd.backward(y, dy)
        return x.grad

    assert "only the last micro-batch, 3, counts" in real(backward_step=replacing)


def test_a_backward_of_the_wrong_micro_batch_is_stale():
    def last_in_first_out(rank):
        for i in range(M):
            rank.send_forward(i, rank.forward(i, rank.recv_forward(i)))
        for i in range(M):
            dy = rank.recv_backward(i)
            # Rank 1 takes the activations from the wrong end of its list.
            j = M - 1 - i if rank.index == 1 else i
            rank.send_backward(i, rank.backward(j, dy))

    assert "stale activations on stage 1" in real(last_in_first_out)


def test_a_gradient_that_does_not_come_through_is_zero():
    def cut_off(rank, i, x, y, dy):
        torch.autograd.backward(y, dy)
        return torch.zeros_like(x) if rank.index == 2 else x.grad

    text = real(backward_step=cut_off)
    assert "all gradients of stage 1 are zero" in text and "rank 1: " in text


def test_a_second_forward_and_backward_in_a_step_counts_twice():
    def twice(rank, i, x, y, dy):
        torch.autograd.backward(y, dy, retain_graph=i == 2)
        if i == 2:
            kept = None if rank.is_first else x.grad.clone()
            torch.autograd.backward(y, dy)
            return kept
        return x.grad

    assert "micro-batch 2 counts twice" in real(backward_step=twice)


def test_a_right_gradient_with_a_wrong_loss_is_not_accepted():
    run = LAB.run(gpipe)
    run.loss += 1e-9
    assert "the gradients are right, but the loss is" in str(LAB.check(run))


def test_wrong_weights_after_a_right_gradient_are_not_accepted():
    run = LAB.run(gpipe)
    run.weights["block0.linear.bias"] = run.weights["block0.linear.bias"] + 1e-9
    assert "after the optimizer step block0.linear.bias" in str(LAB.check(run))


def test_targets_are_judged_each_by_itself():
    run = LAB.run(gpipe)
    score = LAB.check(run, makespan=run.trace.makespan - 1, peak=3, messages=16)
    assert (score, score.of) == (2, 4)
    assert [kind for kind, _ in score.reasons] == ["yes", "no", "no", "yes"]
    assert "rank 0 holds too many" in str(score)


def test_score_shows_as_a_bare_number_and_explains_itself_as_html():
    score = pp.Score(1.5, 3, [("yes", "a < b"), ("no", "first\nmore")])
    assert (repr(score), float(score), score.passed) == ("1.5", 1.5, False)
    assert str(score) == "1.5 of 3\n✓ a < b\n✗ first\nmore"
    html = score._repr_html_()
    assert "a &lt; b" in html and "<pre" in html


def test_a_stage_that_never_ran_backward_is_named():
    run = LAB.run(forwards)
    assert "rank 0 never ran the backward of micro-batch 0 (nor of 1 2 3)" in str(LAB.check(run))
