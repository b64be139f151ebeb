"""Answers to the exercises of lab 1: right ones, and wrong ones with what each must be told.

RIGHT[exercise] and WRONG[exercise] list tuples of answers; a wrong one ends with a regular
expression that the check's reasons must match. PROGRAMS: the exercises whose answer is one
function of a rank.
"""

import math
from fractions import Fraction

import torch
from programs import backwards, forwards
from programs import gpipe as right_gpipe
from programs import one_f_one_b as right_1f1b

import pp_lab as pp
from pp_lab import Op, schedules

# ---- steps


def forward_step(rank, i, x):
    x.requires_grad_()
    y = rank.module(x)
    return rank.loss(i, y) / rank.microbatches if rank.is_last else y


def forward_step_leaf(rank, i, x):
    y = x.requires_grad_(True)
    for layer in rank.module:
        y = layer(y)
    return torch.div(rank.loss(i, y), rank.microbatches) if rank.next is None else y


def backward_step(rank, i, x, y, dy):
    torch.autograd.backward(y, dy)
    return x.grad


def backward_step_method(rank, i, x, y, dy):
    y.backward(gradient=dy)
    return x.grad.clone()


def undivided(rank, i, x):
    x.requires_grad_()
    y = rank.module(x)
    return rank.loss(i, y) if rank.is_last else y


def divided_twice(rank, i, x):
    y = forward_step(rank, i, x)
    return y / rank.microbatches if rank.is_last else y


def detached(rank, i, x):
    y = rank.module(x.detach())
    return rank.loss(i, y) / rank.microbatches if rank.is_last else y


def without_loss(rank, i, x):
    return rank.module(x.requires_grad_())


def other_targets(rank, i, x):
    y = rank.module(x.requires_grad_())
    return rank.loss(0, y) / rank.microbatches if rank.is_last else y


def loss_everywhere(rank, i, x):
    return rank.loss(i, rank.module(x.requires_grad_())) / rank.microbatches


def backward_of_sum(rank, i, x, y, dy):
    y.sum().backward()
    return x.grad


def backward_without_dy(rank, i, x, y, dy):
    y.backward()
    return x.grad


def returns_dy(rank, i, x, y, dy):
    torch.autograd.backward(y, dy)
    return dy


def returns_nothing(rank, i, x, y, dy):
    torch.autograd.backward(y, dy)


def replaces(rank, i, x, y, dy):
    rank.module.zero_grad()
    torch.autograd.backward(y, dy)
    return x.grad


def minus(rank, i, x, y, dy):
    torch.autograd.backward(-y, dy)
    return x.grad


# ---- the fused calls


def both(rank, tensor, peer):
    received = rank.empty()
    requests = [rank.isend(tensor, peer), rank.irecv(received, peer)]
    for request in requests:
        request.wait()
    return received


def send_next(rank, y):
    return both(rank, y, rank.next)


def send_previous(rank, dx):
    return both(rank, dx, rank.previous)


def by_parity(rank, tensor, peer):
    received = rank.empty()
    if rank.index % 2 == 0:
        rank.send(tensor, peer)
        rank.recv(received, peer)
    else:
        rank.recv(received, peer)
        rank.send(tensor, peer)
    return received


def batched(rank, tensor, peer):
    received = rank.empty()
    for request in rank.batch_isend_irecv(
        [pp.P2POp(rank.isend, tensor, peer), pp.P2POp(rank.irecv, received, peer)]
    ):
        request.wait()
    return received


def send_first(rank, tensor, peer):
    received = rank.empty()
    rank.send(tensor, peer)
    rank.recv(received, peer)
    return received


def receive_first(rank, tensor, peer):
    received = rank.empty()
    rank.recv(received, peer)
    rank.send(tensor, peer)
    return received


def send_not_waited(rank, tensor, peer):
    received = rank.empty()
    rank.isend(tensor, peer)
    rank.irecv(received, peer).wait()
    return received


def receive_not_waited(rank, tensor, peer):
    received = rank.empty()
    request = rank.isend(tensor, peer)
    rank.irecv(received, peer)
    request.wait()
    return received


