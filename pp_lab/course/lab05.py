"""The checks of labs/05_memory.ipynb. Each takes the learner's functions and gives a `Score`.

Layers, recompute and the meter of held bytes are the run room's. The layers that watch how a
learner's step runs them are in watched.py.
"""

import itertools
from fractions import Fraction
from numbers import Integral, Real

from ..plan import Model
from ..run import Lab
from ..run.failures import NotAttempted, RunError, StepError
from ..run.late import Late
from ..schedule import Cost, schedules, simulate
from .exercise import exercise
from .forms import numbers, recognised
from .words import because, call, missing, show

torch = Late("torch")
meter = Late("pp_lab.run.meter")
recompute = Late("pp_lab.run.recompute")
steps = Late("pp_lab.run.rank")
transformer = Late("pp_lab.run.transformer")
watched = Late("pp_lab.course.watched")

COST = Cost(F=1, B=2)
SIZES = [(1, 1), (2, 1), (2, 2), (3, 4), (4, 2), (4, 8), (5, 3), (8, 32)]

# ---- what is held


@exercise(points=1)
def held_layers(verdict, answer):
    """`held_layers(p, m, layers)`: how many layers' activations each rank of 1F1B holds."""
    mistakes = [
        (lambda p, m, n: [n * (p - r) / p for r in range(p)],
         "with few micro-batches there are not so many in flight"),
        (lambda p, m, n: [min(p - r, m) for r in range(p)],
         "those are micro-batches in flight. A rank holds the activations of its own layers, "
         "layers / p of them, for each"),
        (lambda p, m, n: [n / p] * p,
         "that is one micro-batch. How many are in flight on each rank?"),
        (lambda p, m, n: [min(p, m) * n / p] * p,
         "that is right for the first rank. Later ranks wait less for their backward"),
        (lambda p, m, n: [min(r + 1, m) * n / p for r in range(p)],
         "the other way round: the first rank waits longest for a backward"),
        (lambda p, m, n: [m * n / p] * p,
         "that is GPipe, which keeps all m micro-batches until the first backward"),
        (lambda p, m, n: [min(p - 1 - r, m) * n / p for r in range(p)],
         "that is the warm-up. One more forward runs before the first backward"),
        (lambda p, m, n: [min(p - r, m) * n for r in range(p)],
         "each rank has only layers / p of the layers"),
    ]  # fmt: skip
    cases = [(p, m, layers) for p, m in verdict.sizes(SIZES) for layers in (2 * p, 96)]
    p, m = verdict.size(4, 8)
    ran = p, m, 2 * p
    if ran not in cases:
        cases.append(ran)
    given = {}
    for case in cases:
        said, row = call("held_layers", "p m layers", case), answer(*case)
        _row(verdict, said, row, case[0], "a number for each rank")
        given[case] = list(row)
    for case, row in given.items():
        p, m, layers = case
        peaks = simulate(schedules.one_f_one_b(p, m), COST).peak_activations
        for r in range(p):
            right = Fraction(peaks[r] * layers, p)
            if not abs(row[r] - right) <= 1e-9 * layers:
                verdict.fail(
                    f"{call('held_layers', 'p m layers', case)}: {show(row[r])} on rank {r}, but "
                    f"the simulated 1F1B holds {show(right)}" + because(recognised(given, mistakes))
                )
    verdict.expect(True, f"equal to the simulated peaks for {len(cases)} sizes", "")

    def real():
        p, m, _ = ran
        layers = [2 * n for n in Lab(p, m).run(schedules.one_f_one_b(p, m)).peak_activations]
        verdict.expect(
            [float(n) for n in given[ran]] == layers,
            f"p={p}, m={m}, two layers per rank: {layers}, as counted on real ranks",
            f"p={p}, m={m}, two layers per rank: the ranks counted {layers}",
            points=1,
        )

    verdict.on_ranks(1, real)


