"""Answers to the exercises of lab 5: right ones, and wrong ones with what each must be told."""

import functools
import re

import torch
from torch.autograd.graph import saved_tensors_hooks

from pp_lab.run.recompute import keeping

# ---- held_layers


def in_flight(p, m, layers):
    return [min(p - r, m) * layers / p for r in range(p)]


def in_flight_by_loop(p, m, layers):
    rows = []
    for r in range(p):
        warmup = min(p - 1 - r, m)
        rows.append((warmup + 1 if warmup < m else m) * layers / p)
    return tuple(rows)


# ---- held_bytes


def counted(
    rank, x, run=None, size=lambda t: t.untyped_storage().nbytes(), once=True, weights=False
):
    """Bytes of what is saved, each storage once; and the ways to get it wrong."""
    left_out = {p.data_ptr() for p in rank.module.parameters()} if not weights else set()
    seen, total = set(), 0

    def pack(tensor):
        nonlocal total
        pointer = tensor.untyped_storage().data_ptr()
        if pointer not in left_out and not (once and pointer in seen):
            seen.add(pointer)
            total += size(tensor)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        y = (run or rank.module)(x)
    del y
    return total


def by_list(rank, i, x):
    saved = []
    x.requires_grad_()
    with saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        y = rank.module(x)
    weights = {p.data_ptr() for p in rank.module.parameters()}
    sizes = {t.data_ptr(): t.numel() * t.element_size() for t in saved}
    assert y is not None
    return sum(size for pointer, size in sizes.items() if pointer not in weights)


def outside(rank, i, x):
    y = rank.module(x)
    return counted(rank, x, run=lambda x: y)


def only_output(rank, i, x):
    y = rank.module(x)
    return y.numel() * y.element_size()


def inputs_forgotten(rank, i, x):
    return counted(rank, x) - x.numel() * x.element_size()


# ---- full and selective


def again(
    stream_back=True,
    restored=True,
    recorded=True,
    detached=True,
    gradients=None,
    grad_on=False,
    by_attribute=False,
):
    """An autograd.Function as in the exercise, with one thing or another left out."""

    class Again(torch.autograd.Function):
        @staticmethod
        def forward(ctx, run, stream, *inputs):
            ctx.run, ctx.stream, ctx.state = run, stream, stream.get_state()
            if by_attribute:
                ctx.kept = inputs
            else:
                ctx.save_for_backward(*inputs)
            if grad_on:
                with torch.enable_grad():
                    return run(*inputs).detach()
            return run(*inputs)

        @staticmethod
        def backward(ctx, dy):
            inputs = ctx.kept if by_attribute else ctx.saved_tensors
            if detached:
                inputs = [t.detach().requires_grad_() for t in inputs]
            now = ctx.stream.get_state()
            if restored:
                ctx.stream.set_state(ctx.state)
            with torch.enable_grad() if recorded else torch.no_grad():
                y = ctx.run(*inputs)
            if stream_back:
                ctx.stream.set_state(now)
            torch.autograd.backward(y, dy)
            grads = [t.grad for t in inputs]
            return (None, None, *grads) if gradients is None else gradients(grads)

    return Again


def full_with(Again, requires=True, loss=True, share=True):
    def full_step(rank, i, x):
        if requires:
            x.requires_grad_()
        for layer in rank.module:
            x = Again.apply(layer, layer.stream, x)
        if rank.is_last and loss:
            return rank.share(i, rank.loss(i, x)) if share else rank.loss(i, x)
        return x

    return full_step


def selective_with(Again, core="core"):
    def selective_step(rank, i, x):
        x.requires_grad_()
        for layer in rank.module:
            x = layer(x, core=functools.partial(Again.apply, getattr(layer, core), layer.stream))
        return rank.share(i, rank.loss(i, x)) if rank.is_last else x

    return selective_step


def stage_again(rank, i, x):
    """The whole stage at once, and one Function that knows about all of its streams."""
    streams = [layer.stream for layer in rank.module]

    class Streams:
        def get_state(self):
            return [stream.get_state() for stream in streams]

        def set_state(self, states):
            for stream, state in zip(streams, states, strict=True):
                stream.set_state(state)

    y = again().apply(rank.module, Streams(), x.requires_grad_())
    return rank.share(i, rank.loss(i, y)) if rank.is_last else y


