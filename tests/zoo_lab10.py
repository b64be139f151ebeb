"""Right and wrong answers to the exercises of lab 10, and what each wrong one must hear."""

from pp_lab import (
    Cluster,
    Config,
    Cost,
    Estimate,
    Network,
    configurations,
    ranked,
    schedules,
    simulate,
)

# ---- undominated


def beats(a, b):
    return a != b and all(x <= y for x, y in zip(a, b, strict=True))


def kept(points):
    return [k for k, b in enumerate(points) if not any(beats(a, b) for a in points)]


def kept_by_loops(points):
    left = []
    for k, b in enumerate(points):
        for a in points:
            worse = [x > y for x, y in zip(a, b, strict=True)]
            better = [x < y for x, y in zip(a, b, strict=True)]
            if any(better) and not any(worse):
                break
        else:
            left.append(k)
    return tuple(left)


def best_of_each(points):
    columns = range(len(points[0]))
    return sorted({min(range(len(points)), key=lambda k: points[k][c]) for c in columns})


def strictly(points):
    return [
        k for k, b in enumerate(points)
        if not any(all(x < y for x, y in zip(a, b, strict=True)) for a in points)
    ]  # fmt: skip


def without_twins(points):
    alone = [p for p in points if points.count(p) == 1]
    return [k for k, b in enumerate(points) if b in alone and k in kept(points)]


# ---- state_bytes