def too_small(rank, tensor, peer):
    received = torch.empty(3, dtype=rank.dtype)
    rank.isend(tensor, peer)
    rank.irecv(received, peer).wait()
    return received


def returns_own(rank, tensor, peer):
    both(rank, tensor, peer)
    return tensor


def returns_none(rank, tensor, peer):
    both(rank, tensor, peer)


def single(rank, tensor, peer):
    received = torch.empty(rank.shape)  # float32, not the lab's dtype
    requests = [rank.isend(tensor, peer), rank.irecv(received, peer)]
    for request in requests:
        request.wait()
    return received


def calls(swap):
    return (
        lambda rank, y: swap(rank, y, rank.next),
        lambda rank, dx: swap(rank, dx, rank.previous),
    )


# ---- rank programs


def gpipe_backwards_last_in_first_out(rank):
    forwards(rank)
    for i in reversed(range(rank.microbatches)):
        rank.send_backward(i, rank.backward(i, rank.recv_backward(i)))


def only_forward(rank):
    forwards(rank)


def one_at_a_time(rank):
    for i in range(rank.microbatches):
        rank.send_forward(i, rank.forward(i, rank.recv_forward(i)))
        rank.send_backward(i, rank.backward(i, rank.recv_backward(i)))


def one_forgotten(rank):
    for i in range(rank.microbatches - 1):
        rank.send_forward(i, rank.forward(i, rank.recv_forward(i)))
    for i in range(rank.microbatches - 1):
        rank.send_backward(i, rank.backward(i, rank.recv_backward(i)))


def one_too_many(rank):
    for i in range(rank.microbatches + 1):
        rank.send_forward(i, rank.forward(i, rank.recv_forward(i)))
    backwards(rank)


def not_sent(rank):
    for i in range(rank.microbatches):
        rank.forward(i, rank.recv_forward(i))
    backwards(rank)


def gradient_not_sent(rank):
    forwards(rank)
    for i in range(rank.microbatches):
        rank.backward(i, rank.recv_backward(i))


def sends_input_on(rank):
    for i in range(rank.microbatches):
        x = rank.recv_forward(i)
        rank.forward(i, x)
        rank.send_forward(i, x)
    backwards(rank)


def mirrored(rank):
    """Rank 2 takes the activations from the wrong end of its list."""
    forwards(rank)
    m = rank.microbatches
    for i in range(m):
        dy = rank.recv_backward(i)
        rank.send_backward(i, rank.backward(m - 1 - i if rank.index == 2 else i, dy))


def misspelt(rank):
    rank.recieve_forward(0)


def one_f_one_b_with(rank, warmup):
    """1F1B with another warm-up, and asynchronous sends, so that it does not deadlock."""
    m, sends = rank.microbatches, []

    def forward(i):
        y = rank.forward(i, rank.recv_forward(i))
        if rank.next is not None:
            sends.append(rank.isend(y, rank.next))

    def backward(k):
        dx = rank.backward(k, rank.recv_backward(k))
        if rank.previous is not None:
            sends.append(rank.isend(dx, rank.previous))

    warmup = min(max(warmup, 0), m)
    for i in range(warmup):
        forward(i)
    for k in range(m - warmup):
        forward(warmup + k)
        backward(k)
    for k in range(m - warmup, m):
        backward(k)
    for request in sends:
        request.wait()


def right_1f1b_asynchronous(rank):
    one_f_one_b_with(rank, rank.size - 1 - rank.index)


def too_long_warmup(rank):
    one_f_one_b_with(rank, rank.size - rank.index)


def eager(rank):
    one_f_one_b_with(rank, 2 * (rank.size - 1 - rank.index))


def same_warmup_everywhere(rank):
    one_f_one_b_with(rank, rank.size - 1)