def plain_backward(rank, i, x, y, dy):
    torch.autograd.backward(y, dy)
    return x.grad


def no_recompute(rank, i, x):
    y = rank.module(x.requires_grad_())
    return rank.share(i, rank.loss(i, y)) if rank.is_last else y


def without_graph(rank, i, x):
    with torch.no_grad():
        return no_recompute(rank, i, x)


def layers_left_out(rank, i, x):
    """Runs the first layer only."""
    x = again().apply(rank.module[0], rank.module[0].stream, x.requires_grad_())
    return rank.share(i, rank.loss(i, x)) if rank.is_last else x


def core_under_no_grad(rank, i, x):
    x.requires_grad_()
    for layer in rank.module:
        x = layer(x, core=torch.no_grad()(layer.core))
    return rank.share(i, rank.loss(i, x)) if rank.is_last else x


# ---- layer_bytes


def paper(
    s, b, h, a, number=2, recompute="none", sbh=16, masks=2, core=2, core_masks=1, heads=None
):
    if recompute == "full":
        return number * s * b * h
    kept = s * b * h * (sbh * number + masks)
    return kept + (heads or a) * s * s * b * (core * number + core_masks) * (recompute == "none")


def paper_in_parts(s, b, h, a, number=2, recompute="none"):
    if recompute == "full":
        return s * b * h * number
    norms, attention = 2 * number, (1 + 3 + 1) * number + 1
    mlp = (1 + 4 + 4) * number + 1
    total = (norms + attention + mlp) * s * b * h
    return total if recompute == "selective" else total + a * b * s**2 * (number + 1 + number)


# ---- recomputed, parse_layout, split


def megatron(p, r, i, n):
    return i % (p - r) >= n


def megatron_in_words(p, r, i, n):
    warmup = p - 1 - r
    position = i
    while position > warmup:
        position -= warmup + 1
    return not position < n


def by_expressions(text):
    text = text.replace(",", "")
    for pattern in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
        text = re.sub(pattern, lambda found: found[1] * int(found[2]), text)
    return text.split("|")


def by_hand(text):
    out, k = "", 0
    while k < len(text):
        part = text[k]
        k += 1
        if part == ",":
            continue
        if part == "(":
            end = text.index(")", k)
            part, k = "|".join(by_hand(text[k:end])), end + 1
        if k < len(text) and text[k] == "*":
            end = k + 1
            while end < len(text) and text[end].isdigit():
                end += 1
            part, k = part * int(text[k + 1 : end]), end
        out += part
    return tuple(out.split("|"))


def split_first(text):
    """Splits at the bars, then repeats."""
    return [
        re.sub(r"(.)\*(\d+)", lambda f: f[1] * int(f[2]), stage).replace("(", "").replace(")", "")
        for stage in text.replace(",", "").split("|")
    ]


def one_digit(text):
    text = text.replace(",", "")
    for pattern in (r"\(([^)]+)\)\*(\d)", r"(.)\*(\d)"):
        text = re.sub(pattern, lambda found: found[1] * int(found[2]), text)
    return text.split("|")


def whole_stage(text):
    """x*n repeats all letters before the star."""
    text = re.sub(r"\(([^)]+)\)\*(\d+)", lambda f: f[1] * int(f[2]), text.replace(",", ""))
    return re.sub(r"([a-zA-Z]+)\*(\d+)", lambda f: f[1] * int(f[2]), text).split("|")


def without_brackets(text):
    text = re.sub(r"([a-zA-Z])\*(\d+)", lambda f: f[1] * int(f[2]), text.replace(",", ""))
    return text.split("|")


