"""The checks of labs/07_moe_overlap.ipynb: each takes the learner's functions, gives a `Score`."""

import re
from fractions import Fraction
from functools import partial

from ..run import Lab
from ..run.failures import NotAttempted, RunError, StepError
from ..run.late import Late
from ..schedule import Layers, schedules, simulate
from ..schedule.layers import TOGETHER, pair_time
from ..schedule.op import EXCHANGES, PARTS
from .exercise import exercise
from .forms import numbers
from .words import missing, row, short, show

torch = Late("torch")

HALF = Fraction(1, 2)
ENQUEUED = [" ".join(node) for node in TOGETHER]  # of Megatron, to be compared with
HIDDEN = 6  # width of the tensors that are exchanged


# ---- how much of a step


@exercise(points=1)
def share(verdict, answer):
    """`share(attn, mlp, a2a)`: which part of a step on one stream the all-to-alls take."""
    mistakes = [
        (lambda t, e, a: 2 * a / (t + e + 2 * a),
         "that is a forward by itself, or a backward without its weight gradients. The backward "
         "goes through the same layer, has two all-to-alls too, and computes twice as much"),
        (lambda t, e, a: 4 * a / (t + e + 4 * a),
         "the computing pieces are those of the forward only. A backward computes the gradient "
         "of the input and that of the weights, as much as a forward each"),
        (lambda t, e, a: 4 * a / (4 * t + 4 * e + 4 * a),
         "count the computing pieces again: a backward computes the gradient of the input and "
         "that of the weights, as much as a forward each, so three of attn and three of mlp"),
        (lambda t, e, a: 2 * a / (3 * t + 3 * e + 2 * a),
         "count the all-to-alls again: dispatch and combine, in the forward and in the backward"),
        (lambda t, e, a: 4 * a / (3 * t + 3 * e),
         "that is communication over computation. Divide by the whole step, which has both"),
        (lambda t, e, a: (3 * t + 3 * e) / (3 * t + 3 * e + 4 * a),
         "that is the computing part. What is asked for is the rest"),
        (lambda t, e, a: 400 * a / (3 * t + 3 * e + 4 * a),
         "that is in per cent: give a part, between 0 and 1"),
        (lambda t, e, a: 4 * a / (6 + 4 * a),
         "it depends on attn and mlp too: they are 1 in the picture, not always"),
    ]  # fmt: skip
    cases = [(1, 1, 1), (1, 1, 1.5), (1, 1, 0), (2, 1, 1), (1, 3, 0.5)]
    if verdict.random is not None:
        cases = [tuple(verdict.random.randint(1, 9) for _ in range(3)) for _ in cases]

    def called(attn, mlp, a2a):
        return f"share(attn={attn}, mlp={mlp}, a2a={a2a})"

    def step(*case):
        """(all-to-all, everything) in a simulated step."""
        trace = simulate(schedules.one_f_one_b(1, 2), Layers(1, *case, streams=1))
        lane = (e for e in trace.events if e.lane == "all-to-all")
        return sum(e.end - e.start for e in lane), trace.makespan

    def right(*case):
        spent, whole = step(*case)
        return spent / whole

    def wrong(case, value, wanted):
        spent, whole = step(*case)
        return (
            f"{called(*case)} is {float(value):.4g}, but in the simulated step it is {spent} of "
            f"{whole}, {float(wanted):.4g}"
        )

    numbers(
        verdict, answer, cases, call=called, right=right, wrong=wrong, mistakes=mistakes,
        otherwise=": count the boxes of one micro-batch in the upper picture, row by row",
    )  # fmt: skip
    verdict.expect(True, f"equal to the simulated step for {len(cases)} costs", "", points=1)


# ---- where the tokens go