def backward_first(rank):
    """Warm-up one too short: a backward before the forward that should come first."""
    m, sends = rank.microbatches, []
    warmup = min(max(rank.size - 1 - rank.index, 1), m)
    for i in range(warmup):
        y = rank.forward(i, rank.recv_forward(i))
        if rank.next is not None:
            sends.append(rank.isend(y, rank.next))
    for k in range(m):
        dx = rank.backward(k, rank.recv_backward(k))
        if rank.previous is not None:
            sends.append(rank.isend(dx, rank.previous))
        if warmup + k < m:
            y = rank.forward(warmup + k, rank.recv_forward(warmup + k))
            if rank.next is not None:
                sends.append(rank.isend(y, rank.next))
    for request in sends:
        request.wait()


def unfused(rank):
    m = rank.microbatches
    warmup = min(rank.size - 1 - rank.index, m)
    for i in range(warmup):
        rank.send_forward(i, rank.forward(i, rank.recv_forward(i)))
    for k in range(m - warmup):
        i = warmup + k
        rank.send_forward(i, rank.forward(i, rank.recv_forward(i)))
        rank.send_backward(k, rank.backward(k, rank.recv_backward(k)))
    for k in range(m - warmup, m):
        rank.send_backward(k, rank.backward(k, rank.recv_backward(k)))


def no_cooldown(rank):
    m = rank.microbatches
    warmup = min(rank.size - 1 - rank.index, m)
    for i in range(warmup):
        rank.send_forward(i, rank.forward(i, rank.recv_forward(i)))
    x = rank.recv_forward(warmup)
    for k in range(m - warmup):
        i = warmup + k
        dx = rank.backward(k, rank.send_forward_recv_backward(i, rank.forward(i, x), k))
        if i + 1 < m:
            x = rank.send_backward_recv_forward(k, dx, i + 1)
        else:
            rank.send_backward(k, dx)


def few_micro_batches_forgotten(rank):
    """Right for m >= p only."""
    m = rank.microbatches
    warmup = rank.size - 1 - rank.index
    for i in range(warmup):
        rank.send_forward(i, rank.forward(i, rank.recv_forward(i)))
    x = rank.recv_forward(warmup)
    for k in range(m - warmup):
        i = warmup + k
        dx = rank.backward(k, rank.send_forward_recv_backward(i, rank.forward(i, x), k))
        if i + 1 < m:
            x = rank.send_backward_recv_forward(k, dx, i + 1)
        else:
            rank.send_backward(k, dx)
    for k in range(m - warmup, m):
        rank.send_backward(k, rank.backward(k, rank.recv_backward(k)))


# ---- functions of sizes


def cut(blocks, p):
    size, rest = divmod(len(blocks), p)
    ends = [size * (s + 1) + min(s + 1, rest) for s in range(p)]
    return [blocks[a:b] for a, b in zip([0, *ends], ends, strict=False)]


