"""Models, losses and settings of the user's own: elementwise right, or refused with a reason."""

import pytest
import torch
from programs import one_f_one_b
from torch import nn

import pp_lab as pp
from pp_lab import Cost, Op, schedules, simulate
from pp_lab.run.lab import ProblemError

ROWS, TOKENS, WORDS, WIDTH = 8, 5, 11, 6


class Mixing(nn.Module):
    """A block with a norm, a residual, dropout and two products: not a chain of Linears."""

    def __init__(self, dropout):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH, dtype=torch.float64)
        self.up = nn.Linear(WIDTH, 2 * WIDTH, dtype=torch.float64)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False, dtype=torch.float64)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return x + self.dropout(self.down(torch.relu(self.up(self.norm(x)))))


def language_model(dropout=0.0, layers=4, frozen=()):
    torch.manual_seed(1)
    blocks = [nn.Embedding(WORDS, WIDTH, dtype=torch.float64)]
    blocks += [Mixing(dropout) for _ in range(layers)]
    blocks += [nn.Linear(WIDTH, WORDS, dtype=torch.float64)]
    for k in frozen:
        blocks[k].requires_grad_(False)
    return blocks


def sentences():
    generator = torch.Generator().manual_seed(2)
    words = torch.randint(WORDS, (ROWS, TOKENS + 1), generator=generator)
    targets = words[:, 1:].clone()
    for row in range(ROWS):
        targets[row, row % TOKENS + 1 :] = -100  # sentences of different lengths
    return words[:, :-1], targets


def cross_entropy(y, target):
    return nn.functional.cross_entropy(y.flatten(0, 1), target.flatten())


def lab(p, m, *, blocks=None, loss=cross_entropy, **arguments):
    inputs, targets = sentences()
    return pp.Lab(p, m, blocks=blocks or language_model(), loss=loss, inputs=inputs,
                  targets=targets, **arguments)  # fmt: skip


def assert_right(problem, schedule, **arguments):
    cost = Cost(F=2, B=4, I=3, W=1)
    run = problem.run(schedule, cost=cost, **arguments)
    assert problem.check(run) == 1, str(problem.check(run))
    assert run.trace == simulate(schedule, cost)
    return run


@pytest.mark.parametrize("schedule", [
    schedules.one_f_one_b(3, 4), schedules.interleaved(2, 4, 2), schedules.zb_h1(3, 4),
    schedules.zb_v(2, 4), schedules.dualpipe(2, 4), schedules.gpipe(6, 2)],
    ids=lambda s: s.name)  # fmt: skip
def test_an_embedding_norms_residuals_and_a_head_run_in_every_schedule(schedule):
    assert_right(lab(schedule.stages, schedule.microbatches), schedule)


@pytest.mark.parametrize("recompute", [None, True])
def test_dropout_is_the_same_for_every_cut_and_under_recompute(recompute):
    losses = set()
    for p in (1, 2, 3):
        problem = lab(p, 4, blocks=language_model(dropout=0.5))
        run = assert_right(problem, schedules.one_f_one_b(p, 4), recompute=recompute)
        losses.add(run.loss)
    assert len(losses) == 1
    assert run.loss != lab(3, 4).reference.loss, "dropout does drop"
    assert lab(3, 4, blocks=language_model(0.5), seed=1).reference.loss != run.loss


@pytest.mark.parametrize("recompute", [True, [0, 2], lambda stage, i: i % 2 == stage % 2])
@pytest.mark.parametrize("make", [schedules.one_f_one_b, schedules.zb_h1])
def test_recompute_by_stage_or_micro_batch_changes_no_bit(make, recompute):
    run = assert_right(pp.Lab(3, 4), make(3, 4), recompute=recompute)
    assert run.exact


def test_recompute_of_a_stage_that_is_not_there_is_refused():
    with pytest.raises(ProblemError, match="names stage 3, but there are only stages 0 to 2"):
        pp.Lab(3, 4).run(one_f_one_b, recompute=[3])


@pytest.mark.parametrize("frozen", [[0], [0, 1, 2], [2, 3], [4, 5], [1, 3]])
@pytest.mark.parametrize("schedule", [schedules.one_f_one_b(3, 2), schedules.zb_h1(3, 2)],
                         ids=lambda s: s.name)  # fmt: skip
def test_frozen_blocks_anywhere(frozen, schedule):
    problem = lab(3, 2, blocks=language_model(frozen=frozen))
    run = assert_right(problem, schedule)
    assert not any(name.startswith(f"block{k}.") for k in frozen for name in run.grads)


