"""Right and wrong answers to the exercises of labs/09_with_tp_dp_cp_ep.ipynb."""

import torch

from pp_lab import Grid

# ---- a place on every axis


def coordinates(rank, sizes, order):
    found = {}
    for axis in order.split("-"):
        rank, found[axis] = divmod(rank, sizes[axis])
    return found


def by_stride(rank, sizes, order):
    found, stride = {}, 1
    for axis in order.split("-"):
        found[axis] = rank // stride % sizes[axis]
        stride *= sizes[axis]
    return found


def size_of(sizes):
    n = 1
    for size in sizes.values():
        n *= size
    return n


def members(rank, axis, sizes, order):
    mine = coordinates(rank, sizes, order)
    ranks = range(size_of(sizes))
    return [r for r in ranks if coordinates(r, sizes, order) | {axis: mine[axis]} == mine]


def members_by_stride(rank, axis, sizes, order):
    stride = 1
    for other in order.split("-"):
        if other == axis:
            break
        stride *= sizes[other]
    first = rank - rank // stride % sizes[axis] * stride
    return [first + k * stride for k in range(sizes[axis])]


def from_the_right(rank, sizes, order):
    return coordinates(rank, sizes, "-".join(order.split("-")[::-1]))


def order_ignored(rank, sizes, order):
    return coordinates(rank, sizes, "-".join(sizes))


def no_modulo(rank, sizes, order):
    found, stride = {}, 1
    for axis in order.split("-"):
        found[axis] = rank // stride
        stride *= sizes[axis]
    return found


def no_stride(rank, sizes, order):
    return {axis: rank % sizes[axis] for axis in order.split("-")}


def from_one(rank, sizes, order):
    return {axis: place + 1 for axis, place in coordinates(rank, sizes, order).items()}


def as_tuple(rank, sizes, order):
    return tuple(coordinates(rank, sizes, order).values())


def neighbours(rank, axis, sizes, order):
    first = rank // sizes[axis] * sizes[axis]
    return [*range(first, first + sizes[axis])]


def same_place(rank, axis, sizes, order):
    mine = coordinates(rank, sizes, order)[axis]
    return [r for r in range(size_of(sizes)) if coordinates(r, sizes, order)[axis] == mine]


def of_rank_0(rank, axis, sizes, order):
    return members(0, axis, sizes, order)


def without_itself(rank, axis, sizes, order):
    return [r for r in members(rank, axis, sizes, order) if r != rank]


def backwards(rank, axis, sizes, order):
    return members(rank, axis, sizes, order)[::-1]


def mirrored_order(rank, axis, sizes, order):
    return members(rank, axis, sizes, "-".join(order.split("-")[::-1]))


# ---- gradients, once


def gpipe(rank, mine=None):
    mine = list(rank.mine) if mine is None else mine
    for i in mine:
        rank.send_forward(i, rank.forward(i, rank.recv_forward(i)))
    for i in mine:
        rank.send_backward(i, rank.backward(i, rank.recv_backward(i)))


def one_f_one_b(rank):
    mine = list(rank.mine)
    warmup = min(rank.grid.pp - 1 - rank.coordinates["pp"], len(mine))
    for i in mine[:warmup]:
        rank.send_forward(i, rank.forward(i, rank.recv_forward(i)))
    if warmup < len(mine):
        x = rank.recv_forward(mine[warmup])
    for k, i in enumerate(mine[warmup:]):
        dy = rank.send_forward_recv_backward(i, rank.forward(i, x), mine[k])
        dx = rank.backward(mine[k], dy)
        if i < mine[-1]:
            x = rank.send_backward_recv_forward(mine[k], dx, i + 1)
        else:
            rank.send_backward(mine[k], dx)
    for i in mine[len(mine) - warmup :]:
        rank.send_backward(i, rank.backward(i, rank.recv_backward(i)))


def average(rank, group="dp", by=None):
    gradients = rank.gradients()
    for gradient in gradients.values():
        rank.all_reduce(gradient, group)
        gradient /= rank.grid.dp if by is None else by
    rank.set_gradients(gradients)


def train(rank):
    gpipe(rank)
    average(rank)


