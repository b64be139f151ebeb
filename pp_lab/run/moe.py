"""A layer of a mixture-of-experts model whose experts are spread over the ranks.

    h = x + tanh(dense(norm(x)))             attn: here a dense block in place of attention
    w, e = top k of softmax(router(h))       and the tokens, sorted by expert
    dispatch: all-to-all, every token goes to the rank that holds its expert
    mlp:      each expert on its tokens
    combine:  all-to-all back; y = h + sum over a token's experts of w * result

Each of the four is a function of tensors to tensors, so that a layer can be run whole, by
autograd alone, or node by node (see `pp_lab.run.nodes`). With one rank nothing is exchanged.
(Megatron's plan has a fifth node, post, for multi-token prediction; in other layers it does
nothing. The loss belongs to the last combine here.)
"""

import copy
from typing import NamedTuple

import torch
from torch import nn


class AllToAll(torch.autograd.Function):
    """Rows to every rank, `sent[r]` of them to rank r, and `received[r]` from it. The gradient
    goes the same way back, with the two swapped."""

    @staticmethod
    def forward(context, rows, sent, received, exchange):
        context.splits, context.exchange = (sent, received), exchange
        return _exchanged(rows, sent, received, exchange)

    @staticmethod
    def backward(context, grad):
        sent, received = context.splits
        return _exchanged(grad.contiguous(), received, sent, context.exchange), None, None, None


def _exchanged(rows, sent, received, exchange):
    if exchange is None:
        return rows.clone()
    output = rows.new_empty(sum(received), *rows.shape[1:])
    exchange(output, rows, received, sent)
    return output


class Plan(NamedTuple):
    """Where the tokens of a micro-batch go: no gradient flows through any of it.

    order: row j of what is sent is choice order[j] of the k*T; sent, received: rows to and from
    each rank; arranged: the rows that arrive, by expert; counts: rows of each expert held here
    """

    order: torch.Tensor
    sent: list
    received: list
    arranged: torch.Tensor
    counts: list


class MoELayer(nn.Module):
    """One layer. hidden: width; experts: of the whole layer; k: experts per token; ffn: width
    inside an expert. All weights follow from `seed`.

    `shared` gives each of the ranks that share the experts its part.
    """

    def __init__(self, hidden, experts, k=2, ffn=None, seed=0):
        super().__init__()
        if not 1 <= k <= experts:
            raise ValueError(f"k={k}: a token goes to at least 1 and at most {experts} experts")
        self.k, self.ep, self.index, self.exchange = k, 1, 0, None
        self.here = range(experts)
        ffn = 2 * hidden if ffn is None else ffn

        def linear(number, rows, columns, bias=True):
            made = nn.Linear(columns, rows, bias=bias, dtype=torch.float64)
            random = torch.Generator().manual_seed(seed * 1_000_003 + number)
            with torch.no_grad():
                for parameter in made.parameters():
                    drawn = torch.randn(parameter.shape, generator=random, dtype=torch.float64)
                    parameter.copy_(drawn * columns**-0.5)
            return made

        self.norm = nn.LayerNorm(hidden, dtype=torch.float64)
        self.dense = linear(0, hidden, hidden)
        self.router = linear(1, experts, hidden, bias=False)
        self.experts = nn.ModuleDict(
            {
                str(e): nn.Sequential(
                    linear(2 + 2 * e, ffn, hidden), nn.Tanh(), linear(3 + 2 * e, hidden, ffn)
                )
                for e in self.here
            }
        )

    def shared(self, ep, index, exchange):
        """A copy that holds only the share of the experts of rank `index` of `ep`.

        exchange: all_to_all_single among these ranks; None where ep is 1
        """
        mine = copy.deepcopy(self)
        experts = len(self.experts)
        if experts % ep:
            raise ValueError(f"{experts} experts cannot be shared evenly by {ep} ranks")
        mine.ep, mine.index, mine.exchange = ep, index, exchange
        mine.here = range(index * experts // ep, (index + 1) * experts // ep)
        mine.experts = nn.ModuleDict({str(e): mine.experts[str(e)] for e in mine.here})
        return mine

    def weights(self, part):
        """The modules whose weights a part uses: of "attn", or of "mlp"."""
        return self.experts if part == "mlp" else nn.ModuleList([self.dense, self.router])

    def forward(self, x):
        """x: [tokens, hidden] -> the same shape."""
        (h, weights, tokens), plan = self.attn(x)
        return self.combine(self.mlp(self.dispatch(tokens, plan), plan), h, weights, plan)

    def attn(self, x):
        """x -> (h, [T, hidden]; weights of the experts, [T, k]; tokens to send, [k*T, hidden]),
        and the plan."""
        h = x + torch.tanh(self.dense(self.norm(x)))
        weights, chosen = torch.softmax(self.router(h), -1).topk(self.k, dim=-1)
        order = chosen.flatten().argsort(stable=True)
        with torch.no_grad():
            plan = self._plan(order, chosen)
        return (h, weights, h[order // self.k]), plan

    def _plan(self, order, chosen):
        """Tell every rank how many tokens its experts get, and hear how many are to come."""
        experts = len(self.here) * self.ep
        mine = chosen.flatten().bincount(minlength=experts)  # tokens for each expert
        theirs = mine.clone()  # and, after the exchange, from each rank for each expert here
        if self.exchange is not None:
            self.exchange(theirs, mine)
        table = theirs.view(self.ep, len(self.here))
        expert_of_row = torch.arange(len(self.here), device=mine.device).repeat(self.ep)
        arranged = expert_of_row.repeat_interleave(table.flatten()).argsort(stable=True)
        return Plan(
            order,
            mine.view(self.ep, -1).sum(1).tolist(),
            table.sum(1).tolist(),
            arranged,
            table.sum(0).tolist(),
        )

    def dispatch(self, tokens, plan):
        """Tokens to the ranks of their experts: [k*T, hidden] -> [arrived, hidden]."""
        return AllToAll.apply(tokens, plan.sent, plan.received, self.exchange)

    def mlp(self, tokens, plan):
        """Each expert held here on its tokens; the results in the order of what arrived."""
        groups = tokens[plan.arranged].split(plan.counts)
        results = [self.experts[str(e)](g) for e, g in zip(self.here, groups, strict=True)]
        return torch.cat(results)[plan.arranged.argsort()]

    def combine(self, results, h, weights, plan):
        """Results back to where their tokens came from, weighted, on top of h: [T, hidden]."""
        back = AllToAll.apply(results, plan.received, plan.sent, self.exchange)
        by_choice = back[plan.order.argsort()].view(*weights.shape, -1)
        return h + (weights.unsqueeze(-1) * by_choice).sum(1)