@exercise(points=2)
def held_bytes(verdict, answer):
    """`held_bytes(rank, i, x)`: what autograd keeps of the stage's forward, in bytes."""

    def step(rank, i, x):
        problem = _bytes_problem(rank, answer(rank, i, x.detach().clone()))
        if problem:
            raise StepError(problem)
        return steps.forward_step(rank, i, x)

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
        return f"held_bytes gives {got!r}, not a number of bytes{missing(got)}"
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
        ({right // y.element_size()},
         "those are numbers, not bytes: a number takes tensor.element_size() bytes"),
        ({sum(sizes.values()), sum(sizes.values()) + first},
         "the weights are among them. Autograd saves them too, but they are there anyway, not "
         "once per micro-batch: leave out the storages of rank.module.parameters()"),
        ({every, every + first},
         "some tensors are counted twice, and the weights too. What one operation gives the "
         "next one takes, and both save the same storage: count each data_ptr() once, and "
         "leave out those of rank.module.parameters()"),
        ({sum(t.nbytes for t in ours)},
         "some storages are counted twice: what one operation gives the next one takes, and "
         "both save it. Count each untyped_storage().data_ptr() once"),
        ({len({t.data_ptr() for t in ours})}, "that is how many tensors, not their bytes"),
        ({y.nbytes}, "that is the output alone. What do the operations inside save?"),
        ({0}, "no tensor was seen: the stage has to run inside the with-block, on rank.module(x)"),
        ({right - x.nbytes},
         "the input is missing: the first Linear saves it for its weight gradient"),
    ]  # fmt: skip
    known = next((text for values, text in mistakes if got in values), None)
    return f"held_bytes gives {got}, but autograd keeps {right} bytes of this stage" + (
        f": {known}" if known else ". Count each storage once, and no weights"
    )


# ---- recompute


@exercise(points=4)
def full(verdict, answer, backward_step):
    """`full_step(rank, i, x)`: keeps each layer's input only, and runs the layer again."""
    sizes = [(3, 4), (1, 3), (2, 2), (4, 2)]
    _recomputes(verdict, answer, backward_step, watched.RunAgain, sizes)


@exercise(points=2)
def selective(verdict, answer, backward_step):
    """`selective_step(rank, i, x)`: runs only the attention core again."""
    _recomputes(verdict, answer, backward_step, watched.CoreAgain, [(3, 4), (1, 3)])


def _recomputes(verdict, answer, backward_step, make, sizes):
    # Where steps run apart from their rank, a graph that one leaves only the other can follow.
    both = {"forward_step": answer, "backward_step": backward_step}
    for p, m in verdict.sizes(sizes):
        lab = transformer.transformer_lab(
            p, m, sequence=8, h=8, dropout=0.2, seed=verdict.seed(p), make=make
        )
        run = _run(
            verdict,
            lab,
            schedules.one_f_one_b(p, m),
            no_graph="Nothing that the step gave leads anywhere: the first rank's data need no "
            "gradient until x.requires_grad_(), and a second run that is not recorded, or a step "
            "under torch.no_grad(), leaves no graph",
            **both,
        )
        verdict.agree(lab, run, points=1)


# What a layer keeps -> the arguments of layer_bytes with which a real one is measured.
MEASURED = {"all": (48, 2, 32, 4, 8, "none"), "all but the core": (48, 2, 32, 4, 8, "selective")}


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
        (formula(18, 0, 3, 0),
         "a dropout mask takes one byte for each number, whatever a number takes"),
        (formula(14, 2, 2, 1), "a LayerNorm keeps its input too, and there are two of them"),
        (formula(10, 2, 2, 1),
         "the MLP is four times as wide inside: what goes into gelu and what comes out of it "
         "are 4h wide"),
        (formula(13, 2, 2, 1), "q, k and v are kept for the core's backward"),
        (lambda s, b, h, a, n, what: right(s, b, h, 1, n, what),
         "every head has s × s weights of its own"),
        (lambda s, b, h, a, n, what: right(s, b, h, a, 2, what),
         "that is for two bytes a number: use `number`"),
        (lambda s, b, h, a, n, what: right(s, b, h, a, n, what) / n,
         "those are numbers, not bytes"),
        (formula(16, 2, 2, 1, inputs=0), "full recompute has to keep the layer's input"),
        (lambda s, b, h, a, n, what: right(s, b, h, a, n, what if what == "none" else "full"),
         "selective recompute gives up the core only, what is s × s large"),
        (lambda s, b, h, a, n, what: right(s, b, h, a, n, "none"),
         "it does not depend on what is computed again: look at `recompute`"),
    ]  # fmt: skip
    shapes = [(2048, 1, 12288, 96), (2048, 4, 6144, 64), (32, 2, 16, 2)]
    if verdict.random:
        shapes = [
            (s * verdict.random.randint(1, 3), b, 8 * a * verdict.random.randint(1, 9), a)
            for s, b, _, a in shapes
        ]
    cases = [(*shape, n, kind) for shape in shapes for n in (2, 8, 4) for kind in kinds]
    cases += MEASURED.values()

    def paper(s, b, h, a, number, recompute):
        if number == 2:
            return Model(1, h, a, s, b, recompute=recompute).layer_bytes
        return right(s, b, h, a, number, recompute)

    def written(s, b, h, a, number, recompute):
        return f"layer_bytes(s={s}, b={b}, h={h}, a={a}, number={number}, {recompute!r})"

    given = numbers(
        verdict,
        answer,
        cases,
        call=written,
        right=paper,
        wrong=lambda case, value, wanted: (
            f"{written(*case)} is {value:,}, but a layer keeps {wanted:,} bytes"
        ),
        mistakes=mistakes,
        otherwise=". Go through Layer.forward line by line",
    )
    verdict.expect(True, f"equal to the paper's formula, and for other numbers: {len(cases)} cases",
                   "", points=1)  # fmt: skip

    def real():
        for what, case in MEASURED.items():
            s, _, h, heads, _, kind = case
            lab = transformer.transformer_lab(1, 1, 1, sequence=s, h=h, heads=heads, dropout=0.1)
            run = lab.run(
                schedules.gpipe(1, 1),
                forward_step=_unscored(what),
                meter=meter.Meter(outputs=False, again=False),
            )
            (kept,) = run.peak_bytes
            statistics = 2 * 2 * 8 * s * 2  # mean and deviation of both LayerNorms
            verdict.expect(
                given[case] + statistics == kept,
                f"a layer keeps {kept:,} bytes, measured with recompute {kind!r}: yours, "
                f"and {statistics:,} of the LayerNorms' statistics, which the paper leaves out",
                f"measured with recompute {kind!r}: {kept:,} bytes",
            )
        verdict.points += 1

    verdict.on_ranks(1, real)