def train_asynchronously(rank):
    one_f_one_b(rank)
    gradients = {name: g / rank.grid.dp for name, g in rank.gradients().items()}
    requests = [rank.all_reduce(g, "dp", async_op=True) for g in gradients.values()]
    for request in requests:
        request.wait()
    rank.set_gradients(gradients)


def train_flat(rank):
    """One buffer for all gradients, as Megatron's buckets."""
    one_f_one_b(rank)
    gradients = rank.gradients()
    flat = torch.cat([g.flatten() for g in gradients.values()]) / rank.grid.dp
    rank.all_reduce(flat, "dp")
    parts = flat.split([g.numel() for g in gradients.values()])
    rank.set_gradients(
        {n: part.view(g.shape) for (n, g), part in zip(gradients.items(), parts, strict=True)}
    )


def added_up(rank):
    gpipe(rank)
    average(rank, by=1)


def all_micro_batches(rank):
    gpipe(rank, range(rank.microbatches))
    average(rank)


def by_microbatches(rank):
    gpipe(rank)
    average(rank, by=rank.microbatches)


def over_everybody(rank):
    gpipe(rank)
    average(rank, None)


def every_micro_batch(rank):
    mine = list(rank.mine)
    for i in mine:
        rank.send_forward(i, rank.forward(i, rank.recv_forward(i)))
    for i in mine:
        rank.send_backward(i, rank.backward(i, rank.recv_backward(i)))
        average(rank)


def twice(rank):
    train(rank)
    average(rank)


def before_the_send(rank):
    mine = list(rank.mine)
    for i in mine:
        rank.send_forward(i, rank.forward(i, rank.recv_forward(i)))
    for i in mine:
        dx = rank.backward(i, rank.recv_backward(i))
        if i == mine[-1]:
            average(rank)
        rank.send_backward(i, dx)


def first_copy_only(rank):
    gpipe(rank)
    if rank.coordinates["dp"] == 0:
        average(rank)


def never_set(rank):
    gpipe(rank)
    for gradient in rank.gradients().values():
        rank.all_reduce(gradient, "dp")
        gradient /= rank.grid.dp


def not_waited(rank):
    gpipe(rank)
    gradients = {name: g / rank.grid.dp for name, g in rank.gradients().items()}
    for g in gradients.values():
        rank.all_reduce(g, "dp", async_op=True)
    rank.set_gradients(gradients)


def one_at_a_time(rank):
    for i in rank.mine:
        rank.send_forward(i, rank.forward(i, rank.recv_forward(i)))
        rank.send_backward(i, rank.backward(i, rank.recv_backward(i)))
    average(rank)


# ---- when the sum is made


def exposed(r, B, sync, buckets):
    return max(0, max(sync - B + B / buckets, sync / buckets) - r * B)


def exposed_step_by_step(r, B, sync, buckets):
    done = 0
    for k in range(buckets):
        done = max(done, -B + (k + 1) * B / buckets) if k else -B + B / buckets
        done += sync / buckets
    return max(0, done - r * B)


# ---- one layer on several ranks


def forward(x, A, B):
    return torch.tanh(x @ A.T) @ B.T


def backward(x, A, B, dy):
    h = torch.tanh(x @ A.T)
    dz = (dy @ B) * (1 - h * h)
    return dz @ A, dz.T @ x, dy.T @ h


def to_sum():
    return ["y", "dx"]


def by_autograd(x, A, B, dy):
    x, A, B = (tensor.detach().requires_grad_() for tensor in (x, A, B))
    return torch.autograd.grad(torch.tanh(x @ A.T) @ B.T, (x, A, B), dy)


def no_slope(x, A, B, dy):
    return dy @ B @ A, (dy @ B).T @ x, dy.T @ torch.tanh(x @ A.T)


def slope_of_z(x, A, B, dy):
    z = x @ A.T
    return (dy @ B * (1 - z * z)) @ A, (dy @ B * (1 - z * z)).T @ x, dy.T @ torch.tanh(z)


def without_tanh_in_dB(x, A, B, dy):
    dx, dA, _ = backward(x, A, B, dy)
    return dx, dA, dy.T @ (x @ A.T)


def slope_missing_in_dx(x, A, B, dy):
    _, dA, dB = backward(x, A, B, dy)
    return dy @ B @ A, dA, dB


