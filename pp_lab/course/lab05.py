"""The checks of labs/05_memory.ipynb, its model, and its meter of held bytes.

A learner's step may run where nothing of it is seen but its results. So the layers themselves
watch how they are run: see `_Watched` and `_Sent`.
"""

import contextlib
import functools
import itertools
import re
import weakref
from fractions import Fraction
from numbers import Integral, Real

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from ..run import Lab
from ..run.launch import NotAttempted, RunError, launch
from ..run.rank import StepError, backward_step, forward_step
from ..schedule import Cost, Model, schedules, simulate
from .exercise import exercise, recognised

COST = Cost(F=1, B=2)
SIZES = [(1, 1), (2, 1), (2, 2), (3, 4), (4, 2), (4, 8), (5, 3), (8, 32)]


# Lines about a frame of this package or of torch, and the code that follows them.
FRAMES = r"\n  \S*/(pp_lab/course|torch)/[^\n]*, line \d+, in \w+(\n    [^\n]*)?"


# ---- the model


class Layer(nn.Module):
    """A transformer layer, [rows, s, h] to the same; its dropout draws from `self.stream`."""

    def __init__(self, h=16, heads=2, dropout=0.1, seed=0):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.stream = torch.Generator().manual_seed(seed)
        self.norm1, self.norm2 = (nn.LayerNorm(h, dtype=torch.float64) for _ in range(2))
        shapes = {"qkv": (h, 3 * h), "proj": (h, h), "up": (h, 4 * h), "down": (4 * h, h)}
        for name, (n, k) in shapes.items():
            linear = nn.Linear(n, k, dtype=torch.float64)
            with torch.no_grad():
                for parameter in linear.parameters():
                    parameter.normal_(0, n**-0.5, generator=self.stream)
            self.add_module(name, linear)

    def forward(self, x, core=None):
        parts = self.qkv(self.norm1(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = (core or self.core)(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.drop(self.proj(mixed))
        return x + self.drop(self.down(nn.functional.gelu(self.up(self.norm2(x)))))

    def core(self, q, k, v):
        """Attention itself: few weights, but tensors of [rows, heads, s, s]."""
        scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5
        return self.drop(scores.softmax(-1)) @ v

    def drop(self, x):
        kept = torch.rand(x.shape, generator=self.stream) >= self.dropout
        return x * kept.to(x.device) / (1 - self.dropout)


def transformer(
    p, m, layers=None, *, s=32, h=16, heads=2, dropout=0.1, seed=0, make=Layer, cut=None
):
    """A `Lab` of p stages whose blocks are `Layer`s, two micro-batch rows each."""
    layers = 2 * p if layers is None else layers
    generator = torch.Generator().manual_seed(seed)
    inputs, targets = (
        torch.randn(2 * m, s, h, generator=generator, dtype=torch.float64) for _ in range(2)
    )
    blocks = [make(h, heads, dropout, seed=100 * seed + k) for k in range(layers)]
    return Lab(p, m, blocks=blocks, inputs=inputs, targets=targets, seed=seed, cut=cut)


class _Again(torch.autograd.Function):
    """Run a part of a layer without recording it, and again when its backward comes."""

    @staticmethod
    def forward(ctx, run, stream, *inputs):
        ctx.run, ctx.stream, ctx.state = run, stream, stream.get_state()
        ctx.save_for_backward(*inputs)
        return run(*inputs)

    @staticmethod
    def backward(ctx, dy):
        inputs = [t.detach().requires_grad_() for t in ctx.saved_tensors]
        now = ctx.stream.get_state()
        ctx.stream.set_state(ctx.state)
        with torch.enable_grad():
            y = ctx.run(*inputs)
        ctx.stream.set_state(now)
        torch.autograd.backward(y, dy)
        return None, None, *(t.grad for t in inputs)


def keeping(what):
    """A forward_step on `Layer`s that keeps "all", "all but the core" or "inputs" of them."""
    if what not in ("all", "all but the core", "inputs"):
        raise ValueError(f"{what!r}: choose all, all but the core, or inputs")

    def step(rank, i, x):
        x.requires_grad_()
        for layer in rank.module:
            if what == "inputs":
                x = _Again.apply(layer, layer.stream, x)
            elif what == "all":
                x = layer(x)
            else:
                x = layer(x, core=functools.partial(_Again.apply, layer.core, layer.stream))
        return rank.share(i, rank.loss(i, x)) if rank.is_last else x

    return step


# ---- the meter


def held(lab, program, *, outputs=True, again=True, forward_step=forward_step, recompute=None):
    """The most bytes that each rank holds for its backwards, on a real run: a list of ints.

    Saved-tensor hooks see what autograd keeps. Every storage counts once, as long as it is there;
    weights and data do not. A stage's input counts too, and its output unless `outputs` is False;
    and what a backward computes again, while that lives, unless `again` is False.
    """

    def forward(rank, i, x):
        meter, key = rank.__dict__.setdefault("meter", _Meter(rank)), (rank._stage, i)
        once_more = key in meter.inputs
        if rank.is_first:  # there x is a view of the whole batch, which is data
            x = meter.inputs.get(key, x.detach().clone())
        meter.inputs[key] = x
        counts = again or not once_more
        with meter.hooks(key, counts):
            y = forward_step(rank, i, x)
        meter.add(key, x)
        if outputs and not rank.is_last and not once_more:
            meter.outputs[key] = y
        if counts:
            meter.look()
        return y

    def backward(rank, i, x, y, dy):
        meter, key = rank.__dict__["meter"], (rank._stage, i)
        with meter.hooks(key, again):  # for what is run again inside the backward
            dx = backward_step(rank, i, meter.inputs[key], y, dy)
        meter.done(key)
        return dx

    lines = []
    lab.run(
        program,
        forward_step=forward,
        backward_step=backward,
        recompute=recompute,
        start=functools.partial(launch, echo=lines.append),
    )
    found = dict(line.removeprefix("[rank ").split("] meter ") for line in lines)
    return [int(found[rank]) for rank in sorted(found, key=int)]


class _Meter:
    """The storages that were added for micro-batches, as long as they are there."""

    def __init__(self, rank):
        self.alive, self.inputs, self.outputs, self.peak = {}, {}, {}, 0
        self.left = rank.microbatches * len(rank.modules)
        not_counted = [*(rank._inputs or ()), *(rank._targets or ())]
        for module in rank.modules.values():
            not_counted += module.parameters()
        self.not_counted = {t.untyped_storage().data_ptr() for t in not_counted}

    def hooks(self, key, on):
        """Hooks that count what autograd keeps of what is run inside; or none."""

        def pack(tensor):
            self.add(key, tensor)
            self.look()
            return tensor

        return (
            torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
            if on
            else contextlib.nullcontext()
        )

    def add(self, key, tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.not_counted:
            self.alive[storage.data_ptr()] = key, StorageWeakRef(storage), storage.nbytes()

    def look(self):
        self.alive = {k: kept for k, kept in self.alive.items() if not kept[1].expired()}
        sizes = {k: size for k, (*_, size) in self.alive.items()}
        for y in self.outputs.values():  # what they hold now: a message may hold on for longer
            sizes[y.untyped_storage().data_ptr()] = y.untyped_storage().nbytes()
        self.peak = max(self.peak, sum(sizes.values()))

    def done(self, key):
        self.alive = {k: kept for k, kept in self.alive.items() if kept[0] != key}
        del self.inputs[key]
        self.outputs.pop(key, None)
        self.left -= 1
        if not self.left:
            print(f"meter {self.peak}")


# ---- exercises


@exercise(points=1)
def held_layers(verdict, answer):
    """`held_layers(p, m, layers)`: how many layers' activations each rank of 1F1B holds."""
    mistakes = [
        (
            lambda p, m, n: [n * (p - r) / p for r in range(p)],
            "with few micro-batches there are not so many in flight",
        ),
        (
            lambda p, m, n: [min(p - r, m) for r in range(p)],
            "those are micro-batches in flight. A rank holds the activations of its own layers, "
            "layers / p of them, for each",
        ),
        (
            lambda p, m, n: [n / p] * p,
            "that is one micro-batch. How many are in flight on each rank?",
        ),
        (
            lambda p, m, n: [min(p, m) * n / p] * p,
            "that is right for the first rank. Later ranks wait less for their backward",
        ),
        (
            lambda p, m, n: [min(r + 1, m) * n / p for r in range(p)],
            "the other way round: the first rank waits longest for a backward",
        ),
        (
            lambda p, m, n: [m * n / p] * p,
            "that is GPipe, which keeps all m micro-batches until the first backward",
        ),
        (
            lambda p, m, n: [min(p - 1 - r, m) * n / p for r in range(p)],
            "that is the warm-up. One more forward runs before the first backward",
        ),
        (
            lambda p, m, n: [min(p - r, m) * n for r in range(p)],
            "each rank has only layers / p of the layers",
        ),
    ]
    cases = [(p, m, layers) for p, m in verdict.sizes(SIZES) for layers in (2 * p, 96)]
    for p, m, layers in cases:
        call = f"held_layers(p={p}, m={m}, layers={layers})"
        value = answer(p, m, layers)
        _row(verdict, call, value, p, "a number for each rank")
        peaks = simulate(schedules.one_f_one_b(p, m), COST).peak_activations
        right = [Fraction(peak * layers, p) for peak in peaks]
        wrong = [r for r in range(p) if abs(value[r] - right[r]) > 1e-9 * layers]
        if wrong:
            r = wrong[0]
            known = recognised(answer, mistakes, cases)
            verdict.fail(
                f"{call}: {_show(value[r])} on rank {r}, but the simulated 1F1B holds "
                f"{_show(right[r])}" + (f": {known}" if known else "")
            )
    verdict.expect(True, f"equal to the simulated peaks for {len(cases)} sizes", "")
    p, m = verdict.size(4, 8)
    peaks = Lab(p, m).run(schedules.one_f_one_b(p, m)).peak_activations
    verdict.expect(
        [float(n) for n in answer(p, m, 2 * p)] == [2.0 * n for n in peaks],
        f"p={p}, m={m}, two layers per rank: {[2 * n for n in peaks]}, as counted on real ranks",
        f"p={p}, m={m}, two layers per rank: the ranks counted {[2 * n for n in peaks]}",
        points=1,
    )


@exercise(points=2)
def held_bytes(verdict, answer):
    """`held_bytes(rank, i, x)`: what autograd keeps of the stage's forward, in bytes."""

    def step(rank, i, x):
        problem = _bytes_problem(rank, answer(rank, i, x.detach().clone()))
        if problem:
            raise StepError(problem)
        return forward_step(rank, i, x)

    for (p, m), options in zip(
        verdict.sizes([(3, 4), (2, 3), (2, 2)]),
        ({}, {"activation": "gelu", "dtype": "float32"}, {"activation": "identity"}),
        strict=True,
    ):
        kind = options.get("activation", "tanh"), options.get("dtype", "float64")
        lab = Lab(p, m, seed=verdict.seed(p), **options)
        _run(verdict, lab, schedules.one_f_one_b(p, m), forward_step=step)
        verdict.expect(True, f"p={p}, m={m}, {kind[0]}, {kind[1]}: every rank's bytes", "")
    verdict.points += 2


def _bytes_problem(rank, got):
    """What is wrong with a learner's number of bytes, or None."""
    if isinstance(got, bool) or not isinstance(got, Real):
        missing = ": is a return missing?" if got is None else ""
        return f"held_bytes gives {got!r}, not a number of bytes{missing}"
    weights = {p.untyped_storage().data_ptr() for p in rank.module.parameters()}
    x, saved = rank.empty().normal_(), []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor
    ):
        y = rank.module(x)
    sizes = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in saved}
    right = sum(size for pointer, size in sizes.items() if pointer not in weights)
    if got == right:
        return None
    every = sum(t.nbytes for t in saved)
    ours = [t for t in saved if t.untyped_storage().data_ptr() not in weights]
    # The first Linear saves its weight too, if the stage's input needs a gradient.
    first = next(rank.module.parameters()).nbytes
    mistakes = [
        (
            {right // y.element_size()},
            "those are numbers, not bytes: a number takes tensor.element_size() bytes",
        ),
        (
            {sum(sizes.values()), sum(sizes.values()) + first},
            "the weights are among them. Autograd saves them too, but they are there anyway, not "
            "once per micro-batch: leave out the storages of rank.module.parameters()",
        ),
        (
            {every, every + first},
            "some tensors are counted twice, and the weights too. What one operation gives the "
            "next one takes, and both save the same storage: count each data_ptr() once, and "
            "leave out those of rank.module.parameters()",
        ),
        (
            {sum(t.nbytes for t in ours)},
            "some storages are counted twice: what one operation gives the next one takes, and "
            "both save it. Count each untyped_storage().data_ptr() once",
        ),
        ({len({t.data_ptr() for t in ours})}, "that is how many tensors, not their bytes"),
        ({y.nbytes}, "that is the output alone. What do the operations inside save?"),
        ({0}, "no tensor was seen: the stage has to run inside the with-block, on rank.module(x)"),
        (
            {right - x.nbytes},
            "the input is missing: the first Linear saves it for its weight gradient",
        ),
    ]
    known = next((text for values, text in mistakes if got in values), None)
    return f"held_bytes gives {got}, but autograd keeps {right} bytes of this stage" + (
        f": {known}" if known else ". Count each storage once, and no weights"
    )


@exercise(points=4)
def full(verdict, answer, backward_step):
    """`full_step(rank, i, x)`: keeps each layer's input only, and runs the layer again."""
    _recomputing(verdict, answer, backward_step, "full", [(3, 4), (1, 3), (2, 2), (4, 2)])


@exercise(points=2)
def selective(verdict, answer, backward_step):
    """`selective_step(rank, i, x)`: runs only the attention core again."""
    _recomputing(verdict, answer, backward_step, "selective", [(3, 4), (1, 3)])


def _recomputing(verdict, answer, backward_step, rule, sizes):
    # Where steps run apart from their rank, a graph that one leaves only the other can follow.
    steps = {"forward_step": answer, "backward_step": backward_step}
    make = {"full": _RunAgain, "selective": _CoreAgain}[rule]
    for p, m in verdict.sizes(sizes):
        lab = transformer(p, m, seed=verdict.seed(p), s=8, h=8, dropout=0.2, make=make)
        run = _run(
            verdict,
            lab,
            schedules.one_f_one_b(p, m),
            no_graph="Nothing that the step gave leads anywhere: the first rank's data need no "
            "gradient until x.requires_grad_(), and a second run that is not recorded, or a step "
            "under torch.no_grad(), leaves no graph",
            **steps,
        )
        verdict.agree(lab, run, points=1)


class _Watched(Layer):
    """A `Layer` that looks at how it is run, and objects. Only in a rank: the reference may."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.first, self.after = {}, None

    def watched(self, what, run, *inputs):
        """Run `what`: first without recording, then once more, recorded, with the same dropout."""
        key, recorded = _content(inputs[0]), torch.is_grad_enabled()
        if key not in self.first:
            if recorded:
                raise StepError(
                    f"the first run of {what} is recorded, so autograd keeps all that is in it. "
                    "Run it inside your autograd.Function's forward, or under torch.no_grad()"
                )
            self.first[key] = self.stream.get_state()
        elif not recorded:
            raise StepError(
                f"the second run of {what} is not recorded, so nothing leads back to its weights. "
                "A backward runs with recording off: turn it on with torch.enable_grad()"
            )
        elif not torch.equal(self.first[key], self.stream.get_state()):
            raise StepError(
                f"in the second run of {what} the random stream is not where it was in the first, "
                "so dropout would drop other numbers. Keep stream.get_state() in the forward, "
                "and set it again before the second run"
            )
        return run(*inputs)

    def untouched(self):
        """A first run has to find the stream where the first run before it left it."""
        if self.after is not None and not torch.equal(self.after, self.stream.get_state()):
            raise StepError(
                "a forward finds the random stream elsewhere than the forward before it left it: "
                "after the second run, put the stream back where you found it"
            )


class _RunAgain(_Watched):
    def forward(self, x, core=None):
        if not dist.is_initialized():
            return super().forward(x, core)
        again = _content(x) in self.first
        if not again:
            self.untouched()
        y = self.watched("a layer", super().forward, x)
        if not again:
            self.after = self.stream.get_state()
        return y


class _CoreAgain(_Watched):
    def forward(self, x, core=None):
        if not dist.is_initialized():
            return super().forward(x, core)
        key = _content(x)
        if key in self.first:
            raise StepError(
                "a whole layer runs twice. Only its core should: the rest is expensive to compute "
                "and cheap to keep"
            )
        if not torch.is_grad_enabled():
            raise StepError(
                "a layer runs without recording. Only its core should: pass one that runs without, "
                "layer(x, core=…)"
            )
        self.untouched()
        self.first[key] = None
        y = super().forward(x, core)
        self.after = self.stream.get_state()
        return y

    def core(self, q, k, v):
        run = super().core
        return self.watched("a core", run, q, k, v) if dist.is_initialized() else run(q, k, v)


def _content(tensor):
    """What a tensor holds, whichever object it is."""
    return tensor.detach().cpu().contiguous().numpy().tobytes()


@exercise(points=2)
def layer_bytes(verdict, answer):
    """`layer_bytes(s, b, h, a, number, recompute)`: a transformer layer's activations."""
    kinds = ("none", "selective", "full")

    def formula(sbh, masks, core, core_masks, inputs=1):
        def bytes_(s, b, h, a, number, recompute):
            if recompute == "full":
                return inputs * number * s * b * h
            kept = (sbh * number + masks) * s * b * h
            return kept + (core * number + core_masks) * a * s * s * b * (recompute == "none")

        return bytes_

    right = formula(16, 2, 2, 1)
    mistakes = [
        (formula(16, 0, 2, 0), "the dropout masks are missing, a byte for each number dropped out"),
        (
            formula(18, 0, 3, 0),
            "a dropout mask takes one byte for each number, whatever a number takes",
        ),
        (
            formula(14, 2, 2, 1),
            "a LayerNorm keeps its input too, and there are two of them",
        ),
        (
            formula(10, 2, 2, 1),
            "the MLP is four times as wide inside: what goes into gelu and what comes out of it "
            "are 4h wide",
        ),
        (formula(13, 2, 2, 1), "q, k and v are kept for the core's backward"),
        (
            lambda s, b, h, a, number, recompute: right(s, b, h, 1, number, recompute),
            "every head has s × s weights of its own",
        ),
        (
            lambda s, b, h, a, number, recompute: right(s, b, h, a, 2, recompute),
            "that is for two bytes a number: use `number`",
        ),
        (
            lambda s, b, h, a, number, recompute: right(s, b, h, a, number, recompute) / number,
            "those are numbers, not bytes",
        ),
        (formula(16, 2, 2, 1, inputs=0), "full recompute has to keep the layer's input"),
        (
            lambda s, b, h, a, number, recompute: right(
                s, b, h, a, number, "none" if recompute == "none" else "full"
            ),
            "selective recompute gives up the core only, what is s × s large",
        ),
        (
            lambda s, b, h, a, number, recompute: right(s, b, h, a, number, "none"),
            "it does not depend on what is computed again: look at `recompute`",
        ),
    ]
    shapes = [(2048, 1, 12288, 96), (2048, 4, 6144, 64), (32, 2, 16, 2)]
    if verdict.random:
        shapes = [
            (s * verdict.random.randint(1, 3), b, 8 * a * verdict.random.randint(1, 9), a)
            for s, b, _, a in shapes
        ]
    cases = [(*shape, n, kind) for shape in shapes for n in (2, 8, 4) for kind in kinds]
    for s, b, h, a, number, recompute in cases:
        call = f"layer_bytes(s={s}, b={b}, h={h}, a={a}, number={number}, {recompute!r})"
        value = verdict.number(call, answer(s, b, h, a, number, recompute))
        paper = Model(1, h, a, s, b, recompute=recompute).layer_bytes
        want = paper if number == 2 else right(s, b, h, a, number, recompute)
        if abs(value - want) > 1e-9 * want:
            known = recognised(answer, mistakes, cases)
            verdict.fail(
                f"{call} is {value:,}, but a layer keeps {want:,} bytes"
                + (f": {known}" if known else ". Go through Layer.forward line by line")
            )
    verdict.expect(True, f"equal to the paper's formula, and for other numbers: {len(cases)} cases",
                   "", points=1)  # fmt: skip
    for what, recompute in (("all", "none"), ("all but the core", "selective")):
        s, h, heads = 48, 32, 4
        lab = transformer(1, 1, 1, s=s, h=h, heads=heads, dropout=0.1)
        (measured,) = held(
            lab, schedules.gpipe(1, 1), outputs=False, again=False, forward_step=_unscored(what)
        )
        value = answer(s, 2, h, heads, 8, recompute)
        statistics = 2 * 2 * 8 * s * 2  # mean and deviation of both LayerNorms
        verdict.expect(
            value + statistics == measured,
            f"a layer keeps {measured:,} bytes, measured with recompute {recompute!r}: yours, "
            f"and {statistics:,} of the LayerNorms' statistics, which the paper leaves out",
            f"measured with recompute {recompute!r}: {measured:,} bytes",
        )
    verdict.points += 1


def _unscored(what):
    """As `keeping`, with a loss that keeps nothing: for a single layer's own bytes."""
    step = keeping(what)

    def forward(rank, i, x):
        rank.__dict__["loss"], rank.__dict__["share"] = (
            (lambda i, y: y.sum()),
            (lambda i, loss: loss),
        )
        return step(rank, i, x)

    return forward


@exercise(points=3)
def recomputed(verdict, answer):
    """`recomputed(p, r, i, n)`: Megatron's rule by micro-batch."""
    sizes = verdict.sizes([(4, 8), (4, 12), (3, 3), (1, 4), (6, 15)])
    mistakes = [
        (
            lambda p, r, i, n: i % (p - r) < n,
            "the other way round: n micro-batches of each window are kept whole, the others are "
            "computed again",
        ),
        (
            lambda p, r, i, n: i < n,
            "the other way round, and only at the start: the first n of each window are kept whole",
        ),
        (
            lambda p, r, i, n: i % p >= n,
            "the window is the same on all ranks. Rank r has p-1-r forwards of warm-up, so at most "
            "p-r in flight: later stages have room for more",
        ),
        (
            lambda p, r, i, n: i % max(p - 1 - r, 1) >= n,
            "the window is the warm-up. One more is in flight: warm-up + 1",
        ),
        (
            lambda p, r, i, n: i >= n,
            "only the first n of the step are kept whole. When their backwards are done, there is "
            "room again: start a new window every p-r micro-batches",
        ),
        (
            lambda p, r, i, n: i % (r + 1) >= n,
            "the ranks are the wrong way round: rank 0 has the longest warm-up",
        ),
        (lambda p, r, i, n: True, "that is full recompute, of every micro-batch"),
        (lambda p, r, i, n: False, "that computes nothing again"),
        (
            lambda p, r, i, n: i % (p - r) > n,
            "of a window, n + 1 are kept whole. Micro-batches count from 0",
        ),
    ]
    table = {}
    for p, m in sizes:
        for r, i, n in itertools.product(range(p), range(m), range(p + 1)):
            value = answer(p, r, i, n)
            if not isinstance(value, bool):
                missing = ": is a return missing?" if value is None else ""
                verdict.fail(
                    f"recomputed(p={p}, r={r}, i={i}, n={n}) gives {value!r}, not True or "
                    f"False{missing}"
                )
            table[p, m, r, i, n] = value

    def known():
        for wrong, text in mistakes:
            if all(bool(wrong(p, r, i, n)) == value for (p, _, r, i, n), value in table.items()):
                return f": {text}"
        return ""

    for (p, m), n in ((size, n) for size in sizes for n in range(size[0] + 1)):
        for r in range(p):
            window, where = p - r, f"p={p}, m={m}, n={n}, rank {r}"
            whole = [i for i in range(m) if not table[p, m, r, i, n]]
            most = max(sum(i <= j < i + window for j in whole) for i in range(m))
            if most > n:
                verdict.fail(f"{where} keeps {most} micro-batches whole at once, not {n}{known()}")
            best = m // window * min(n, window) + min(n, m % window)
            if len(whole) < best:
                verdict.fail(
                    f"{where}: {m - len(whole)} micro-batches are computed again, but "
                    f"{m - best} are enough{known()}"
                )
    verdict.expect(
        True,
        f"never more than n whole in flight, and no recompute too many, for {len(sizes)} sizes "
        "and every n",
        "",
        points=2,
    )
    p, m = verdict.size(4, 8)
    lab, n = Lab(p, m, seed=verdict.seed(p)), 1
    for r, i in itertools.product(range(p), range(m)):
        table[r, i] = answer(p, r, i, n)
    run = lab.run(schedules.one_f_one_b(p, m), recompute=lambda stage, i: table[stage, i])
    verdict.agree(lab, run, points=1)


@exercise(points=2)
def parse_layout(verdict, answer):
    """`parse_layout(text)`: the stages of Megatron's layout string, a string of letters each."""
    texts = ["Ett|tt|ttL", "E,tt|t,t|tL", "Et*3|t*2|tL", "E|(tt|)*3L", "Et*3|(tt|)*29,m|L",
             "E(t|tt)*2|L", "(Et|)*1(t|)*12,tL", "E||tL"]  # fmt: skip
    if verdict.random:
        draw = verdict.random.randint
        texts += [f"Et*{draw(2, 12)}|(t*{draw(2, 3)}|)*{draw(10, 14)},{'m' * draw(1, 2)}|L",
                  f"E(t|)*{draw(3, 20)}t*{draw(2, 5)}L"]  # fmt: skip
    for text in texts:
        call, want = f"parse_layout({text!r})", _stages(text)
        stages = answer(text)
        if not isinstance(stages, (list, tuple)):
            missing = ": is a return missing?" if stages is None else ""
            verdict.fail(f"{call} gives {stages!r}, not a list of strings{missing}")
        other = [stage for stage in stages if not isinstance(stage, str)]
        if other:
            verdict.fail(f"{call}: a stage is {other[0]!r}, not a string of letters")
        letters = set("".join(stages)) - set("EtmL")
        if letters:
            sign = min(letters)
            reason = {
                ",": "commas are only there to be read: leave them out",
                "*": "x*n is n times x",
                "|": "the bar is what separates stages, also inside brackets",
                "(": "(…)*n repeats what is in the brackets, bars too",
                ")": "(…)*n repeats what is in the brackets, bars too",
            }.get(sign, "a count of two digits, perhaps" if sign.isdigit() else "what is that?")
            verdict.fail(f"{call}: {sign!r} is left in the stages: {reason}")
        if len(stages) != len(want):
            reason = "bars inside brackets are repeated too"
            if list(stages) == [stage for stage in want if stage]:
                reason = "a stage may be empty: nothing between two bars is a stage too"
            elif len(stages) == text.count("|") + 1:
                reason += ": repeat first, then split at the bars"
            elif stages and not stages[-1] and len(stages) == len(want) + 1:
                reason = "no stage follows the last bar"
            verdict.fail(f"{call} has {len(stages)} stages, not {len(want)}: {reason}")
        for number, (got, right) in enumerate(zip(stages, want, strict=True)):
            if got != right:
                verdict.fail(
                    f"{call}: stage {number} is {got!r}, not {right!r}"
                    + (": x*n repeats x only" if "*" in text else "")
                )
    verdict.expect(True, f"right for {len(texts)} layouts", "", points=2)


def _stages(text):
    """A reader of its own kind: character by character, brackets by recursion."""
    signs = [sign for sign in text if sign != ","]

    def sequence():
        out = ""
        while signs and signs[0] != ")":
            part = signs.pop(0)
            if part == "(":
                part = sequence()
                signs.pop(0)
            if signs and signs[0] == "*":
                signs.pop(0)
                digits = ""
                while signs and signs[0].isdigit():
                    digits += signs.pop(0)
                part *= int(digits)
            out += part
        return out

    return sequence().split("|")


@exercise(points=3)
def split(verdict, answer):
    """`split(layers, p, cap, embedding, loss)`: layers per stage, under a cap on memory."""
    cases = [(24, 4, 16, 1, 1), (24, 4, 24, 0, 0), (32, 4, 20, 2, 3), (12, 3, 9, 0, 2),
             (10, 1, 10, 1, 1), (16, 2, 100, 3, 1), (61, 8, 40, 1, 2)]  # fmt: skip
    if verdict.random:
        for _ in range(6):
            p = verdict.random.randint(2, 7)
            layers = verdict.random.randint(3 * p, 8 * p)
            share = verdict.random.choice((0.6, 0.8, 1.2))
            cap = max(int(share * layers), 2 * p)
            cases.append(
                (layers, p, cap, verdict.random.randint(0, 3), verdict.random.randint(0, 3))
            )
    cases = [case for case in cases if _fastest(*case)]
    for layers, p, cap, embedding, loss in cases:
        call = f"split(layers={layers}, p={p}, cap={cap}, embedding={embedding}, loss={loss})"
        stages = answer(layers, p, cap, embedding, loss)
        _row(verdict, call, stages, p, "how many layers each stage gets")
        call += f" gives {list(stages)}"
        if any(not isinstance(n, Integral) or n < 1 for n in stages):
            verdict.fail(f"{call}: every stage gets a whole number of layers, at least 1")
        if sum(stages) != layers:
            verdict.fail(f"{call}: those are {sum(stages)} layers, not {layers}")
        peaks = simulate(schedules.one_f_one_b(p, 2 * p), COST).peak_activations
        over = [r for r in range(p) if peaks[r] * stages[r] > cap]
        if over:
            r = over[0]
            verdict.fail(
                f"{call}: rank {r} holds {peaks[r]} micro-batches of {stages[r]} layers, "
                f"{peaks[r] * stages[r]} layers' worth, and the cap is {cap}"
                + (": that is the even split" if max(stages) - min(stages) <= 1 else "")
            )
        times = _times(stages, embedding, loss)
        best = max(_times(_fastest(layers, p, cap, embedding, loss), embedding, loss))
        if max(times) > best:
            r = times.index(max(times))
            forgot = ""
            if max(stages) <= best and r in (0, p - 1) and (embedding, loss)[r == p - 1 and r > 0]:
                what = "loss" if r == p - 1 and r > 0 else "embedding"
                forgot = f". Was the {what} counted?"
            verdict.fail(
                f"{call}: the slowest stage, {r}, takes {max(times)}, but {best} is possible"
                + (forgot or ". Which stages have room under the cap, and time?")
            )
    verdict.expect(
        True, f"under the cap, and as fast as can be, for {len(cases)} cases", "", points=2
    )
    layers, p, cap, embedding, loss = cases[0]
    cut = [int(n) for n in answer(layers, p, cap, embedding, loss)]
    lab = Lab(p, 2 * p, blocks=layers, cut=cut, seed=verdict.seed(p))
    verdict.agree(lab, lab.run(schedules.one_f_one_b(p, 2 * p)), points=1)


def _times(stages, embedding, loss):
    """How long each stage takes for a micro-batch, in units of a layer."""
    times = list(stages)
    times[0] += embedding
    times[-1] += loss
    return times


def _fastest(layers, p, cap, embedding, loss):
    """Layers per stage of least longest time; None where the cap is too low."""
    room = [cap // (p - r) for r in range(p)]
    if min(room) < 1 or sum(room) < layers or layers < p:
        return None
    extra = _times([0] * p, embedding, loss)
    for longest in itertools.count(1):
        most = [min(room[r], longest - extra[r]) for r in range(p)]
        if min(most) >= 1 and sum(most) >= layers:
            break
    stages, left = [1] * p, layers - p
    for r in range(p):
        more = min(most[r] - 1, left)
        stages[r], left = stages[r] + more, left - more
    return stages


@exercise(points=3)
def freed(verdict, forward_step, free, backward_step):
    """`free(rank, y)` lets go of a stage output that was sent; `backward_step` copes with it."""

    def program(rank):
        freeing(rank, free)

    for p, m in verdict.sizes([(2, 2), (3, 4), (4, 6)]):
        blocks = [
            block
            for stage in range(p)
            for block in (Layer(8, 2, 0.2, seed=stage), nn.Identity() if stage == p - 1 else Sent())
        ]
        generator = torch.Generator().manual_seed(verdict.seed(p))
        data = [torch.randn(2 * m, 8, 8, generator=generator, dtype=torch.float64) for _ in "xy"]
        lab = Lab(p, m, blocks=blocks, inputs=data[0], targets=data[1])
        run = _run(
            verdict,
            lab,
            program,
            no_graph="free took the graph away: only the values of y are to go",
            forward_step=forward_step,
            backward_step=backward_step,
        )
        verdict.agree(lab, run, points=1)


def _let_go(rank, y):
    y.data = y.new_empty(1)


def freeing(rank, free=_let_go):
    """1F1B that lets go of every output once it is sent."""
    m = rank.microbatches
    warmup = min(rank.size - 1 - rank.index, m)

    def output(i):
        return rank.saved[rank._stage, i][1]

    for i in range(warmup):
        rank.send_forward(i, rank.forward(i, rank.recv_forward(i)))
        free(rank, output(i))
    x = rank.recv_forward(warmup) if warmup < m else None
    for k in range(m - warmup):
        i = warmup + k
        dy = rank.send_forward_recv_backward(i, rank.forward(i, x), k)
        if not rank.is_last:
            free(rank, output(i))
        dx = rank.backward(k, dy)
        if i + 1 < m:
            x = rank.send_backward_recv_forward(k, dx, i + 1)
        else:
            rank.send_backward(k, dx)
    for k in range(m - warmup, m):
        rank.send_backward(k, rank.backward(k, rank.recv_backward(k)))


class Sent(nn.Module):
    """The end of a stage: what it gives must be let go of before its backward."""

    def forward(self, x):
        return _Sent.apply(x) if dist.is_initialized() and torch.is_grad_enabled() else x.clone()


class _Sent(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        ctx.output, ctx.shape = weakref.ref(y), y.shape
        return y

    @staticmethod
    def backward(ctx, dy):
        y = ctx.output()
        if y is not None and y.untyped_storage().nbytes() > y.element_size():
            raise StepError(
                f"when its backward comes, a stage's output still holds "
                f"{y.untyped_storage().nbytes()} bytes: free has to let go of what y itself "
                "holds. Other names, and other tensors, are not y"
            )
        if dy.shape != ctx.shape:
            raise StepError(
                f"the backward starts from a gradient of shape {list(dy.shape)}, but the stage "
                f"gave {list(ctx.shape)}: dy is what the next stage sent, whatever y has become"
            )
        return dy


# ---- small things


def _run(verdict, lab, program, no_graph="", **steps):
    """Run; of what goes wrong, show the learner's own lines only.

    no_graph: what to say where a backward finds nothing that it could follow
    """
    try:
        return lab.run(program, **steps)
    except NotAttempted:
        raise
    except RunError as error:
        said, *lines = re.sub(FRAMES, "", str(error)).split("\n")
    if "does not require grad" in said:
        said += f". {no_graph}"
    verdict.fail("\n".join([said, *lines]))


def _row(verdict, call, value, p, what):
    """`value` is a list of p numbers, or the check ends."""
    if not isinstance(value, (list, tuple)):
        missing = ": is a return missing?" if value is None else ""
        verdict.fail(f"{call} gives {value!r}, not a list, {what}{missing}")
    if len(value) != p:
        verdict.fail(f"{call} gives {len(value)} numbers, not {p}: {what}")
    for number in value:
        if isinstance(number, bool) or not isinstance(number, Real):
            verdict.fail(f"{call}: {number!r} is not a number")


def _show(value):
    return f"{float(value):.6g}"
