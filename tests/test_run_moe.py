"""The mixture-of-experts layer on real processes, elementwise against one process."""

import pytest
import torch

import pp_lab as pp
from pp_lab.run.moe import MoELayer


def worst(a, b):
    return (a - b).abs().max().item() if a.numel() else 0.0


def shared(experts, k, hot=None, ffn=12, tokens=11):
    """A rank program: a layer shared by all ranks, each with tokens of its own, must equal the
    same layer held by one rank. hot: an expert that every token goes to."""

    def program(rank):
        def layer():
            made = MoELayer(8, experts, k, ffn, seed=3)
            if hot is not None:
                with torch.no_grad():
                    made.router.weight.zero_()
                    made.router.weight[hot] = 1e-3
            return made

        def batch(index):
            random = torch.Generator().manual_seed(index)
            x = torch.randn(tokens, 8, generator=random, dtype=torch.float64)
            return (x + 3 * (hot is not None)).requires_grad_()

        exchange = rank.all_to_all_single if rank.size > 1 else None
        mine = layer().shared(rank.size, rank.index, exchange)
        x = batch(rank.index)
        y = mine(x)
        y.square().sum().backward()
        whole, xs = layer(), [batch(r) for r in range(rank.size)]
        ys = [whole(of) for of in xs]
        sum(of.square().sum() for of in ys).backward()
        assert worst(y, ys[rank.index]) < 1e-13
        assert worst(x.grad, xs[rank.index].grad) < 1e-12
        assert y.abs().max() > 0.1 and x.grad.abs().max() > 0.1
        for name, parameter in mine.named_parameters():
            grad = parameter.grad.clone()
            if not name.startswith("experts") and rank.size > 1:
                rank.all_reduce(grad)  # every rank has a copy of what is no expert
            assert worst(grad, whole.get_parameter(name).grad) < 1e-11, name
        print(rank.index, sum(1 for _ in mine.experts))

    return program


@pytest.mark.parametrize(
    ("ranks", "experts", "k"), [(1, 4, 2), (2, 4, 2), (2, 2, 1), (4, 4, 3), (2, 6, 6), (4, 8, 1)]
)
def test_a_shared_layer_equals_the_layer_of_one_process(capsys, ranks, experts, k):
    pp.Lab(ranks, 1).run(shared(experts, k))
    assert f"[rank {ranks - 1}] {ranks - 1} {experts // ranks}" in capsys.readouterr().out


def test_one_hot_expert_and_experts_without_a_token_are_right_too():
    pp.Lab(2, 1).run(shared(experts=6, k=1, hot=4))


def test_few_tokens_leave_ranks_with_nothing_to_do():
    pp.Lab(4, 1).run(shared(experts=8, k=1, tokens=1))


def test_an_expert_that_no_token_went_to_has_zero_as_its_gradient():
    layer = MoELayer(4, 8, k=1)
    layer(torch.randn(1, 4, dtype=torch.float64)).sum().backward()
    zeros = [e for e in layer.experts if not layer.experts[e][0].weight.grad.any()]
    assert len(zeros) == 7


def test_more_experts_per_token_change_the_result_and_weights_follow_the_seed():
    x = torch.randn(5, 4, dtype=torch.float64)
    one, two, other = MoELayer(4, 4, k=1), MoELayer(4, 4, k=2), MoELayer(4, 4, k=1, seed=1)
    assert torch.equal(one(x), MoELayer(4, 4, k=1)(x))
    assert not torch.allclose(one(x), two(x)) and not torch.allclose(one(x), other(x))


def test_the_gradient_of_the_router_is_right():
    """Against finite differences: it only flows through the weights of the combine."""
    layer, x = MoELayer(4, 4, k=2), torch.randn(5, 4, dtype=torch.float64)
    layer(x).sum().backward()
    weight, found = layer.router.weight, layer.router.weight.grad.clone()
    with torch.no_grad():
        for index in [(0, 0), (1, 2), (3, 3)]:
            sides = []
            for step in (1e-6, -2e-6):
                weight[index] += step
                sides.append(layer(x).sum().item())
            weight[index] += 1e-6
            assert found[index].item() == pytest.approx((sides[0] - sides[1]) / 2e-6, abs=1e-6)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (dict(experts=4, k=5), "at most 4 experts"),
        (dict(experts=4, k=0), "at least 1"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        MoELayer(4, **wrong)


def test_experts_that_cannot_be_shared_evenly_are_refused():
    with pytest.raises(ValueError, match="3 experts cannot be shared evenly by 2 ranks"):
        MoELayer(4, 3).shared(2, 0, print)


@pytest.mark.parametrize("experts, k, tokens", [(1, 1, 4), (4, 1, 9), (4, 2, 9), (5, 3, 7)])
def test_a_layer_is_each_token_through_its_own_experts_one_by_one(experts, k, tokens):
    """Against the definition, token by token: no sorting, no exchange, and autograd's gradients."""
    layer = MoELayer(hidden=6, experts=experts, k=k, seed=3)
    x = torch.randn(tokens, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    h = x + torch.tanh(layer.dense(layer.norm(x)))
    odds = torch.softmax(layer.router(h), -1)
    rows = []
    for row, p in zip(h, odds, strict=True):
        weights, chosen = p.topk(k)
        parts = [w * layer.experts[str(int(e))](row) for w, e in zip(weights, chosen, strict=True)]
        rows.append(row + sum(parts))
    expected, got = torch.stack(rows), layer(x)
    torch.testing.assert_close(got, expected)
    parameters = list(layer.parameters())
    goal = torch.arange(got.numel(), dtype=torch.float64).view_as(got).sin()
    used = dict(allow_unused=True, materialize_grads=True)  # an expert without tokens
    theirs = torch.autograd.grad((expected * goal).sum(), parameters, **used)
    ours = torch.autograd.grad((got * goal).sum(), parameters, **used)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)