@exercise(points=2)
def route(verdict, answer):
    """`route(chosen, experts, ranks)`: (choices by expert, rows for each rank)."""
    cases = [(5, 4, 2, 2, 1), (7, 6, 3, 1, 2), (4, 8, 4, 3, 3), (3, 4, 2, 1, None)]
    if verdict.random is not None:
        cases = [(t + verdict.random.randint(0, 3), *r, verdict.random.randrange(99) if s else s)
                 for t, *r, s in cases]  # fmt: skip
    for tokens, experts, ranks, k, seed in cases:
        call = f"route of {tokens} tokens, k={k}, to {experts} experts on {ranks} ranks"
        chosen = torch.full((tokens, k), experts - 1)  # one hot expert, others without a token
        if seed is not None:
            random = torch.Generator().manual_seed(seed)
            chosen = torch.rand(tokens, experts, generator=random).topk(k).indices
        order, sent = _two(verdict, call, answer(chosen.clone(), experts, ranks), "order and sent")
        order, sent = _whole(order), _whole(sent)
        _routed(verdict, call, chosen, experts, ranks, order, sent)
    verdict.expect(
        True, f"every choice once, by expert, and counted by rank, in {len(cases)} cases", "", 2
    )


def _routed(verdict, call, chosen, experts, ranks, order, sent):
    tokens, k = chosen.shape
    flat, each = chosen.flatten().tolist(), experts // ranks
    for name, value in (("order", order), ("sent", sent)):
        if value is None:
            verdict.fail(f"{call}: {name} is not a row of whole numbers: give a list, or a tensor "
                         "of one dimension")  # fmt: skip
    if len(order) == tokens and k > 1:
        verdict.fail(
            f"{call}: order has {tokens} entries, one for each token. A token is sent once for "
            f"each of its {k} experts: {tokens} x {k} choices, flattened row by row"
        )
    if sorted(order) != list(range(tokens * k)):
        why = ": those are the experts themselves. Where does each stand?"
        verdict.fail(
            f"{call}: order has to name each of the {tokens * k} choices 0 to {tokens * k - 1} "
            f"once, but it is {order}" + (why if sorted(order) == sorted(flat) else "")
        )
    experts_of = [flat[c] for c in order]
    if experts_of != sorted(experts_of):
        inverse = sorted(range(len(order)), key=order.__getitem__)
        by = [flat[c] for c in inverse]
        of_ranks = [e // each for e in experts_of]
        if by == sorted(by):
            why = (
                "that is the way back, where each choice goes. order[j] is the choice that is sent "
                "as row j"
            )
        elif order == list(range(len(order))):
            why = "the choices are still in the order of the tokens"
        elif experts_of == sorted(experts_of, reverse=True):
            why = "largest expert first. The rows for rank 0 come first"
        elif of_ranks == sorted(of_ranks):
            why = "sorted by rank only. The rows of an expert stand together, too"
        else:
            why = "sort the choices by expert"
        verdict.fail(f"{call}: the rows would go to experts {experts_of}: {why}")
    counts = [flat.count(e) for e in range(experts)]
    right = [sum(counts[r * each : (r + 1) * each]) for r in range(ranks)]
    if sent == right:
        return
    whole = [r for r in range(ranks) if right[r]]
    why = "rank r holds experts r*experts/ranks and on"
    if sent == counts:
        why = f"that is for each expert. A rank holds {each} of them"
    elif sent == [right[r] for r in whole] or len(sent) < ranks:
        why = "a rank that gets nothing is still in the list, with 0"
    elif sent == [sum(counts[r::ranks]) for r in range(ranks)]:
        why = "that deals the experts out like cards. Rank 0 holds the first experts, in a block"
    elif sum(sent) == tokens and k > 1:
        why = "that counts tokens. A token that goes to two experts is sent twice"
    elif sent == [sum(right[: r + 1]) for r in range(ranks)]:
        why = "those are running sums. Give the number of each rank"
    verdict.fail(f"{call}: sent is {sent}, not {right}: {why}")


# ---- the exchange


CASES = {2: [[[1, 3], [2, 2]], [[3, 1], [4, 0]], [[0, 2], [0, 3]]],
         3: [[[1, 0, 2], [2, 2, 1], [0, 1, 0]]]}  # fmt: skip


def _cases(verdict):
    """{number of ranks: for each case the rows from each rank to each}."""
    if verdict.random is None:
        return CASES
    draw = verdict.random.randint
    return {p: [[[draw(0, 4) for _ in range(p)] for _ in range(p)] for _ in range(2)] + CASES[p]
            for p in CASES}  # fmt: skip


@exercise(points=3)
def exchange(verdict, dispatch, combine):
    """`dispatch(rank, rows, sent)` and `combine(rank, results, sent, received)`."""

    def program(rank, cases):
        for table in cases:
            me, p = rank.index, rank.size
            rows = [_rows(r, sum(table[r])) for r in range(p)]
            expected = _sent_to(me, rows, table)
            came = [table[r][me] for r in range(p)]
            call = f"dispatch of {table[me]} rows from rank {me}"
            got = _called("dispatch", dispatch, rank, rows[me].clone(), list(table[me]))
            arrived, received = _two(None, call, got, "arrived and received")
            _same(call, arrived, expected, _arrived_hint(arrived, rows[me], expected, table, me))
            received = _whole(received)
            if received != came:
                raise StepError(
                    f"{call}: received is {received}, but {came} rows came from ranks 0 to {p - 1}"
                    + (": that is what this rank sent" if received == table[me] else "")
                )
            back = _called("combine", combine, rank, 2 * expected, list(table[me]), list(came))
            call = f"combine after a dispatch of {table[me]} rows from rank {me}"
            hint = ""
            if isinstance(back, torch.Tensor) and back.shape == expected.shape:
                hint = ": is that what went in? The rows go back to where they came from"
            _same(call, back, 2 * rows[me], hint)

    for number, (p, cases) in enumerate(_cases(verdict).items()):
        _on_ranks(verdict, p, program, cases)
        verdict.expect(True, f"{p} ranks: every row where it belongs, and back again", "",
                       points=2 - number)  # fmt: skip


def _arrived_hint(arrived, mine, expected, table, me):
    """What goes with rows that are not those expected."""
    if not isinstance(arrived, torch.Tensor) or arrived.dim() != 2:
        return ""
    if arrived.shape == mine.shape and torch.equal(arrived, mine):
        return ": these are this rank's own rows, nothing was exchanged"
    if len(arrived) == len(mine) and len(mine) != len(expected):
        return (
            ": as many as this rank sends. Tell every rank first how many rows it gets, then make "
            "room for as many"
        )
    if arrived.shape == expected.shape and not torch.equal(arrived, expected):
        return ". Give both lists of split sizes, first those of the output"
    return ""


@exercise(points=2)
def gradients(verdict, dispatch_backward, combine_backward):
    """The backward of both, on `rank.all_to_all_single`."""

    def program(rank, cases):
        for table in cases:
            me, p = rank.index, rank.size
            came = [table[r][me] for r in range(p)]
            # What flows into the backward of dispatch lies where its output lies, and so on.
            rows = [_rows(r, sum(table[r])) for r in range(p)]
            there = _sent_to(me, rows, table)
            for name, function, given, expected in (
                ("dispatch_backward", dispatch_backward, there, rows[me]),
                ("combine_backward", combine_backward, rows[me], there),
            ):
                call = f"{name} with sent={table[me]}, received={came} on rank {me}"
                got = _called(name, function, rank, given.clone(), list(table[me]), list(came))
                hint = ""
                if isinstance(got, (list, tuple)):
                    raise StepError(f"{call} gives {len(got)} values: return one tensor, the "
                                    "gradient, and leave out the counts")  # fmt: skip
                if isinstance(got, torch.Tensor) and got.shape == given.shape:
                    if torch.equal(got, given):
                        hint = ": that is what went in. A gradient goes back to where its row was"
                    elif torch.allclose(got * p, expected) or torch.allclose(got, expected * p):
                        hint = f": off by the factor {p}. Rows are moved, never averaged"
                if isinstance(got, torch.Tensor) and got.shape == expected.shape and not hint:
                    ratio = got.sum() / expected.sum() if expected.numel() else 1
                    if abs(abs(ratio) - 1) > 1e-9 or ratio < 0:
                        hint = ". Rows are moved, and nothing is done to them"
                _same(call, got, expected, hint)

    for p, cases in _cases(verdict).items():
        _on_ranks(verdict, p, program, cases)
        verdict.expect(True, f"{p} ranks: each gradient is where the row was", "", points=1)


# ---- the cut


@exercise(points=3)
def layer(verdict, answer):
    """`layer(rank, x, w_attn, w_mlp, sent, dy)`: (y, dx, dw_attn, dw_mlp), node by node."""
    seed = verdict.seed(5)

    def program(rank, cases):
        for number, table in enumerate(cases):
            me, p = rank.index, rank.size
            random = torch.Generator().manual_seed(seed + number)

            def drawn(*shape, random=random):
                return torch.randn(*shape, generator=random, dtype=torch.float64)

            w_attn = drawn(HIDDEN, HIDDEN) / 2
            tokens = [sum(row) for row in table]
            w_mlp = [drawn(HIDDEN, HIDDEN) for _ in range(p)]
            x, dy = ([drawn(n, HIDDEN) for n in tokens] for _ in range(2))
            right = _whole_layer(x, w_attn, w_mlp, table, dy, me)
            got = _called("layer", answer, rank, x[me].clone(), w_attn.clone(), w_mlp[me].clone(),
                          list(table[me]), dy[me].clone())  # fmt: skip
            call = f"layer on rank {me} of {p}, sent={table[me]}"
            if not isinstance(got, (list, tuple)) or len(got) != 4:
                what = "nothing" if got is None else f"{type(got).__name__}"
                raise StepError(f"{call} gives {what}: return y, dx, dw_attn and dw_mlp")
            lost = {
                name: _whole_layer(x, w_attn, w_mlp, table, dy, me, **{name: False})
                for name in ("skip", "through", "base")
            }
            for k, name in enumerate(("y", "dx", "dw_attn", "dw_mlp")):
                _same(f"{call}: {name}", got[k], right[k], _layer_hint(name, got[k], right, k, lost,
                                                                     dy[me]))  # fmt: skip

    _on_ranks(verdict, 2, program, _cases(verdict)[2])
    verdict.expect(True, "2 ranks: the output and all three gradients equal those of one process, "
                   "elementwise", "", points=3)  # fmt: skip


def _whole_layer(x, w_attn, w_mlp, table, dy, me, skip=True, through=True, base=True):
    """The layer of all ranks in one process, by autograd. skip, through: whether the gradient
    goes past the experts, and through them; base: whether h is added to the result."""
    p = len(table)
    x = [part.clone().requires_grad_() for part in x]
    w_mlp = [w.clone().requires_grad_() for w in w_mlp]
    own = [w_attn.clone().requires_grad_() for _ in range(p)]
    h = [part + torch.tanh(part @ w) for part, w in zip(x, own, strict=True)]
    sent = h if through else [part.detach() for part in h]
    z = [torch.tanh(_sent_to(r, sent, table) @ w_mlp[r]) for r in range(p)]
    back = [torch.cat([_sent_back(z, table, r, at) for at in range(p)]) for r in range(p)]
    y = [(part if skip else part.detach()) * base + b for part, b in zip(h, back, strict=True)]
    torch.autograd.backward(y, dy)
    return [t if t is not None else torch.zeros_like(x[me])
            for t in (y[me].detach(), x[me].grad, own[me].grad, w_mlp[me].grad)]  # fmt: skip


def _sent_back(z, table, r, at):
    """The results, made on rank `at`, for rank r."""
    first = sum(table[s][at] for s in range(r))
    return z[at][first : first + table[r][at]]


def _layer_hint(name, got, right, k, lost, dy):
    """What goes with an output or a gradient that is not the one expected."""
    if got is None:
        return (
            ": it has no .grad. A tensor needs requires_grad_() before the node runs on it, and "
            "the node's backward has to run"
        )
    if not isinstance(got, torch.Tensor) or got.shape != right[k].shape or not got.numel():
        return ""

    def like(other):
        return other.shape == got.shape and torch.allclose(got, other, rtol=1e-9, atol=1e-11)

    if name == "y" and like(lost["base"][0]):
        return ": h is not in it. y = h + what combine brings back"
    if name in ("dx", "dw_attn"):
        if like(lost["skip"][k]):
            return (
                ": the way past the experts is lost. h is used twice, by the experts and by the "
                "sum: add both gradients before you go on into attn"
            )
        if like(lost["through"][k]):
            return (
                ": the way through the experts is lost. Send the gradient of what arrived back, "
                "by dispatch_backward, and add it"
            )
        if name == "dx" and like(dy):
            return ": that is dy. It has to go back through the nodes"
    for factor in (2, 0.5, -1):
        if like(factor * right[k]):
            return f": {factor} times what it should be. Does a backward run twice?"
    if name == "dw_mlp":
        return (
            ". The experts' rows are those of all ranks: dy has to be sent to where they are, by "
            "combine_backward, before the experts' backward"
        )
    if name in ("dx", "dw_attn"):
        return (
            ". The gradient of h has two parts: dy, past the experts, and, through them, dy by way "
            "of combine_backward, the experts' backward and dispatch_backward"
        )
    return ""


# ---- the order


def time_of(order, a2a, layers=8, one_queue=False):
    """How long a layer pair takes, in a row of `layers`, when enqueued in `order`, each computing
    piece 1 and each all-to-all `a2a`.

    order: of "F attn", "I combine", "W mlp" … one_queue: a node is not issued before the one
    that was enqueued before it has started.
    """
    free, done, last, issued = {True: 0, False: 0}, {}, {"F": 0, "I": 0}, 0
    for k in range(layers):
        for node in order:
            kind, part = node.split()
            start = max(free[part in EXCHANGES], done["I", part, k] if kind == "W" else last[kind])
            if one_queue:
                start = issued = max(start, issued)
            end = start + (a2a if part in EXCHANGES else 1)
            free[part in EXCHANGES] = done[kind, part, k] = end
            if kind != "W":
                last[kind] = end
    return max(done.values())


@exercise(points=3)
def together(verdict, answer):
    """`together()`: the ten nodes of a layer pair in the order in which they are enqueued."""
    order = answer()
    if not isinstance(order, (list, tuple)) or not all(isinstance(node, str) for node in order):
        verdict.fail(
            f"together() gives {short(order)}, not a list of strings such as 'F attn'"
            + missing(order)
        )
    for node in order:
        if node not in ENQUEUED:
            verdict.fail(
                f"there is no node {node!r}: write kind and part, such as 'F attn'. Kinds are F, I "
                "and W, parts attn, dispatch, mlp and combine; an all-to-all has no W"
            )
    for node in ENQUEUED:
        if order.count(node) != 1:
            verdict.fail(
                f"{node!r} is there {order.count(node)} times: each of the ten nodes is enqueued "
                "once"
            )
    _legal(verdict, order)
    verdict.expect(True, "legal: nothing is enqueued before what it waits for", "", points=1)
    layers = 8 if verdict.random is None else verdict.random.randint(4, 12)
    costs = [HALF, 1, 3 * HALF, 2]
    most = [pair_time(Layers(layers, a2a=a)) for a in costs]
    times, lengths = (row([show(value) for value in values]) for values in (most, costs))
    for one_queue, where in ((False, "on two streams"), (True, "out of one queue")):
        for a, right in zip(costs, most, strict=True):
            took = time_of(order, a, layers, one_queue)
            if took > right:
                verdict.fail(
                    f"{where}, a={float(a):g}: {layers} layer pairs take {float(took):g}, but "
                    f"{float(right):g} is possible: " + _waste(order, one_queue, a, layers)
                )
        verdict.expect(True, f"{where}: {times} for a = {lengths}", "", points=1)


def _legal(verdict, order):
    """What is enqueued waits for events that were recorded before: for nothing else."""
    at = {node: k for k, node in enumerate(order)}
    for kind, parts in (("F", PARTS), ("I", PARTS[::-1])):
        for before, after in zip(parts, parts[1:], strict=False):
            if at[f"{kind} {before}"] > at[f"{kind} {after}"]:
                way = ". A backward goes through the parts in the other direction, combine first"
                verdict.fail(
                    f"'{kind} {after}' is enqueued before '{kind} {before}', whose result it "
                    "needs. An event that has not been recorded holds nobody up: it would run on "
                    "garbage" + (way if kind == "I" else "")
                )
    for part in ("attn", "mlp"):
        if at[f"W {part}"] < at[f"I {part}"]:
            verdict.fail(f"'W {part}' is enqueued before 'I {part}': it would run on a gradient "
                         "that is not there yet")  # fmt: skip


def _waste(order, one_queue, a, layers):
    """Why an order takes longer than it must."""
    kinds = [node[0] for node in order]
    if not one_queue:
        alone = "".join("F" if kind == "F" else "B" for kind in kinds)
        if alone in ("FFFFBBBBBB", "BBBBBBFFFF"):
            return (
                "one micro-batch goes all the way before the other starts, and each waits for its "
                "own all-to-alls. Let them take turns"
            )
        if kinds[-2:] == ["W", "W"] or order.index("W mlp") > order.index("F mlp"):
            return (
                "'W mlp' comes late. It waits for nothing: put it where the compute stream would "
                "wait, between 'I mlp' and 'F mlp'"
            )
        return (
            "while an all-to-all of one micro-batch runs, a computing piece of the other should. "
            "Draw both streams, and look at who waits for whom"
        )
    for k, (first, then) in enumerate(zip(order, order[1:], strict=False)):
        exchanged = [node.split()[1] in EXCHANGES for node in (first, then)]
        if exchanged == [True, False] and _swapped_is_faster(order, k, a, layers):
            return (
                f"'{then}' stands behind '{first}' in the queue, and that waits for its stream, "
                "although the compute stream is free. What can start first is enqueued first"
            )
    return (
        "in one queue, a node that waits holds up all that stand behind it, on either stream: "
        "enqueue in the order in which they can start"
    )


def _swapped_is_faster(order, k, a, layers):
    other = [*order]
    other[k : k + 2] = order[k + 1], order[k]
    return time_of(other, a, layers, True) < time_of(order, a, layers, True)


# ---- what splitting is worth


@exercise(points=2)
def saved(verdict, answer):
    """`saved(a)`: time that splitting off W saves in every further layer pair."""
    mistakes = [
        (lambda a: max(0, 2 * a - 2),
         "beyond 1.5 the four all-to-alls are the longest, 4a, and no order hides those"),
        (lambda a: max(0, 4 - 2 * a) if a > 1 else 0,
         "that is right from a = 1.5 on. Between 1 and 1.5 the pair with W split off takes 6, "
         "all of it computing"),
        (lambda a: 1 if 1 < a < 2 else 0,
         "that is the most, reached at one a only. It grows and falls between"),
        (lambda a: (6 + 4 * a) - max(6, 4 * a),
         "that is against one stream. Both pairs here have two; only the split differs"),
        (lambda a: 8 * max(0, min(2 * a - 2, 4 - 2 * a)),
         "that is for eight layers: give it per layer pair"),
        (lambda a: min(2 * a - 2, 4 - 2 * a),
         "right between 1 and 2. Elsewhere splitting costs nothing and brings nothing: 0"),
        (lambda a: -max(0, min(2 * a - 2, 4 - 2 * a)),
         "the wrong sign: what is saved is the time without the split minus the time with it"),
        (lambda a: 0, "look at a = 1.5 in the table: 56 against 48.5, eight layers"),
        (lambda a: max(6, 4 * a),
         "that is the time of a pair, with W split off. Subtract it from the time without"),
    ]  # fmt: skip
    cases = [Fraction(n, 4) for n in (0, 2, 4, 5, 6, 7, 8, 10, 16)]
    if verdict.random is not None:
        cases = [Fraction(verdict.random.randrange(17 * k, 17 * k + 17), 34) for k in range(8)]

    def ninth(a, split):
        """What a ninth layer pair adds."""
        nine, eight = (pair_time(Layers(n, a2a=a, split=split)) for n in (9, 8))
        return nine - eight

    def called(a):
        return f"saved({float(a):.4g})"

    def wrong(case, value, wanted):
        whole, split = (float(ninth(*case, split)) for split in (False, True))
        return (
            f"{called(*case)} is {float(value):.4g}, but a ninth layer pair adds {whole:.4g} "
            f"without the split and {split:.4g} with it, {float(wanted):.4g} less"
        )

    numbers(
        verdict, lambda a: answer(float(a)), [(a,) for a in cases], call=called,
        right=lambda a: ninth(a, False) - ninth(a, True), wrong=wrong, mistakes=mistakes,
        otherwise=": write down both times for each side of 1, 1.5 and 2, then subtract",
    )  # fmt: skip
    verdict.expect(
        True, f"what the simulated ninth layer pair saves, for {len(cases)} lengths", "", points=2
    )


# ---- shared


def _rows(rank, count):
    """Rows that say where they come from."""
    return (100.0 * (rank + 1) + torch.arange(count * 2.0)).view(count, 2).double()


def _sent_to(me, rows, table):
    """What rank `me` gets, rank by rank, when every rank's rows are sent as the table says."""
    return torch.cat([rows[r].split(table[r])[me] for r in range(len(table))])


CAUSES = [  # of what is in the text of a failed run
    ("SIGABRT|Split sizes doesn't match",
     "The split sizes do not fit the rows. What comes back in has other sizes than what goes out: "
     "for dispatch the others have to tell them first, and on the way back the two lists are "
     "swapped"),
    ("Mismatch in shape",
     "The rows of a node's gradient are those of its output. The experts' are on their rank: dy "
     "has to be sent there first, by combine_backward"),
    ("'NoneType'",
     "Something is None: a .grad, where requires_grad_() did not come before the node ran, or "
     "where the node's backward has not run yet"),
]  # fmt: skip


def _on_ranks(verdict, p, program, cases):
    """Run program(rank, cases) on p ranks; what fails is explained."""
    try:
        Lab(p, 1).run(partial(program, cases=cases))
    except NotAttempted:
        raise
    except RunError as error:
        # The check's own lines would not help.
        text = "\n".join(
            line for line in str(error).split("\n") if not line.endswith(", in program")
        )
        verdict.fail("\n".join([text, *(why for signs, why in CAUSES if re.search(signs, text))]))


def _called(name, function, rank, *arguments):
    """What a function of the learner's gives on a rank, which knows where it is meanwhile."""
    rank.transport.at(f"in {name}")
    given = function(rank, *arguments)
    rank.transport.at(f"after {name}")
    return given


def _two(verdict, call, value, what):
    """A pair of values."""
    if isinstance(value, (list, tuple)) and len(value) == 2:
        return value
    text = f"{call} gives {_kind(value)}: return two values, {what}"
    if verdict is None:
        raise StepError(text)
    verdict.fail(text)


def _kind(value):
    if value is None:
        return "None"
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {list(value.shape)}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__} of {len(value)}"
    return type(value).__name__


def _whole(values):
    """A list of whole numbers, from a list or a tensor; None if it is none."""
    if isinstance(values, torch.Tensor):
        values = values.tolist()
    if not isinstance(values, (list, tuple)):
        return None
    values = [v.item() if isinstance(v, torch.Tensor) and v.numel() == 1 else v for v in values]
    return values if all(type(v) is int for v in values) else None


def _same(call, got, right, hint=""):
    """Elementwise, or a sentence."""
    if not isinstance(got, torch.Tensor):
        raise StepError(f"{call} gives {_kind(got)}, not a tensor" + hint)
    if got.shape != right.shape:
        raise StepError(f"{call} gives a tensor of shape {list(got.shape)}, not "
                        f"{list(right.shape)}{hint}")  # fmt: skip
    if got.dtype != right.dtype:
        raise StepError(f"{call} gives {got.dtype}, not {right.dtype}")
    # Other ranks add in another order: some steps of rounding of the largest number.
    off = (got - right).abs()
    if not (off <= 1e-12 * (1 + right.abs().max() if right.numel() else 1)).all():
        k = int(off.nan_to_num(nan=float("inf")).max(1).values.argmax())
        raise StepError(f"{call} differs most in row {k}{hint}")