def residual(x, A, B, dy):
    dx, dA, dB = backward(x, A, B, dy)
    return dx + dy, dA, dB


def transposed(x, A, B, dy):
    dx, dA, dB = backward(x, A, B, dy)
    return dx, dA.T, dB


# ---- what crosses a stage boundary


def crossing(s, b, h, tp, cp, sequence_parallel, size):
    return s // cp // (tp if sequence_parallel else 1) * b * h * size


def crossing_by_grid(s, b, h, tp, cp, sequence_parallel, size):
    return s * b * h * size / Grid(tp=tp, cp=cp, sequence_parallel=sequence_parallel).parts


# ---- a weight on two stages


def tie(rank, group="embedding", by=1):
    name = {True: "block0.weight"}.get(rank.is_first, "block3.weight")
    if rank.is_first or rank.is_last:
        gradient = rank.gradients()[name]
        rank.all_reduce(gradient, group)
        rank.set_gradients({name: gradient / by})


def tied(rank):
    train(rank)
    tie(rank)


def tied_first(rank):
    """The two sums commute."""
    one_f_one_b(rank)
    tie(rank)
    average(rank)


def tied_on_every_rank(rank):
    train(rank)
    name = "block0.weight" if rank.is_first else "block3.weight"
    gradient = rank.gradients()[name]
    rank.all_reduce(gradient, "embedding")
    rank.set_gradients({name: gradient})


def tied_everywhere(rank):
    train(rank)
    gradient = next(iter(rank.gradients().values()))
    rank.all_reduce(gradient, "embedding")


def tied_averaged(rank):
    train(rank)
    tie(rank, by=2)


def tied_twice(rank):
    train(rank)
    tie(rank)
    tie(rank)


def tied_not_set(rank):
    train(rank)
    if rank.is_first or rank.is_last:
        name = "block0.weight" if rank.is_first else "block3.weight"
        rank.all_reduce(rank.gradients()[name], "embedding")


def tied_on_the_first_only(rank):
    train(rank)
    if rank.is_first:
        tie(rank)


def tied_set_on_the_last_only(rank):
    train(rank)
    if rank.is_first or rank.is_last:
        name = "block0.weight" if rank.is_first else "block3.weight"
        gradient = rank.gradients()[name]
        rank.all_reduce(gradient, "embedding")
        if rank.is_last:
            rank.set_gradients({name: gradient})


def tied_without_dp(rank):
    gpipe(rank)
    tie(rank)


def tied_over_dp(rank):
    train(rank)
    tie(rank, "dp")


# ---- how much, how often


def tp_bytes(n, h, size, layers, sums, m, t):
    return 2 * (t - 1) / t * n * h * size * layers * sums * m


def pp_bytes(n, h, size, m):
    return 2 * n * h * size * m


def dp_bytes(params, size, d):
    return 2 * (d - 1) / d * params * size


def tp_by_halves(n, h, size, layers, sums, m, t):
    """An all-reduce as a reduce-scatter and an all-gather."""
    half = n * h * size * (t - 1) // t
    return (half + half) * layers * sums * m


def pp_by_message(n, h, size, m):
    return sum(n * h * size for _ in range(m) for _ in ("forward", "backward"))


def dp_by_halves(params, size, d):
    return 2 * (params * size - params * size / d)


PROGRAMS = ("train", "tied")

RIGHT = {
    "layout": [(coordinates, members), (by_stride, members_by_stride)],
    "train": [(train,), (train_asynchronously,), (train_flat,)],
    "exposed": [(exposed,), (exposed_step_by_step,)],
    "mlp": [(forward, backward, to_sum), (forward, by_autograd, lambda: ("dx", "y"))],
    "crossing": [(crossing,), (crossing_by_grid,)],
    "tied": [(tied,), (tied_first,)],
    "volumes": [(tp_bytes, pp_bytes, dp_bytes), (tp_by_halves, pp_by_message, dp_by_halves)],
}