def _unscored(what):
    """As `keeping`, with a loss that keeps nothing: for a single layer's own bytes."""
    step = recompute.keeping(what)

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
    ran = verdict.size(4, 8)
    if ran not in sizes:
        sizes.append(ran)
    mistakes = [
        (lambda p, r, i, n: i % (p - r) < n,
         "the other way round: n micro-batches of each window are kept whole, the others are "
         "computed again"),
        (lambda p, r, i, n: i < n,
         "the other way round, and only at the start: the first n of each window are kept whole"),
        (lambda p, r, i, n: i % p >= n,
         "the window is the same on all ranks. Rank r has p-1-r forwards of warm-up, so at most "
         "p-r in flight: later stages have room for more"),
        (lambda p, r, i, n: i % max(p - 1 - r, 1) >= n,
         "the window is the warm-up. One more is in flight: warm-up + 1"),
        (lambda p, r, i, n: i >= n,
         "only the first n of the step are kept whole. When their backwards are done, there is "
         "room again: start a new window every p-r micro-batches"),
        (lambda p, r, i, n: i % (r + 1) >= n,
         "the ranks are the wrong way round: rank 0 has the longest warm-up"),
        (lambda p, r, i, n: True, "that is full recompute, of every micro-batch"),
        (lambda p, r, i, n: False, "that computes nothing again"),
        (lambda p, r, i, n: i % (p - r) > n,
         "of a window, n + 1 are kept whole. Micro-batches count from 0"),
    ]  # fmt: skip
    given = {}
    for p, m in sizes:
        for case in itertools.product([p], range(p), range(m), range(p + 1)):
            if case not in given:
                given[case] = answer(*case)
            if not isinstance(given[case], bool):
                verdict.fail(
                    f"{call('recomputed', 'p r i n', case)} gives {given[case]!r}, not True or "
                    f"False{missing(given[case])}"
                )
    known = because(recognised(given, mistakes))
    for (p, m), n in ((size, n) for size in sizes for n in range(size[0] + 1)):
        for r in range(p):
            window, where = p - r, f"p={p}, m={m}, n={n}, rank {r}"
            whole = [i for i in range(m) if not given[p, r, i, n]]
            most = max(sum(i <= j < i + window for j in whole) for i in range(m))
            if most > n:
                verdict.fail(f"{where} keeps {most} micro-batches whole at once, not {n}{known}")
            best = m // window * min(n, window) + min(n, m % window)
            if len(whole) < best:
                verdict.fail(
                    f"{where}: {m - len(whole)} micro-batches are computed again, but "
                    f"{m - best} are enough{known}"
                )
    verdict.expect(
        True,
        f"never more than n whole in flight, and no recompute too many, for {len(sizes)} sizes "
        "and every n",
        "",
        points=2,
    )

    def real():
        p, m = ran
        lab = Lab(p, m, seed=verdict.seed(p))
        run = lab.run(schedules.one_f_one_b(p, m), recompute=lambda stage, i: given[p, stage, i, 1])
        verdict.agree(lab, run, points=1)

    verdict.on_ranks(1, real)