def summed(y, target):
    return nn.functional.cross_entropy(y.flatten(0, 1), target.flatten(), reduction="sum")


def words_in(target):
    return (target != -100).sum()


@pytest.mark.parametrize(
    ("loss", "reduction", "whole"),
    [
        (summed, "sum", summed),
        (cross_entropy, words_in, cross_entropy),
    ],
)
def test_sums_and_means_over_tokens_equal_one_large_batch(loss, reduction, whole):
    """Micro-batches hold different numbers of words, so the mean of their means is not it."""
    problem = lab(3, 4, loss=loss, reduction=reduction)
    assert_right(problem, schedules.one_f_one_b(3, 4))
    inputs, targets = sentences()
    model = nn.Sequential(*language_model())
    value = whole(model(inputs), targets)
    value.backward()
    assert problem.reference.loss == pytest.approx(value.item())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(problem.reference.grads[f"block{name}"], parameter.grad)
    mean_of_means = lab(3, 4).reference.loss
    assert abs(mean_of_means - value.item()) > 1e-3


def test_with_two_ranks_both_neighbours_are_the_same_rank():
    schedule = schedules.interleaved(2, 4, 3)
    assert_right(pp.Lab(6, 4), schedule)
    assert_right(pp.Lab(6, 4), schedule, tags=False)


def test_uneven_stages_and_few_micro_batches():
    problem = pp.Lab(4, 2, blocks=30)
    assert problem.problem.cut == (8, 8, 7, 7)
    assert_right(problem, schedules.one_f_one_b(4, 2))


def test_a_second_lab_takes_a_last_batch_that_is_smaller():
    assert_right(pp.Lab(2, 3, batch=9), schedules.one_f_one_b(2, 3))
    with pytest.raises(ProblemError, match="Nearest: batch=6 or batch=9, or microbatches="):
        pp.Lab(2, 3, batch=7)


def test_a_first_nan_is_located():
    def poisoned(rank, i, x):
        y = rank.module(x.requires_grad_())
        y = y * float("nan") if (rank.index, i) == (1, 2) else y
        return rank.loss(i, y) / rank.microbatches if rank.is_last else y

    problem = pp.Lab(3, 4)
    run = problem.run(one_f_one_b, forward_step=poisoned)
    text = str(problem.check(run))
    assert "rank 1: 1F2 gave the first NaN or infinity, at time" in text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (dict(blocks=[nn.Linear(3, 3), "relu"]), r"blocks\[1\] is 'relu', not a module"),
        (dict(blocks=[nn.ReLU(), nn.ReLU()]), "there is nothing to train"),
        (dict(blocks=[nn.Linear(3, 3), nn.ReLU()]), "give inputs and targets too"),
        (dict(inputs=torch.zeros(4, 3)), "targets is NoneType"),
        (dict(inputs=torch.zeros(4, 3), targets=torch.zeros(5, 3)), "4 rows of inputs and 5 of"),
        (dict(inputs=torch.zeros(4, 3), targets=torch.zeros(4, 3), batch=8), "for a batch of 8"),
        (dict(reduction="max"), "choose mean or sum"),
    ],
)
def test_models_that_cannot_be_are_refused(arguments, sentence):
    with pytest.raises(ProblemError, match=sentence):
        pp.Lab(2, 2, **arguments)


def test_blocks_that_do_not_fit_together_are_refused_before_anything_starts():
    problem = pp.Lab(2, 2, blocks=[nn.Linear(3, 4), nn.Linear(5, 3)], inputs=torch.zeros(4, 3),
                     targets=torch.zeros(4, 3), dtype="float32")  # fmt: skip
    with pytest.raises(ProblemError, match="cannot run one after the other.*RuntimeError"):
        problem.run(schedules.gpipe(2, 2))


def test_a_lab_leaves_the_users_modules_and_random_state_alone():
    blocks = language_model(dropout=0.5)
    before = [p.clone() for block in blocks for p in block.parameters()]
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    problem = lab(2, 2, blocks=blocks)
    assert_right(problem, schedules.one_f_one_b(2, 2))
    assert torch.equal(torch.rand(3), expected)
    after = [p for block in blocks for p in block.parameters()]
    assert all(torch.equal(a, b) and a.grad is None for a, b in zip(after, before, strict=True))


def test_an_order_of_your_own_with_split_and_whole_backwards():
    orders = ["0F0 0F1 0I0 0B1 0W0", "1F0 1B0 1F1 1I1 1W1"]
    rows = [[Op(name[1], int(name[0]), int(name[2])) for name in row.split()] for row in orders]
    assert_right(pp.Lab(2, 2), pp.Schedule("mixed", rows))