def state(layers, hidden, vocab, tp, pp, dp, each=6, spread=12, square=12, first=1, last=1):
    ranks = [layers // pp * square * hidden**2 for _ in range(pp)]
    ranks[0] += first * vocab * hidden
    if pp > 1:
        ranks[-1] += last * vocab * hidden
    return [n / tp * (each + spread / dp) for n in ranks]


def state_by_rank(layers, hidden, vocab, tp, pp, dp):
    result = []
    for rank in range(pp):
        n = layers * 12 * hidden * hidden / pp
        if rank in (0, pp - 1):
            n += vocab * hidden
        result.append(2 * n / tp + 4 * n / tp + 12 * n / tp / dp)
    return tuple(result)


def twice_on_one(layers, hidden, vocab, tp, pp, dp):
    rows = state(layers, hidden, vocab, tp, pp, dp)
    if pp == 1:
        rows[0] += vocab * hidden / tp * (6 + 12 / dp)
    return rows


def not_split(layers, hidden, vocab, tp, pp, dp):
    return state(layers, hidden, vocab, 1, pp, dp)


def mean(layers, hidden, vocab, tp, pp, dp):
    return [(12 * layers * hidden**2 + vocab * hidden) / tp / pp * (6 + 12 / dp)] * pp


# ---- fullest


def full(state, peaks, activation):
    needs = [s + n * activation for s, n in zip(state, peaks, strict=True)]
    return needs.index(max(needs)), max(needs)


def full_by_loop(state, peaks, activation):
    rank = 0
    for r in range(len(state)):
        if state[r] + peaks[r] * activation > state[rank] + peaks[rank] * activation:
            rank = r
    return [rank, state[rank] + peaks[rank] * activation]


# ---- stage_seconds


def seconds(
    layers, hidden, sequence, b, tp, flops, link, square=24, core=4, ways=4, size=2, back=2, again=1
):
    tokens = sequence * b
    work = layers * tokens * (square * hidden**2 + core * sequence * hidden) / tp / flops
    comm = layers * ways * (tp - 1) / tp * size * tokens * hidden / link
    return work + comm, back * work + again * comm


def seconds_in_parts(layers, hidden, sequence, b, tp, flops, link):
    parameters = 12 * hidden**2 / tp
    scores = 2 * (2 * sequence * hidden) / tp
    compute = sequence * b * (2 * parameters + scores) / flops
    reduce = 2 * (tp - 1) / tp * (2 * sequence * b * hidden) / link
    return [layers * (compute + 2 * reduce), layers * (2 * compute + 2 * reduce)]


def but(**change):
    return lambda *case: seconds(*case, **change)


def no_tp(layers, hidden, sequence, b, tp, flops, link):
    _, comm = seconds(layers, hidden, sequence, b, tp, float("inf"), link)
    work, _ = seconds(layers, hidden, sequence, b, 1, flops, link)
    return work + comm, 2 * work + comm


# ---- step_seconds


def step(p, m, F, B, comm, sync):
    trace = simulate(schedules.one_f_one_b(p, m), Cost(F=F, B=B, comm=comm))
    return max(row[-1].start + max(B, s) for row, s in zip(trace.ranks, sync, strict=True))


def step_by_events(p, m, F, B, comm, sync):
    trace = simulate(schedules.one_f_one_b(p, m), Cost(F=F, B=B, comm=comm))
    end = trace.makespan
    for event in trace.events:
        if str(event.op) == f"{event.rank}B{m - 1}":
            end = max(end, event.start + sync[event.rank])
    return float(end)


def makespan(p, m, F, B, comm):
    return simulate(schedules.one_f_one_b(p, m), Cost(F=F, B=B, comm=comm)).makespan


def sync_after_own_end(p, m, F, B, comm, sync):
    trace = simulate(schedules.one_f_one_b(p, m), Cost(F=F, B=B, comm=comm))
    return max(row[-1].end + s for row, s in zip(trace.ranks, sync, strict=True))


# ---- search and worth


def estimates(network, cluster, batch):
    network, cluster = Network(**network), Cluster(**cluster)
    for config in configurations(network, cluster, batch):
        yield Estimate(network, cluster, config)


def found(network, cluster, batch):
    network, cluster = Network(**network), Cluster(**cluster)
    best = ranked(network, cluster, configurations(network, cluster, batch), 1)[0]
    return {k: v for k, v in vars(best.config).items() if k != "ep"}


def found_among_all(network, cluster, batch):
    fitting = [e for e in estimates(network, cluster, batch) if e.fits]
    return vars(min(fitting, key=lambda e: e.step).config)


def found_by_loops(network, cluster, batch, bs=(1, 2, 4), ways=("selective", "full"), vs=(2, 3, 4),
                   fits=lambda e: e.fits, key=lambda e: e.step):  # fmt: skip
    best, net, machine = None, Network(**network), Cluster(**cluster)
    for tp in (1, 2, 4, 8):
        if tp > machine.per_node or net.heads % tp:
            continue
        for pp in range(1, min(machine.gpus // tp, net.layers) + 1):
            dp = machine.gpus // (tp * pp)
            for b in bs:
                if tp * pp * dp != machine.gpus or batch % (dp * b):
                    continue
                orders = [("1F1B", 1)] + [("interleaved", v) for v in vs if pp > 1]
                for schedule, v in orders:
                    if pp * v > net.layers:
                        continue
                    for recompute in ways:
                        choice = dict(tp=tp, pp=pp, dp=dp, m=batch // (dp * b), b=b,
                                      schedule=schedule, v=v, recompute=recompute)  # fmt: skip
                        e = Estimate(net, machine, Config(**choice))
                        if fits(e) and (best is None or key(e) < best[0]):
                            best = key(e), choice
    return best and best[1]


def loops_but(**change):
    return lambda *case: found_by_loops(*case, **change)


def half_the_gpus(network, cluster, batch):
    fewer = {"gpus": cluster["gpus"] // 2, "memory": 4 * cluster["memory"]}
    return found_by_loops(network, cluster | fewer, batch)


def b_forgotten(network, cluster, batch):
    return found(network, cluster, batch) | {"b": 2}


def seconds_of(network, cluster, batch, config=None):
    config = config or found(network, cluster, batch)
    return Estimate(Network(**network), Cluster(**cluster), Config(**config)).step


def gains(network, cluster, batch, ratio=lambda old, new: old / new, again=True, times=2):
    config, result = found(network, cluster, batch), {}
    old = seconds_of(network, cluster, batch, config)
    for name in ("memory", "inside", "across"):
        more = dict(cluster)
        more[name] *= times
        result[name] = ratio(old, seconds_of(network, more, batch, None if again else config))
    return result


def gains_by_rank(network, cluster, batch):
    def best(**change):
        net, machine = Network(**network), Cluster(**(cluster | change))
        return ranked(net, machine, configurations(net, machine, batch), 1)[0].step

    names = "across", "inside", "memory"
    return {name: best() / best(**{name: 2 * cluster[name]}) for name in names}


def gains_but(**change):
    return lambda *case: gains(*case, **change)


PROGRAMS = ()

RIGHT = {
    "undominated": [(kept,), (kept_by_loops,)],
    "state_bytes": [(state,), (state_by_rank,)],
    "fullest": [(full,), (full_by_loop,)],
    "stage_seconds": [(seconds,), (seconds_in_parts,)],
    "step_seconds": [(step,), (step_by_events,)],
    "search": [(found,), (found_among_all,), (found_by_loops,)],
    "worth": [(gains,), (gains_by_rank,)],
}

WRONG = {
    "undominated": [
        (best_of_each, "the best of each column"),
        (strictly, "better in one figure and no worse in the others"),
        (without_twins, "two equal points do not beat each other"),
        (lambda points: [k for k in range(len(points)) if k not in kept(points)],
         "those are the points that are dominated"),
        (lambda points: [min(range(len(points)), key=lambda k: sum(points[k]))], "has no unit"),
        (lambda points: [k for k, p in enumerate(points) if p[0] == min(q[0] for q in points)],
         "the first figure only"),
        (lambda points: [points[k] for k in kept(points)], "return their numbers"),
        (lambda points: [k + 1 for k in kept(points)], "there is no point|is beaten by"),
        (lambda points: list(range(len(points))), "is beaten by"),
        (lambda points: kept(points)[:1], "nothing beats"),
        (lambda points: kept(points) * 2, "there twice"),
        (lambda points: None, "is a return missing"),
    ],
    "state_bytes": [
        (lambda *case: state(*case, each=18, spread=0), "that is 18 bytes for each parameter"),
        (lambda *case: state(*case, each=0, spread=18), "only the optimizer's 12 bytes are spread"),
        (lambda *case: state(*case, each=2), "the gradients are missing"),
        (lambda *case: state(*case, each=4), "that is bf16 gradients"),
        (lambda *case: state(*case, spread=8), "Adam has two moments"),
        (lambda *case: state(*case, each=16, spread=0), "that is 16 bytes everywhere"),
        (lambda *case: state(*case, last=0), "the last rank needs the embedding's matrix too"),
        (lambda *case: state(*case, first=0, last=0), "the embedding is missing"),
        (twice_on_one, "with pp=1 the tied embedding is there once"),
        (lambda *case: state(*case, square=4), "4h² is the attention alone"),
        (lambda *case: state(*case, square=8), "8h² is the MLP alone"),
        (not_split, "holds 1/tp of every matrix"),
        (mean, "that is the mean"),
        (lambda *case: sum(state(*case)), "not a list with one number for each"),
        (lambda *case: state(*case)[:1], "gives 1 numbers, not"),
        (lambda *case: ["many"] * case[4], "'many' is not a number"),
        (lambda *case: None, "is a return missing"),
    ],
    "fullest": [
        (lambda s, n, a: (n.index(max(n)), max(s) + max(n) * a), "add first, then take"),
        (lambda s, n, a: (n.index(max(n)), s[n.index(max(n))] + max(n) * a),
         "the rank with the most activations"),
        (lambda s, n, a: (s.index(max(s)), max(s) + n[s.index(max(s))] * a),
         "the rank with the most state"),
        (lambda s, n, a: (n.index(max(n)), max(n) * a), "the state is missing"),
        (lambda s, n, a: (0, s[0] + n[0] * a), "it is not always rank 0"),
        (lambda s, n, a: (full(s, n, a)[0], sum(s) + sum(n) * a), "the sum over ranks"),
        (lambda s, n, a: (full(s, n, a)[0] + 1, full(s, n, a)[1]), "count from 0"),
        (lambda s, n, a: full(s, n, a)[::-1], "the other way round"),
        (lambda s, n, a: full(s, n, a)[1], "return two numbers"),
        (lambda s, n, a: None, "Is a return missing"),
    ],
    "stage_seconds": [
        (but(square=12, core=2), "two operations: 2 FLOPs"),
        (but(square=12), "2 FLOPs for each parameter and token: 24h²"),
        (but(core=0), "the attention's own products are missing"),
        (but(core=2), "queries with keys"),
        (no_tp, "does 1/tp of the work"),
        (but(ways=0), "the all-reduces are missing"),
        (but(size=1), "half of the bytes"),
        (but(ways=2), "half of the bytes"),
        (but(again=2), "its all-reduces are as large"),
        (but(again=0), "two all-reduces for each layer as well"),
        (but(back=1), "two products for each of the forward"),
        (lambda *case: tuple(x / case[0] for x in seconds(*case)), "one layer of the stage"),
        (lambda *case: tuple(x / case[3] for x in seconds(*case)), "s × b tokens"),
        (lambda *case: seconds(*case)[::-1], "the other way round"),
        (lambda *case: seconds(*case)[0], "return two numbers"),
        (lambda *case: None, "Is a return missing"),
    ],
    "step_seconds": [
        (lambda p, m, F, B, c, sync: makespan(p, m, F, B, c), "the sync is missing"),
        (lambda p, m, F, B, c, sync: makespan(p, m, F, B, c) + max(sync),
         "that syncs after the step"),
        (lambda p, m, F, B, c, sync: makespan(p, m, F, B, c) + sync[0], "all of rank 0's sync"),
        (lambda p, m, F, B, c, sync: makespan(p, m, F, B, c) + sum(sync), "at the same time"),
        (lambda p, m, F, B, c, sync: max(makespan(p, m, F, B, c), *sync, 0),
         "cannot begin with the step"),
        (sync_after_own_end, "when the last backward begins"),
        (lambda p, m, F, B, c, sync: step(p, m, F, B, 0, sync), "latency is missing"),
        (lambda p, m, F, B, c, sync: (m + p - 1) * (F + B), "the sync and the latency"),
        (lambda p, m, F, B, c, sync: makespan(p, m, F, B, c) + max(0, max(sync) - B),
         "right for rank 0"),
        (lambda p, m, F, B, c, sync: makespan(p, m, F, B, c) + max(0, sync[0] - B),
         "looks at rank 0 only"),
        (lambda p, m, F, B, c, sync: step(p, m, F, 2 * F, c, sync), "use B, not twice F|simulated"),
        (lambda p, m, F, B, c, sync: None, "is a return missing"),
    ],
    "search": [
        (loops_but(fits=lambda e: e.problem is None), "does not fit: rank"),
        (loops_but(key=lambda e: e.bubble), "the one with the least bubble"),
        (loops_but(key=lambda e: e.memory), "the one with the least memory"),
        (loops_but(key=lambda e: -e.step), "the slowest that fits"),
        (loops_but(vs=()), "it has another .*v"),
        (loops_but(ways=("selective",)), "did nothing fit|it has another"),
        (loops_but(ways=("full",)), "it has another .*recompute"),
        (loops_but(bs=(4,)), "it has another .*b"),
        (half_the_gpus, "GPUs, and there are"),
        (b_forgotten, "another batch is another training"),
        (lambda *case: found(*case) | {"schedule": "PipeDream"}, "take 1F1B or interleaved"),
        (lambda *case: found(*case) | {"micro": 1}, "a configuration has no 'micro'"),
        (lambda *case: {"tp": 1, "pp": 1}, "does not say dp, m"),
        (lambda *case: found(*case) | {"v": 0}, "a whole number, 1 at least"),
        (lambda *case: str(found(*case)), "not a dict of a configuration"),
        (lambda *case: None, "is a return missing"),
    ],
    "worth": [
        (gains_but(again=False), "that keeps the old configuration"),
        (gains_but(ratio=lambda old, new: new / old), "the other way round"),
        (gains_but(ratio=lambda old, new: old - new), "the seconds that are saved"),
        (gains_but(ratio=lambda old, new: old / new - 1), "that is the gain"),
        (gains_but(ratio=lambda old, new: new), "the new step in seconds"),
        (gains_but(times=1), "did you search again|keeps the old configuration"),
        (gains_but(times=4), "change this one number|search again"),
        (lambda *case: list(gains(*case).values()), "not a dict with memory"),
        (lambda *case: {"memory": 1.0}, "not memory, inside, across"),
        (lambda *case: None, "is a return missing"),
    ],
}  # fmt: skip