# ---- stages of unequal size


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
        said, want = f"parse_layout({text!r})", _stages(text)
        stages = answer(text)
        if not isinstance(stages, (list, tuple)):
            verdict.fail(f"{said} gives {stages!r}, not a list of strings{missing(stages)}")
        other = [stage for stage in stages if not isinstance(stage, str)]
        if other:
            verdict.fail(f"{said}: a stage is {other[0]!r}, not a string of letters")
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
            verdict.fail(f"{said}: {sign!r} is left in the stages: {reason}")
        if len(stages) != len(want):
            reason = "bars inside brackets are repeated too"
            if list(stages) == [stage for stage in want if stage]:
                reason = "a stage may be empty: nothing between two bars is a stage too"
            elif len(stages) == text.count("|") + 1:
                reason += ": repeat first, then split at the bars"
            elif stages and not stages[-1] and len(stages) == len(want) + 1:
                reason = "no stage follows the last bar"
            verdict.fail(f"{said} has {len(stages)} stages, not {len(want)}: {reason}")
        for number, (got, right) in enumerate(zip(stages, want, strict=True)):
            if got != right:
                verdict.fail(
                    f"{said}: stage {number} is {got!r}, not {right!r}"
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
    given = {}
    for layers, p, cap, embedding, loss in cases:
        case = layers, p, cap, embedding, loss
        said = call("split", "layers p cap embedding loss", case)
        stages = answer(*case)
        _row(verdict, said, stages, p, "how many layers each stage gets")
        given[case] = list(stages)
        said += f" gives {list(stages)}"
        if any(not isinstance(n, Integral) or n < 1 for n in stages):
            verdict.fail(f"{said}: every stage gets a whole number of layers, at least 1")
        if sum(stages) != layers:
            verdict.fail(f"{said}: those are {sum(stages)} layers, not {layers}")
        peaks = simulate(schedules.one_f_one_b(p, 2 * p), COST).peak_activations
        over = [r for r in range(p) if peaks[r] * stages[r] > cap]
        if over:
            r = over[0]
            verdict.fail(
                f"{said}: rank {r} holds {peaks[r]} micro-batches of {stages[r]} layers, "
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
                f"{said}: the slowest stage, {r}, takes {max(times)}, but {best} is possible"
                + (forgot or ". Which stages have room under the cap, and time?")
            )
    verdict.expect(
        True, f"under the cap, and as fast as can be, for {len(cases)} cases", "", points=2
    )

    def real():
        layers, p, *_ = cases[0]
        cut = [int(n) for n in given[cases[0]]]
        lab = Lab(p, 2 * p, blocks=layers, cut=cut, seed=verdict.seed(p))
        verdict.agree(lab, lab.run(schedules.one_f_one_b(p, 2 * p)), points=1)

    verdict.on_ranks(1, real)


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


# ---- outputs that were sent


@exercise(points=3)
def freed(verdict, forward_step, free, backward_step):
    """`free(rank, y)` lets go of a stage output that was sent; `backward_step` copes with it."""

    def program(rank):
        freeing(rank, free)

    for p, m in verdict.sizes([(2, 2), (3, 4), (4, 6)]):
        blocks = [
            block
            for stage in range(p)
            for block in (
                transformer.Layer(8, 2, 0.2, seed=stage),
                torch.nn.Identity() if stage == p - 1 else watched.Sent(),
            )
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
        said, *lines = str(error).split("\n")
    if "does not require grad" in said:
        said += f". {no_graph}"
    verdict.fail("\n".join([said, *lines]))


def _row(verdict, said, value, p, what):
    """`value` is a list of p numbers, or the check ends."""
    if not isinstance(value, (list, tuple)):
        verdict.fail(f"{said} gives {value!r}, not a list, {what}{missing(value)}")
    if len(value) != p:
        verdict.fail(f"{said} gives {len(value)} numbers, not {p}: {what}")
    for number in value:
        if isinstance(number, bool) or not isinstance(number, Real):
            verdict.fail(f"{said}: {number!r} is not a number")
