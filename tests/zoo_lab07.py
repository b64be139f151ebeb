"""Answers to the exercises of lab 7: right ones, and wrong ones with what each must be told."""

import torch

# ---- how much of a step


def share(attn, mlp, a2a):
    return 4 * a2a / (3 * (attn + mlp) + 4 * a2a)


def share_by_counting(attn, mlp, a2a):
    compute = sum([attn, mlp] + 2 * [attn, mlp])
    return 1 - compute / (compute + sum([a2a] * 4))


# ---- where the tokens go


def route(chosen, experts, ranks):
    flat = chosen.flatten()
    counts = flat.bincount(minlength=experts)
    return flat.argsort(stable=True), counts.view(ranks, -1).sum(1).tolist()


def route_by_loops(chosen, experts, ranks):
    flat = chosen.flatten().tolist()
    order = [c for e in range(experts) for c in reversed(range(len(flat))) if flat[c] == e]
    sent = [0] * ranks
    for e in flat:
        sent[e * ranks // experts] += 1
    return order, sent


def route_tokens(chosen, experts, ranks):
    """One expert per token."""
    return chosen[:, 0].argsort(), route(chosen, experts, ranks)[1]


def route_by_rank_only(chosen, experts, ranks):
    flat = chosen.flatten().tolist()
    of = [e * ranks // experts for e in flat]
    order = sorted(range(len(flat)), key=lambda c: (of[c], -flat[c]))
    return order, route(chosen, experts, ranks)[1]


def with_order(change):
    def changed(chosen, experts, ranks):
        order, sent = route(chosen, experts, ranks)
        return change(chosen, order), sent

    return changed


def with_sent(change):
    def changed(chosen, experts, ranks):
        return route(chosen, experts, ranks)[0], change(chosen.flatten(), experts, ranks)

    return changed


def without_empty(flat, experts, ranks):
    return [n for n in route(flat[:, None], experts, ranks)[1] if n]


def like_cards(flat, experts, ranks):
    return (flat % ranks).bincount(minlength=ranks).tolist()


# ---- the exchange


def dispatch(rank, rows, sent):
    counts = torch.tensor(sent)
    received = torch.empty_like(counts)
    rank.all_to_all_single(received, counts)
    received = received.tolist()
    arrived = rows.new_empty(sum(received), rows.shape[1])
    rank.all_to_all_single(arrived, rows, received, sent)
    return arrived, received


def combine(rank, results, sent, received):
    back = results.new_empty(sum(sent), results.shape[1])
    rank.all_to_all_single(back, results, sent, received)
    return back


def dispatch_by_table(rank, rows, sent):
    """Every rank hears the whole table."""
    table = torch.zeros(rank.size, rank.size)
    table[rank.index] = torch.tensor(sent, dtype=table.dtype)
    rank.all_reduce(table)
    received = table[:, rank.index].int()
    arrived = torch.zeros(int(received.sum()), rows.shape[1], dtype=rows.dtype)
    rank.all_to_all_single(
        arrived, rows, output_split_sizes=received.tolist(), input_split_sizes=sent
    )
    return arrived, received


def combine_in_place(rank, results, sent, received):
    back = torch.zeros(sum(sent), results.shape[1], dtype=results.dtype)
    rank.all_to_all_single(back, results, output_split_sizes=sent, input_split_sizes=received)
    return back


def dispatch_untold(rank, rows, sent):
    """Takes as many rows as it gives."""
    arrived = torch.empty_like(rows)
    rank.all_to_all_single(arrived, rows, sent, sent)
    return arrived, sent


def dispatch_equally(rank, rows, sent):
    """No split sizes."""
    _, received = dispatch(rank, rows, sent)
    arrived = torch.empty_like(rows)
    rank.all_to_all_single(arrived, rows)
    return arrived, received


def dispatch_nothing(rank, rows, sent):
    return rows, dispatch(rank, rows, sent)[1]


def dispatch_says_sent(rank, rows, sent):
    return dispatch(rank, rows, sent)[0], sent


def dispatch_lists_swapped(rank, rows, sent):
    _, received = dispatch(rank, rows, sent)
    arrived = rows.new_empty(sum(received), rows.shape[1])
    rank.all_to_all_single(arrived, rows, sent, received)
    return arrived, received


def combine_not_swapped(rank, results, sent, received):
    back = results.new_empty(sum(sent), results.shape[1])
    rank.all_to_all_single(back, results, received, sent)
    return back


def combine_sends_again(rank, results, sent, received):
    return dispatch(rank, results, received)


def combine_single(rank, results, sent, received):
    return combine(rank, results.float(), sent, received)


def combine_nothing(rank, results, sent, received):
    return results


def dispatch_backwards(rank, rows, sent):
    arrived, received = dispatch(rank, rows, sent)
    return arrived.flip(0), received


# ---- gradients


def dispatch_backward(rank, dy, sent, received):
    return combine(rank, dy, sent, received)


def combine_backward(rank, dy, sent, received):
    dz = dy.new_empty(sum(received), dy.shape[1])
    rank.all_to_all_single(dz, dy, received, sent)
    return dz


def combine_backward_by_dispatch(rank, dy, sent, received):
    return dispatch(rank, dy, sent)[0]


def identity(rank, dy, sent, received):
    return dy


def averaged(rank, dy, sent, received):
    return dispatch_backward(rank, dy, sent, received) / rank.size


def negative(rank, dy, sent, received):
    return -dispatch_backward(rank, dy, sent, received)


def backward_with_counts(rank, dy, sent, received):
    return dispatch(rank, dy, sent)


def backward_not_swapped(rank, dy, sent, received):
    dx = dy.new_empty(sum(received), dy.shape[1])
    rank.all_to_all_single(dx, dy, received, sent)
    return dx


# ---- the cut


def layer(rank, x, w_attn, w_mlp, sent, dy):
    x, w_attn, w_mlp = (t.requires_grad_() for t in (x, w_attn, w_mlp))
    h = x + torch.tanh(x @ w_attn)
    arrived, received = dispatch(rank, h.detach(), sent)
    arrived.requires_grad_()
    z = torch.tanh(arrived @ w_mlp)
    y = h.detach() + combine(rank, z.detach(), sent, received)
    z.backward(combine_backward(rank, dy, sent, received))
    h.backward(dy + dispatch_backward(rank, arrived.grad, sent, received))
    return y, x.grad, w_attn.grad, w_mlp.grad


class Move(torch.autograd.Function):
    """The all-to-all as something that autograd can see."""

    @staticmethod
    def forward(context, rows, rank, out, back):
        context.rest = rank, out, back
        moved = rows.new_empty(sum(back), rows.shape[1])
        rank.all_to_all_single(moved, rows.contiguous(), back, out)
        return moved

    @staticmethod
    def backward(context, grad):
        rank, out, back = context.rest
        return Move.apply(grad, rank, back, out), None, None, None


def layer_whole(rank, x, w_attn, w_mlp, sent, dy):
    _, received = dispatch(rank, x, sent)
    x, w_attn, w_mlp = (t.detach().clone().requires_grad_() for t in (x, w_attn, w_mlp))
    h = x + torch.tanh(x @ w_attn)
    z = torch.tanh(Move.apply(h, rank, sent, received) @ w_mlp)
    y = h + Move.apply(z, rank, received, sent)
    return (y.detach(), *torch.autograd.grad(y, (x, w_attn, w_mlp), dy))


def layer_mistaken(skip=True, through=True, base=True, leaf=True, sends=True, twice=False):
    """The layer with one thing forgotten."""

    def mistaken(rank, x, w_attn, w_mlp, sent, dy):
        x, w_attn, w_mlp = (t.requires_grad_() for t in (x, w_attn, w_mlp))
        h = x + torch.tanh(x @ w_attn)
        arrived, received = dispatch(rank, h.detach(), sent)
        arrived.requires_grad_(leaf)
        z = torch.tanh(arrived @ w_mlp)
        y = base * h.detach() + combine(rank, z.detach(), sent, received)
        dz = combine_backward(rank, dy, sent, received)
        z.backward(dz if sends else torch.ones_like(dz), retain_graph=twice)
        if twice:
            z.backward(dz)
            arrived.grad /= 2
        dh = dispatch_backward(rank, arrived.grad, sent, received) if through else 0 * dy
        h.backward(dh + dy if skip else dh)
        return y, x.grad, w_attn.grad, w_mlp.grad

    return mistaken


def layer_uncut(rank, x, w_attn, w_mlp, sent, dy):
    """Leaves it to autograd, which does not see the all-to-all."""
    x, w_attn, w_mlp = (t.requires_grad_() for t in (x, w_attn, w_mlp))
    h = x + torch.tanh(x @ w_attn)
    arrived, received = dispatch(rank, h.detach(), sent)
    z = torch.tanh(arrived @ w_mlp)
    y = h + combine(rank, z.detach(), sent, received)
    y.backward(dy)
    return y.detach(), x.grad, w_attn.grad, w_mlp.grad


def layer_local_dy(rank, x, w_attn, w_mlp, sent, dy):
    """Starts the experts' backward from this rank's own dy."""
    x, w_attn, w_mlp = (t.requires_grad_() for t in (x, w_attn, w_mlp))
    h = x + torch.tanh(x @ w_attn)
    arrived, received = dispatch(rank, h.detach(), sent)
    arrived.requires_grad_()
    z = torch.tanh(arrived @ w_mlp)
    y = h.detach() + combine(rank, z.detach(), sent, received)
    z.backward(dy)
    h.backward(dy + dispatch_backward(rank, arrived.grad, sent, received))
    return y, x.grad, w_attn.grad, w_mlp.grad


def layer_gives_dy(rank, x, w_attn, w_mlp, sent, dy):
    y, _, *rest = layer(rank, x, w_attn, w_mlp, sent, dy)
    return y, dy, *rest


# ---- the order

MEGATRON = [
    "I combine", "F attn", "I mlp", "F dispatch", "W mlp",
    "I dispatch", "F mlp", "F combine", "I attn", "W attn",
]  # fmt: skip
BACKWARD = ["I combine", "I mlp", "W mlp", "I dispatch", "I attn", "W attn"]
FORWARD = ["F attn", "F dispatch", "F mlp", "F combine"]


def order(*nodes):
    return lambda: list(nodes)


def exchanged(*places):
    """Megatron's order with pairs of places exchanged."""
    nodes = list(MEGATRON)
    for i, k in places:
        nodes[i], nodes[k] = nodes[k], nodes[i]
    return lambda: nodes


def w_last():
    return [n for n in MEGATRON if n[0] != "W"] + ["W mlp", "W attn"]


# ---- what splitting is worth


def saved(a):
    return max(0, min(2 * a - 2, 4 - 2 * a))


def saved_by_difference(a):
    return max(6, 4 + 2 * a, 4 * a) - max(6, 4 * a) if a > 1 else 0


PROGRAMS = ()

RIGHT = {
    "share": [(share,), (share_by_counting,)],
    "route": [(route,), (route_by_loops,)],
    "exchange": [(dispatch, combine), (dispatch_by_table, combine_in_place)],
    "gradients": [
        (dispatch_backward, combine_backward),
        (combine, combine_backward_by_dispatch),
    ],
    "layer": [(layer,), (layer_whole,)],
    "together": [
        (order(*MEGATRON),),
        (exchanged((2, 3)),),
        (exchanged((7, 8)),),
        (lambda: tuple(MEGATRON),),
    ],
    "saved": [(saved,), (saved_by_difference,)],
}

WRONG = {
    "share": [
        (lambda t, e, a: 2 * a / (t + e + 2 * a), "a forward by itself"),
        (lambda t, e, a: 4 * a / (t + e + 4 * a), "those of the forward only"),
        (lambda t, e, a: a / (t + e + a), "count the computing pieces again"),
        (lambda t, e, a: 2 * a / (3 * t + 3 * e + 2 * a), "count the all-to-alls again"),
        (lambda t, e, a: 4 * a / (3 * t + 3 * e), "communication over computation"),
        (lambda t, e, a: 1 - share(t, e, a), "the computing part"),
        (lambda t, e, a: 100 * share(t, e, a), "in per cent"),
        (lambda t, e, a: 4 * a / (6 + 4 * a), "depends on attn and mlp too"),
        (lambda t, e, a: 0.4, "count the boxes of one micro-batch"),
        (lambda t, e, a: None, "is a return missing"),
    ],
    "route": [
        (route_tokens, "5 entries, one for each token"),
        (with_order(lambda chosen, order: chosen.flatten()), "has to name each"),
        (with_order(lambda chosen, order: order.argsort()), "the way back"),
        (with_order(lambda chosen, order: range(0)), "not a row of whole numbers"),
        (with_order(lambda chosen, order: list(range(len(order)))), "in the order of the tokens"),
        (with_order(lambda chosen, order: order.flip(0)), "largest expert first"),
        (route_by_rank_only, "sorted by rank only"),
        (with_sent(lambda f, e, r: f.bincount(minlength=e)), "that is for each expert"),
        (with_sent(without_empty), "a rank that gets nothing is still in the list"),
        (with_sent(like_cards), "deals the experts out like cards"),
        (lambda chosen, experts, ranks: route(chosen, experts, ranks)[0], "return two values"),
        (lambda chosen, experts, ranks: None, "gives None: return two values"),
    ],
    "exchange": [
        (
            dispatch_untold,
            combine,
            "killed by SIGABRT.*the others have to tell them first|Tell every rank first",
        ),
        (dispatch_equally, combine, "make room for as many"),
        (dispatch_nothing, combine, "nothing was exchanged"),
        (dispatch_says_sent, combine, "that is what this rank sent"),
        (dispatch_lists_swapped, combine, "split sizes do not fit.*tell them first"),
        (dispatch_backwards, combine, "differs most in row"),
        (dispatch, combine_not_swapped, "the two lists are swapped"),
        (dispatch, combine_sends_again, "gives a? ?tuple of 2, not a tensor"),
        (dispatch, combine_single, "gives torch.float32, not torch.float64"),
        (dispatch, combine_nothing, "is that what went in"),
        (lambda rank, rows, sent: dispatch(rank, rows, sent)[0], combine, "return two values"),
        (lambda rank, rows, sent: None, combine, "gives None: return two values"),
    ],
    "gradients": [
        (identity, combine_backward, "goes back to where its row was|of shape"),
        (averaged, combine_backward, "off by the factor|nothing is done to them"),
        (negative, combine_backward, "nothing is done to them"),
        (backward_not_swapped, combine_backward, "the two lists are swapped"),
        (combine_backward, dispatch_backward, "the two lists are swapped"),
        (dispatch_backward, backward_with_counts, "leave out the counts"),
        (dispatch_backward, dispatch_backward, "the two lists are swapped"),
        (dispatch_backward, lambda *_: None, "gives None, not a tensor"),
    ],
    "layer": [
        (layer_mistaken(skip=False), "dx differs.*the way past the experts is lost"),
        (layer_mistaken(through=False), "dx differs.*the way through the experts is lost"),
        (layer_mistaken(base=False), "h is not in it"),
        (layer_mistaken(leaf=False), "a .grad, where requires_grad_.. did not come before"),
        (layer_mistaken(sends=False), "dx differs.*has two parts"),
        (layer_mistaken(twice=True), "dw_mlp.*Does a backward run twice"),
        (layer_uncut, "the way through the experts is lost|it has no .grad"),
        (layer_local_dy, "dy has to be sent there first|sent to where they are"),
        (layer_gives_dy, "dx differs.*that is dy"),
        (lambda *a: layer(*a)[:3], "return y, dx, dw_attn and dw_mlp"),
        (lambda *a: None, "gives nothing: return y"),
    ],
    "together": [
        (order(*FORWARD, *BACKWARD), "one micro-batch goes all the way before"),
        (order(*BACKWARD, *FORWARD), "one micro-batch goes all the way before"),
        (w_last, "'W mlp' comes late"),
        (exchanged((4, 5)), "out of one queue.*'W mlp' stands behind 'I dispatch'"),
        (exchanged((1, 3)), "'F dispatch' is enqueued before 'F attn'.*holds nobody up"),
        (exchanged((0, 2)), "combine first"),
        (exchanged((2, 4)), "'W mlp' is enqueued before 'I mlp'"),
        (order(*MEGATRON[:9]), "'W attn' is there 0 times"),
        (order(*MEGATRON, "W dispatch"), "an all-to-all has no W"),
        (order(*MEGATRON, "W mlp"), "there 2 times"),
        (order("B combine", *MEGATRON[1:]), "there is no node 'B combine'"),
        (lambda: None, "is a return missing"),
    ],
    "saved": [
        (lambda a: max(0, 2 * a - 2), "beyond 1.5"),
        (lambda a: max(0, 4 - 2 * a) if a > 1 else 0, "right from a = 1.5 on"),
        (lambda a: 1 if 1 < a < 2 else 0, "grows and falls between"),
        (lambda a: 6 + 4 * a - max(6, 4 * a), "against one stream"),
        (lambda a: 8 * saved(a), "for eight layers"),
        (lambda a: min(2 * a - 2, 4 - 2 * a), "Elsewhere splitting costs nothing"),
        (lambda a: -saved(a), "the wrong sign"),
        (lambda a: 0, "look at a = 1.5 in the table"),
        (lambda a: max(6, 4 * a), "Subtract it"),
        (lambda a: None, "is a return missing"),
    ],
}