def water(layers, p, cap, embedding, loss):
    """Raise the time of the slowest stage until all layers fit."""
    extra = [embedding * (r == 0) + loss * (r == p - 1) for r in range(p)]
    longest = 0
    while True:
        longest += 1
        most = [min(cap // (p - r), longest - extra[r]) for r in range(p)]
        if min(most) >= 1 and sum(most) >= layers:
            break
    while sum(most) > layers:
        r = max((r for r in range(p) if most[r] > 1), key=lambda r: most[r] * (p - r))
        most[r] -= 1
    return most


def one_by_one(layers, p, cap, embedding, loss):
    """Each layer goes where the time is shortest, among the ranks with room."""
    stages = [1] * p
    extra = [embedding * (r == 0) + loss * (r == p - 1) for r in range(p)]
    for _ in range(layers - p):
        free = [r for r in range(p) if (stages[r] + 1) * (p - r) <= cap]
        stages[min(free, key=lambda r: stages[r] + extra[r])] += 1
    return tuple(stages)


def even(layers, p, cap, embedding, loss):
    return [layers // p + (r < layers % p) for r in range(p)]


def by_memory_alone(layers, p, cap, embedding, loss):
    """Fills every rank up to the cap, from the last one on."""
    stages, left = [1] * p, layers - p
    for r in reversed(range(p)):
        more = min(cap // (p - r) - 1, left)
        stages[r], left = stages[r] + more, left - more
    return stages


def fewer_on_the_last(layers, p, cap, embedding, loss):
    return water(layers, p, cap, embedding, loss)[::-1]


# ---- freed


def forward_step(rank, i, x):
    x.requires_grad_()
    y = rank.module(x)
    return rank.share(i, rank.loss(i, y)) if rank.is_last else y


def free(rank, y):
    y.data = torch.empty(1, dtype=y.dtype)


def free_storage(rank, y):
    y.untyped_storage().resize_(0)


def free_empty(rank, y):
    y.data = y.data.new_empty(0)


def free_zeroes(rank, y):
    y.data.zero_()


def free_another_name(rank, y):
    y = torch.empty(1)
    return y


def free_deleted(rank, y):
    del y


def free_slice(rank, y):
    """A view keeps the whole storage."""
    y.data = y.data.flatten()[:1]


def free_detached(rank, y):
    y.detach_()
    y.data = torch.empty(1, dtype=y.dtype)


def free_resized(rank, y):
    y.resize_(1)


def backward_step(rank, i, x, y, dy):
    torch.autograd.Variable._execution_engine.run_backward(
        (y,), (torch.ones_like(y) if dy is None else dy,), False, False, (),
        allow_unreachable=True, accumulate_grad=True,
    )  # fmt: skip
    return x.grad


def backward_ordinary(rank, i, x, y, dy):
    torch.autograd.backward(y, dy)
    return x.grad


def backward_sum(rank, i, x, y, dy):
    y.sum().backward()
    return x.grad


def backward_shrunk(rank, i, x, y, dy):
    torch.autograd.backward(y, dy if dy is None else dy.flatten()[:1])
    return x.grad


def backward_returns_dy(rank, i, x, y, dy):
    backward_step(rank, i, x, y, dy)
    return dy


PROGRAMS = ()

RIGHT = {
    "held_layers": [(in_flight,), (in_flight_by_loop,)],
    "held_bytes": [(lambda rank, i, x: counted(rank, x),), (by_list,)],
    "full": [
        (full_with(again()),),
        (full_with(again(by_attribute=True)),),
        (stage_again,),
        (keeping("inputs"),),
    ],
    "selective": [
        (selective_with(again()),),
        (selective_with(again(by_attribute=True)),),
        (keeping("all but the core"),),
    ],
    "layer_bytes": [(paper,), (paper_in_parts,)],
    "recomputed": [(megatron,), (megatron_in_words,)],
    "parse_layout": [(by_expressions,), (by_hand,)],
    "split": [(water,), (one_by_one,)],
    "freed": [
        (forward_step, free, backward_step),
        (forward_step, free_storage, backward_ordinary),
        (forward_step, free_empty, backward_step),
    ],
}

WRONG = {
    "held_layers": [
        (lambda p, m, n: [(p - r) * n / p for r in range(p)], "with few micro-batches"),
        (lambda p, m, n: [min(p - r, m) for r in range(p)], "those are micro-batches in flight"),
        (lambda p, m, n: [n / p] * p, "that is one micro-batch"),
        (lambda p, m, n: [min(p, m) * n / p] * p, "right for the first rank"),
        (lambda p, m, n: [min(r + 1, m) * n / p for r in range(p)], "the other way round"),
        (lambda p, m, n: [m * n / p] * p, "that is GPipe"),
        (lambda p, m, n: [min(p - 1 - r, m) * n / p for r in range(p)], "that is the warm-up"),
        (lambda p, m, n: [min(p - r, m) * n for r in range(p)], "only layers / p of the layers"),
        (lambda p, m, n: in_flight(p, m, n)[:-1], "gives 0 numbers, not 1"),
        (lambda p, m, n: n, "not a list"),
        (lambda p, m, n: None, "is a return missing"),
        (lambda p, m, n: ["many"] * p, "'many' is not a number"),
    ],
    "held_bytes": [
        (
            lambda rank, i, x: counted(rank, x, size=lambda t: t.numel()),
            "those are numbers, not bytes",
        ),
        (
            lambda rank, i, x: counted(rank, x.requires_grad_(), weights=True),
            "the weights are among",
        ),
        (
            lambda rank, i, x: counted(rank, x.requires_grad_(), once=False, weights=True),
            "counted twice, and the weights too",
        ),
        (lambda rank, i, x: counted(rank, x, once=False), "some storages are counted twice"),
        (lambda rank, i, x: counted(rank, x, size=lambda t: 1), "how many tensors"),
        (only_output, "that is the output alone"),
        (lambda rank, i, x: counted(rank, x, weights=True), "the weights are among"),
        (outside, "has to run inside the with-block"),
        (inputs_forgotten, "the input is missing"),
        (lambda rank, i, x: None, "gives None, not a number of bytes: is a return missing"),
        (lambda rank, i, x: rank.module(x), "not a number of bytes"),
        (lambda rank, i, x: rank.modul(x), "no attribute 'modul'"),
    ],
    "full": [
        (no_recompute, "the first run of a layer is recorded"),
        (full_with(again(grad_on=True)), "the first run of a layer is recorded"),
        (full_with(again(restored=False)), "the random stream is not where it was in the first"),
        (
            full_with(again(restored=False, stream_back=False)),
            "the random stream is not where it was in the first",
        ),
        (full_with(again(stream_back=False)), "put the stream back where you found it"),
        (full_with(again(recorded=False)), "turn it on with torch.enable_grad"),
        (full_with(again(), requires=False), "Nothing that the step gave leads anywhere"),
        (full_with(again(), loss=False), "not the loss, a scalar"),
        (full_with(again(), share=False), "m = 4 times too large"),
        (full_with(again(gradients=lambda grads: grads[0])), "incorrect number of gradients"),
        (full_with(again(gradients=lambda grads: (None, None, None))), "Was the input detached"),
        (without_graph, "under torch.no_grad.., leaves no graph"),
        (layers_left_out, "rank 2: the gradient of"),
        (lambda rank, i, x: None, "gave None, not"),
    ],
    "selective": [
        (full_with(again()), "a layer runs without recording. Only its core should"),
        (no_recompute, "the first run of a core is recorded"),
        (selective_with(again(restored=False)), "in the second run of a core the random stream"),
        (selective_with(again(stream_back=False)), "put the stream back where you found it"),
        (selective_with(again(recorded=False)), "turn it on with torch.enable_grad"),
        (
            selective_with(again(gradients=lambda grads: (None, None, grads[0], None, None))),
            "the gradient of block",
        ),
        (core_under_no_grad, "the gradient of block"),
        (selective_with(again(), core="cor"), "no attribute 'cor'"),
        (lambda rank, i, x: None, "gave None, not"),
    ],
    "layer_bytes": [
        (functools.partial(paper, masks=0, core_masks=0), "the dropout masks are missing"),
        (
            functools.partial(paper, sbh=18, masks=0, core=3, core_masks=0),
            "a dropout mask takes one byte",
        ),
        (functools.partial(paper, sbh=14), "a LayerNorm keeps its input too"),
        (functools.partial(paper, sbh=10), "four times as wide inside"),
        (functools.partial(paper, sbh=13), "q, k and v are kept"),
        (functools.partial(paper, heads=1), "every head has s × s weights"),
        (lambda s, b, h, a, n, what: paper(s, b, h, a, 2, what), "use `number`"),
        (lambda s, b, h, a, n, what: paper(s, b, h, a, n, what) / n, "numbers, not bytes"),
        (
            lambda s, b, h, a, n, what: paper(s, b, h, a, n, what) * (what != "full"),
            "has to keep the layer's input",
        ),
        (
            lambda s, b, h, a, n, what: paper(s, b, h, a, n, "none" if what == "none" else "full"),
            "gives up the core only",
        ),
        (lambda s, b, h, a, n, what: paper(s, b, h, a, n), "look at `recompute`"),
        (functools.partial(paper, core=1), "Go through Layer.forward line by line"),
        (lambda s, b, h, a, n, what: None, "is a return missing"),
    ],
    "recomputed": [
        (lambda p, r, i, n: i % (p - r) < n, "the other way round: n micro-batches"),
        (lambda p, r, i, n: i < n, "the other way round, and only at the start"),
        (lambda p, r, i, n: i % p >= n, "the window is the same on all ranks"),
        (lambda p, r, i, n: i % max(p - 1 - r, 1) >= n, "the window is the warm-up"),
        (lambda p, r, i, n: i >= n, "only the first n of the step"),
        (lambda p, r, i, n: i % (r + 1) >= n, "the ranks are the wrong way round"),
        (lambda p, r, i, n: True, "that is full recompute"),
        (lambda p, r, i, n: False, "that computes nothing again"),
        (lambda p, r, i, n: i % (p - r) > n, "Micro-batches count from 0"),
        (lambda p, r, i, n: i % (p - r), "not True or False"),
        (lambda p, r, i, n: None, "is a return missing"),
        (lambda p, r, i, n: i % (p - 1 - r) >= n, "ZeroDivisionError"),
    ],
    "parse_layout": [
        (lambda text: text.split("|"), "'Et\\*3.*x\\*n is n times x|commas are only there"),
        (lambda text: text.replace(",", "").split("|"), "x\\*n is n times x"),
        (split_first, "repeat first, then split|x\\*n is n times x|stages, not"),
        (one_digit, "'\\d' is left in the stages: a count of two digits"),
        (whole_stage, "stage 0 is .*x\\*n repeats x only"),
        (without_brackets, "what is in the brackets"),
        (lambda text: [s for s in by_expressions(text) if s], "nothing between two bars"),
        (lambda text: [list(s) for s in by_expressions(text)], "not a string of letters"),
        (lambda text: len(by_expressions(text)), "not a list of strings"),
        (lambda text: [*by_expressions(text), ""], "no stage follows the last bar"),
        (
            lambda text: [s.replace("m", "t") for s in by_expressions(text)],
            "stage 30 is 't', not 'm'",
        ),
        (lambda text: None, "is a return missing"),
    ],
    "split": [
        (even, "layers' worth, and the cap is 16: that is the even split"),
        (by_memory_alone, "the slowest stage, 3, takes"),
        (fewer_on_the_last, "rank 0 holds 4 micro-batches"),
        (
            lambda layers, p, cap, embedding, loss: water(layers, p, cap, embedding, 0),
            "Was the loss counted",
        ),
        (
            lambda layers, p, cap, embedding, loss: water(layers, p, cap, 0, loss),
            "Was the embedding counted",
        ),
        (
            lambda layers, p, cap, embedding, loss: water(layers - 1, p, cap, embedding, loss),
            "those are 23 layers, not 24",
        ),
        (
            lambda layers, p, cap, embedding, loss: [cap / (p - r) for r in range(p)],
            "a whole number of layers",
        ),
        (
            lambda layers, p, cap, embedding, loss: [layers] + [0] * (p - 1),
            "at least 1",
        ),
        (
            lambda layers, p, cap, embedding, loss: even(layers, p - 1, cap, 0, 0),
            "3 numbers, not 4",
        ),
        (lambda layers, p, cap, embedding, loss: layers, "not a list, how many layers"),
        (lambda layers, p, cap, embedding, loss: None, "is a return missing"),
    ],
    "freed": [
        (forward_step, free, backward_ordinary, "Mismatch in shape|shape"),
        (forward_step, free_zeroes, backward_step, "still holds"),
        (forward_step, free_another_name, backward_step, "Other names"),
        (forward_step, free_deleted, backward_step, "still holds"),
        (forward_step, free_slice, backward_step, "still holds"),
        (forward_step, free_detached, backward_step, "free took the graph away"),
        (forward_step, free_resized, backward_step, "cannot resize variables that require grad"),
        (forward_step, free, backward_sum, "the gradient|shape"),
        (forward_step, free, backward_shrunk, "starts from a gradient of shape|shape"),
        (forward_step, free, backward_returns_dy, "gave None"),
        (forward_step, lambda y: None, backward_step, "takes 1 positional argument"),
    ],
}

# The backward that goes with a recomputing forward_step is given.
for _zoo in (RIGHT, WRONG):
    for _name in ("full", "selective"):
        _zoo[_name] = [(step, plain_backward, *message) for step, *message in _zoo[_name]]