WRONG = {
    "layout": [
        (from_the_right, members, "the axis on the left of the order varies fastest"),
        (order_ignored, members, "The order says which varies fastest"),
        (no_modulo, members, "take it modulo the size of the axis"),
        (no_stride, members, "divide by their sizes"),
        (from_one, members, "places are counted from 0"),
        (as_tuple, members, "return a dict with a place for each of tp, dp, pp"),
        (lambda *a: None, members, "Is a return missing"),
        (coordinates, neighbours, "Only the fastest axis has its groups side by side"),
        (coordinates, same_place, "has 4 ranks, and a group of tp has 2"),
        (coordinates, of_rank_0, "rank 2 is in its own group"),
        (coordinates, without_itself, "rank 0 is in its own group"),
        (coordinates, backwards, "in ascending order"),
        (coordinates, mirrored_order, "not the one on the right"),
        (coordinates, lambda *a: None, "return a list of ranks. Is a return missing"),
    ],
    "train": [
        (gpipe, "not averaged over the 2 data-parallel copies"),
        (added_up, "dp = 2 times too large"),
        (all_micro_batches, "micro-batch 0 does not go through rank 1"),
        (by_microbatches, "all gradients are 4 times too small.*the mean over the 2 copies"),
        (over_everybody, "all_reduce without a group sums over all ranks"),
        (every_micro_batch, "sends 4 times what is needed: it reduces after every micro-batch"),
        (twice, "sends 2 times what is needed: each gradient is to be summed once"),
        (before_the_send, "takes 21, and 18 is possible. Rank 2 sums .* send first, then sum"),
        (first_copy_only, "rank 0 waits in all_reduce.* for rank 1 to join in"),
        (never_set, "not averaged over the 2 data-parallel copies"),
        (not_waited, "never waited for its all_reduce over dp"),
        (one_at_a_time, "it takes 27, and 18 is possible: look at the picture"),
        (lambda rank: average(rank, "pp"), "in no group 'pp'"),
    ],
    "exposed": [
        (lambda r, B, sync, n: sync, "after a barrier at the end"),
        (lambda r, B, sync, n: sync - r * B, "nothing is exposed, 0"),
        (lambda r, B, sync, n: max(0, sync - r * B), "that is one bucket"),
        (lambda r, B, sync, n: max(0, sync / n - r * B), "If sync is longer than B, they queue"),
        (lambda r, B, sync, n: max(0, max(0, sync - B) - r * B), "the last one starts when"),
        (lambda r, B, sync, n: max(0, sync - B + B / n - r * B), "the last one still has to be"),
        (
            lambda r, B, sync, n: max(0, max(sync - B, sync / n) - r * B),
            "the first bucket starts when its own gradient is there",
        ),
        (lambda r, B, sync, n: exposed(0, B, sync, n), "that is rank 0"),
        (lambda r, B, sync, n: exposed(r, B, sync, n) / B, "when is a bucket's gradient there"),
        (lambda r, B, sync, n: None, "not a number: is a return missing"),
    ],
    "mlp": [
        (lambda x, A, B: x @ A.T @ B.T, backward, to_sum, "the tanh between"),
        (lambda x, A, B: torch.tanh(x @ A.T @ B.T), backward, to_sum, "tanh of a sum is not"),
        (lambda x, A, B: forward(x, A, B) / 2, backward, to_sum, "do not divide"),
        (lambda x, A, B: x + forward(x, A, B), backward, to_sum, "x is added once"),
        (lambda x, A, B: torch.tanh(x @ A.T), backward, to_sum, "has shape .* should be .3, 4"),
        (lambda x, A, B: None, backward, to_sum, "not a tensor: is a return missing"),
        (forward, without_tanh_in_dB, to_sum, "dB, put together.*not x @ A.T"),
        (forward, no_slope, to_sum, "dA, put together.*1 - tanh², is missing"),
        (forward, slope_of_z, to_sum, "dA, put together.*not of x @ A.T itself"),
        (forward, slope_missing_in_dx, to_sum, "slope of tanh is missing on the way to x"),
        (forward, residual, to_sum, "dy is not added"),
        (forward, transposed, to_sum, "dA of mlp_backward with 2 ranks has shape .4, 4.|dA"),
        (forward, lambda *a: backward(*a)[0], to_sum, "return dx, dA, dB"),
        (forward, backward, lambda: ["y"], "leaves out dx"),
        (forward, backward, lambda: ["y", "dx", "dA", "dB"], "to_sum has dA"),
        (forward, backward, lambda: [], "leaves out y"),
        (forward, backward, lambda: ["dx", "h"], "a list with names of y, dx, dA, dB"),
    ],
    "crossing": [
        (lambda s, b, h, tp, cp, sp, z: s * b * h * z / tp / cp, "holds all rows after its sum"),
        (lambda s, b, h, tp, cp, sp, z: s * b * h * z / cp, "holds 1/tp of the rows"),
        (lambda s, b, h, tp, cp, sp, z: crossing(s, b, h, tp, 1, sp, z), "each rank has s/cp"),
        (lambda s, b, h, tp, cp, sp, z: crossing(s, b, h, tp, cp, sp, 1), "that counts numbers"),
        (lambda s, b, h, tp, cp, sp, z: crossing(s, 1, h, tp, cp, sp, z), "b sequences"),
        (lambda *a: 2 * crossing(*a), "Asked is one message"),
        (lambda s, b, h, tp, cp, sp, z: s * b * h * z, "the part that it holds"),
        (lambda s, b, h, tp, cp, sp, z: crossing(s, b, h, tp, cp, not sp, z), "the other way"),
        (lambda *a: 0, "count the numbers in the tensor"),
        (lambda *a: None, "is a return missing"),
    ],
    "tied": [
        (train, "the two are one weight, and their gradients must be added up"),
        (tied_on_every_rank, "rank 1, in .*KeyError|has no parameter|block3.weight"),
        (tied_everywhere, "rank 0 gives .* of shape .11, 6., and rank 2 .* .24, 6."),
        (tied_averaged, "added up, not averaged"),
        (tied_twice, "2 times what it should be.*and once"),
        (tied_not_set, "the two are one weight"),
        (tied_on_the_first_only, "rank 0 waits in all_reduce.* for rank 2 to join in"),
        (tied_set_on_the_last_only, "it lacks the part that block3.weight found"),
        (tied_without_dp, "not averaged over the 2 data-parallel copies"),
        (tied_over_dp, "the two are one weight|the gradient of"),
        (lambda rank: None, "never ran the forward"),
    ],
    "volumes": [
        (lambda n, h, z, L, k, m, t: tp_bytes(n, h, z, L, k, 1, t), pp_bytes, dp_bytes,
         "tp_bytes.*that is one micro-batch"),
        (lambda n, h, z, L, k, m, t: tp_bytes(n, h, z, 1, k, m, t), pp_bytes, dp_bytes,
         "every layer of the stage"),
        (lambda n, h, z, L, k, m, t: tp_bytes(n, h, z, L, 1, m, t), pp_bytes, dp_bytes,
         "a layer has several sums"),
        (lambda *a: tp_bytes(*a) / 2, pp_bytes, dp_bytes, "a ring goes round twice"),
        (lambda n, h, z, L, k, m, t: n * h * z * L * k * m, pp_bytes, dp_bytes,
         r"a ring of t ranks sends 2\(t-1\)/t"),
        (lambda *a: tp_bytes(*a) * a[-1], pp_bytes, dp_bytes, "all t ranks together"),
        (lambda *a: None, pp_bytes, dp_bytes, "is a return missing"),
        (tp_bytes, lambda n, h, z, m: n * h * z * m, dp_bytes, "sends twice for each micro-batch"),
        (tp_bytes, lambda n, h, z, m: 2 * n * h * z, dp_bytes, "pp_bytes.*that is one micro-batch"),
        (tp_bytes, lambda n, h, z, m: 2 * n * h * m, dp_bytes, "counts numbers, not bytes"),
        (tp_bytes, lambda *a: 2 * pp_bytes(*a), dp_bytes, "not what it receives too"),
        (tp_bytes, pp_bytes, lambda P, z, d: P * z, r"dp_bytes.*a ring of d ranks sends"),
        (tp_bytes, pp_bytes, lambda P, z, d: 2 * P * z, "for very many copies"),
        (tp_bytes, pp_bytes, lambda P, z, d: dp_bytes(P, z, d) / d, "not a d-th of them"),
        (tp_bytes, pp_bytes, lambda P, z, d: dp_bytes(P, 1, d), "counts numbers, not bytes"),
    ],
}  # fmt: skip