def cut_late_stages_larger(blocks, p):
    return [blocks[len(blocks) * s // p : len(blocks) * (s + 1) // p] for s in range(p)]


def cut_dropping_the_rest(blocks, p):
    size = len(blocks) // p
    return [blocks[s * size : (s + 1) * size] for s in range(p)]


def cut_rest_to_the_last(blocks, p):
    size = len(blocks) // p
    return [blocks[s * size : (s + 1) * size if s < p - 1 else None] for s in range(p)]


def cut_overlapping(blocks, p):
    size = len(blocks) // p
    return [blocks[s * size : (s + 1) * size + 1] for s in range(p)]


def cut_rounding_up(blocks, p):
    size = -(-len(blocks) // p)
    return [blocks[s * size : (s + 1) * size] for s in range(p)]


def smallest(p, most):
    """By the formula, exactly."""
    most = Fraction(most).limit_denominator(10**6)
    return max(1, math.ceil((p - 1) / most) - (p - 1))


def counting(p, most):
    m = 1
    while (p - 1) > (most + 1e-12) * (m + p - 1):
        m += 1
    return m


# ---- charts


def by_simulation(ranks, stages, m):
    """Kahn's algorithm on the ops and on each rank's order."""
    ops = [op for row in ranks for op in row]
    if len(ops) != 2 * stages * m or len(set(ops)) != len(ops):
        return False
    if any(op.stage != r for r, row in enumerate(ranks) for op in row):
        return False
    if any(op.microbatch >= m for op in ops):
        return False
    before = {op: set() for op in ops}
    for row in ranks:
        for a, b in zip(row, row[1:], strict=False):
            before[b].add(a)
    for op in ops:
        if op.kind == "F" and op.stage:
            before[op].add(op._replace(stage=op.stage - 1))
        if op.kind == "B":
            before[op].add(op._replace(kind="F"))
            if op.stage + 1 < stages:
                before[op].add(op._replace(stage=op.stage + 1))
    done = set()
    while ready := [op for op in ops if op not in done and before[op] <= done]:
        done.update(ready)
    return len(done) == len(ops)


def by_verify(ranks, stages, m):
    try:
        pp.verify(pp.Schedule("x", ranks, pp.loop(len(ranks)), m))
    except pp.ScheduleError:
        return False
    return True


def only_complete(ranks, stages, m):
    ops = sorted(op for row in ranks for op in row)
    return ops == sorted(Op(k, s, i) for k in "FB" for s in range(stages) for i in range(m))


def as_a_set(ranks, stages, m):
    """Doubles vanish in the set."""
    ops = {op for row in ranks for op in row}
    return ops == {
        Op(k, s, i) for k in "FB" for s in range(stages) for i in range(m)
    } and by_verify([list(dict.fromkeys(row)) for row in ranks], stages, m)


def each_rank_alone(ranks, stages, m):
    """Looks at no other rank."""
    return only_complete(ranks, stages, m) and all(
        op.stage == r and (op.kind == "F" or op._replace(kind="F") in row[:k])
        for r, row in enumerate(ranks)
        for k, op in enumerate(row)
    )


def any_owner(ranks, stages, m):
    """Takes an op from wherever it stands."""
    owner = {}
    for r, row in enumerate(ranks):
        for op in row:
            owner.setdefault(op.stage, r)
    if any(owner[op.stage] != r for r, row in enumerate(ranks) for op in row):
        return all(len(row) == 2 for row in ranks)
    return by_verify(ranks, stages, m)


def same_order_everywhere(ranks, stages, m):
    """Thinks that all ranks must do the same."""
    return by_verify(ranks, stages, m) and len({tuple(op.label for op in r) for r in ranks}) == 1


# ---- schedules as data


def data_1f1b(p, m):
    return [list(row) for row in schedules.one_f_one_b(p, m).ranks]


def data_by_queue(p, m):
    """Forward while fewer than p - r are in flight, else backward."""
    ranks = []
    for r in range(p):
        row, f, b = [], 0, 0
        while b < m:
            if f < m and f - b < p - r:
                row.append(Op("F", r, f))
                f += 1
            else:
                row.append(Op("B", r, b))
                b += 1
        ranks.append(row)
    return ranks


def data_gpipe(p, m):
    return [list(row) for row in schedules.gpipe(p, m).ranks]


def data_fields_swapped(p, m):
    return [[Op(op.kind, op.microbatch, op.stage) for op in row] for row in data_1f1b(p, m)]


def data_without_cooldown(p, m):
    return [row[: len(row) - min(p - 1 - r, m)] for r, row in enumerate(data_1f1b(p, m))]


def data_warmup_minus_one(p, m):
    ranks = []
    for r in range(p):
        w = min(max(p - 2 - r, 0), m)
        f, b = ([Op(k, r, i) for i in range(m)] for k in "FB")
        row = f[:w]
        for k in range(m - w):
            row += [f[w + k], b[k]]
        ranks.append(row + b[m - w :])
    return ranks


def data_warmup_plus_one(p, m):
    ranks = []
    for r in range(p):
        w = min(p - r, m)
        f, b = ([Op(k, r, i) for i in range(m)] for k in "FB")
        row = f[:w]
        for k in range(m - w):
            row += [f[w + k], b[k]]
        ranks.append(row + b[m - w :])
    return ranks


def data_tuples(p, m):
    return [[(op.kind, op.stage, op.microbatch) for op in row] for row in data_1f1b(p, m)]


def data_flat(p, m):
    return [op for row in data_1f1b(p, m) for op in row]


PROGRAMS = ("gpipe", "one_f_one_b")

RIGHT = {
    "bubble": [(lambda p, m: (p - 1) / (m + p - 1),), (lambda p, m: 1 - m / (m + p - 1),)],
    "cut": [(cut,), (cut_late_stages_larger,)],
    "steps": [(forward_step, backward_step), (forward_step_leaf, backward_step_method)],
    "exchange": [calls(both), calls(batched), calls(by_parity)],
    "gpipe": [(right_gpipe,), (gpipe_backwards_last_in_first_out,), (right_1f1b,)],
    "one_f_one_b": [(right_1f1b,), (right_1f1b_asynchronous,)],
    "in_flight": [(lambda p, m, r: min(p - r, m),), (lambda p, m, r: p - r if p - r < m else m,)],
    "enough": [(smallest,), (counting,)],
    "is_legal": [(by_simulation,), (by_verify,)],
    "as_data": [(data_1f1b,), (data_by_queue,)],
}

WRONG = {
    "bubble": [
        (lambda p, m: (p - 1) / m, "idle time over busy time"),
        (lambda p, m: m / (m + p - 1), "that is the busy part"),
        (lambda p, m: 100 * (p - 1) / (m + p - 1), "in per cent"),
        (lambda p, m: 3 * (p - 1), "a rank's idle time. Divide"),
        (lambda p, m: (p - 1) / (m + p), "one slot too many"),
        (lambda p, m: p / (m + p), "not for p"),
        (lambda p, m: 1 / m, "also depends on p"),
        (lambda p, m: 1 / 3, "Count the idle slots of one rank"),
        (lambda p, m: None, "gives None, not a number: is a return missing"),
        (lambda p, m: p / 0, "ZeroDivisionError.*\nline"),
    ],
    "cut": [
        (cut_dropping_the_rest, "block 8 is in no stage"),
        (cut_rest_to_the_last, r"stages of \[2, 2, 2, 4\] blocks. The slowest"),
        (cut_overlapping, "is in two stages"),
        (cut_rounding_up, "stages of|is empty"),
        (lambda blocks, p: [blocks[s::p] for s in range(p)], "out of order"),
        (lambda blocks, p: cut(blocks, p)[::-1], "out of order"),
        (lambda blocks, p: cut(blocks, p)[:-1], "3 stages, not 4"),
        (lambda blocks, p: [blocks] + [[]] * (p - 1), "stage 1 is empty"),
        (lambda blocks, p: [len(s) for s in cut(blocks, p)], "a list of p lists"),
        (lambda blocks, p: None, "gives None: return a list of p lists"),
    ],
    "steps": [
        (undivided, backward_step, "m = 4 times too large"),
        (divided_twice, backward_step, "m = 4 times too small"),
        (detached, backward_step, "Was the input detached"),
        (without_loss, backward_step, "not the loss, a scalar"),
        (other_targets, backward_step, "gradient of .* expected"),
        (loss_everywhere, backward_step, "only the last rank computes the loss"),
        (forward_step, backward_of_sum, "rank 1: the gradient of"),
        (forward_step, backward_without_dy, "grad can be implicitly created only for scalar"),
        (forward_step, returns_dy, "the backward of 2B0 gave None"),
        (forward_step, returns_nothing, "the backward of 2B0 gave None"),
        (forward_step, replaces, "only the last micro-batch, 3, counts"),
        (forward_step, minus, "the wrong sign"),
        (lambda rank, i, x: None, backward_step, "gave None, not"),
    ],
    "exchange": [
        (*calls(send_first), "deadlock: .*all of these send first"),
        (*calls(receive_first), "deadlock: .*nobody has sent"),
        (*calls(send_not_waited), "never waited for its isend"),
        (*calls(receive_not_waited), "never waited for its irecv"),
        (*calls(too_small), r"into a tensor of shape \[3\]"),
        (*calls(single), "torch.float32, but rank . sent .*torch.float64"),
        (*calls(returns_own), "the gradient of"),
        (*calls(returns_none), "needs the gradient of its output, a tensor, but got None"),
        (send_previous, send_next, "None is no rank|deadlock|has ended"),
        (lambda rank, y: both(rank, y, rank.index), send_previous, "messages with itself"),
    ],
    "gpipe": [
        (only_forward, "never ran the backward of micro-batch 0"),
        (one_at_a_time, "only one rank works at a time"),
        (one_forgotten, "never ran the forward of micro-batch 7"),
        (one_too_many, "there is no micro-batch 8"),
        (not_sent, "waits in recv_forward"),
        (gradient_not_sent, "waits in recv_backward|has ended without sending"),
        (sends_input_on, "the gradient of block"),
        (mirrored, "stale activations on stage 2"),
        (misspelt, "no attribute 'recieve_forward'"),
        (lambda p, m, v: None, "takes 3 arguments"),
    ],
    "one_f_one_b": [
        (right_gpipe, "peak activations 8 8 8 8, target 4 3 2 1: rank 0 holds too many"),
        (too_long_warmup, "peak activations 5 4 3 2, target 4 3 2 1"),
        (eager, "peak activations 7 5 3 1, target 4 3 2 1"),
        (same_warmup_everywhere, "peak activations 4 4 4 4, target 4 3 2 1"),
        (backward_first, "makespan .* target 33"),
        (unfused, "deadlock: .*all of these send first"),
        (no_cooldown, "waits in send_backward|waits in recv_backward|never ran the backward"),
        (few_micro_batches_forgotten, "there is no micro-batch 2"),
        (one_at_a_time, "only one rank works at a time"),
        (mirrored, "stale activations"),
    ],
    "in_flight": [
        (lambda p, m, r: p - r, "with few micro-batches"),
        (lambda p, m, r: min(p - 1 - r, m), "that is the warm-up"),
        (lambda p, m, r: p - 1 - r, "that is the warm-up"),
        (lambda p, m, r: m, "that is GPipe"),
        (lambda p, m, r: min(p, m), "that is the first rank"),
        (lambda p, m, r: min(r + 1, m), "the other way round"),
        (lambda p, m, r: "4", "gives '4', not a number"),
        (lambda p, m, r: None, "is a return missing"),
    ],
    "enough": [
        (lambda p, most: math.ceil((p - 1) / most), "solves .p-1./m"),
        (lambda p, most: 4 * p, "a rule of thumb"),
        (lambda p, most: math.floor((p - 1) / most) - p, "too much|whole"),
        (lambda p, most: counting(p, most) + 1, "are enough already"),
        (lambda p, most: (p - 1) / most - p + 1.5, "is whole"),
        (lambda p, most: 0, "at least 1"),
        (lambda p, most: None, "is a return missing"),
        (lambda p, most: counting(p, 100 * most), "too much"),
    ],
    "is_legal": [
        (lambda ranks, stages, m: True, "a missing forward: you say legal"),
        (lambda ranks, stages, m: False, "GPipe: you say not legal"),
        (only_complete, "backward before forward: you say legal"),
        (as_a_set, "a doubled op: you say legal"),
        (each_rank_alone, "two ranks in different orders: you say legal"),
        (any_owner, "an op on the wrong rank: you say legal"),
        (same_order_everywhere, "1F1B: you say not legal"),
        (lambda ranks, stages, m: "yes", "gives 'yes', not True or False"),
        (lambda ranks, stages, m: ranks[stages], "IndexError"),
    ],
    "as_data": [
        (data_gpipe, "holds 4 activations, but 3 are enough|rank 1 holds 2 activations, but 1"),
        (data_fields_swapped, "names micro-batch 1"),
        (data_without_cooldown, "never runs .B"),
        (data_warmup_minus_one, "makespan 9, but 6 is possible|makespan .* is possible"),
        (data_warmup_plus_one, "start its backwards earlier"),
        (data_tuples, r"is not an op. Write Op\("),
        (data_flat, "is there for|not a list of ops|lists for"),
        (lambda p, m: data_1f1b(p, m)[:-1], "lists for 0 ranks, not for 1"),
        (lambda p, m: None, "None is not a list of ops.*is a return missing"),
    ],
}
