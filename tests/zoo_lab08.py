"""Answers to the exercises of lab 8: right ones, and wrong ones with what each must be told."""

from pp_lab import Op, Pair, schedules
from pp_lab.plan import Megatron

# ---- combined 1F1B of one rank


def F(i):
    return Op("F", 0, i)


def B(i):
    return Op("B", 0, i)


def combined_one(m):
    return [F(0), *(Pair(F(i + 1), B(i)) for i in range(m - 1)), B(m - 1)]


def combined_one_by_loop(m):
    row = []
    for i in range(m + 1):
        if i == 0:
            row.append(F(i))
        elif i == m:
            row.append(B(i - 1))
        else:
            row.append(Pair(F(i), B(i - 1)))
    return tuple(row)


def two_ahead(m):
    row = [F(i) for i in range(min(2, m))]
    row += [Pair(F(i + 2), B(i)) for i in range(m - 2)]
    return row + [B(i) for i in range(max(m - 2, 0), m)]


# ---- the interleaved one


def order(p, m, v, r):
    table = [(c, i) for a in range(0, m, p) for c in range(v) for i in range(a, a + p)]
    forwards = [Op("F", c * p + r, i) for c, i in table]
    backwards = [Op("B", (v - 1 - c) * p + r, i) for c, i in table]
    return forwards, backwards


def with_warmup(warmup, pair=Pair, tail=True):
    def combined(p, m, v):
        rows = []
        for r in range(p):
            f, b = order(p, m, v, r)
            w = min(warmup(p, v, r), m * v)
            row = f[:w] + [pair(*both) for both in zip(f[w:], b, strict=False)]
            rows.append(row + b[m * v - w :] * tail)
        return rows

    return combined


def right_warmup(p, v, r):
    return 2 * (p - 1 - r) + (v - 1) * p + 1


combined = with_warmup(right_warmup)


def combined_by_counting(p, m, v):
    """Another way: counters in place of slices."""

    def place(k, stage_of):
        group, rest = divmod(k, p * v)
        chunk, i = divmod(rest, p)
        return stage_of(chunk), group * p + i

    rows = []
    for r in range(p):
        ahead, row = min(2 * (p - r) - 1 + (v - 1) * p, m * v), []
        for k in range(m * v + ahead):
            f = Op("F", *place(k, lambda c, r=r: c * p + r)) if k < m * v else None
            b = k - ahead
            b = Op("B", *place(b, lambda c, r=r: (v - 1 - c) * p + r)) if b >= 0 else None
            row.append(Pair(f, b) if f and b else f or b)
        rows.append(row)
    return rows


def not_paired(p, m, v):
    return [
        [op for item in row for op in item.parts] for row in schedules.combined_1f1b(p, m, v).ranks
    ]


def wrong_chunk_for_backwards(p, m, v):
    rows = []
    for r in range(p):
        f, _ = order(p, m, v, r)
        b = [op._replace(kind="B") for op in f]
        w = min(right_warmup(p, v, r), m * v)
        rows.append(f[:w] + [*map(Pair, f[w:], b)] + b[m * v - w :])
    return rows


def neighbours(p, m, v):
    """Chunk c of rank r as stage r*v + c."""

    def moved(op):
        chunk, rank = divmod(op.stage, p)
        return op._replace(stage=rank * v + chunk)

    return [
        [Pair(*map(moved, x)) if isinstance(x, Pair) else moved(x) for x in row]
        for row in combined(p, m, v)
    ]


# ---- how long, and how much of it is paired


def total_time(p, m, v, F, B, FB):
    n = p * (v - 1) + 1
    return ((p - 1) * (F + B) + n * (F + B) + (m * v - n) * FB) / v


def total_time_on_the_last_rank(p, m, v, F, B, FB):
    way = (p - 1) * F / v
    row = combined(p, m, v)[-1]
    work = sum(FB if isinstance(x, Pair) else {"F": F, "B": B}[x.kind] for x in row) / v
    return way + work + (p - 1) * B / v


def of(n):
    return lambda p, m, v, F, B, FB: (p - 1 + n(p, v)) * (F + B) / v + (m * v - n(p, v)) * FB / v


def paired_share(p, m, v, r):
    return max(0, 1 - right_warmup(p, v, r) / (m * v))


def paired_share_counted(p, m, v, r):
    row = combined(p, m, v)[r]
    return sum(isinstance(x, Pair) for x in row) / (m * v)


# ---- what Megatron accepts

RULES = {
    "chunks": lambda c, p, v: p == 1 or v > 1,
    "experts": lambda c, p, v: c["expert_model_parallel_size"] > 1,
    "dispatcher": lambda c, p, v: c["moe_token_dispatcher_type"] in ("alltoall", "flex"),
    "recompute": lambda c, p, v: c["recompute_granularity"] != "full",
    "shared": lambda c, p, v: not c["moe_shared_expert_overlap"],
    "mtp": lambda c, p, v: (c["mtp_num_layers"] or 0) <= 1,
    "half": lambda c, p, v: c["bf16"] or c["fp16"],
}


def accepting(without=None, always=False, delay=True, both=False, **instead):
    def accepted(config):
        p = config["pipeline_model_parallel_size"]
        v = config["virtual_pipeline_model_parallel_size"] or 1
        overlap = config["overlap_moe_expert_parallel_comm"]
        if v > 1 and p == 1:
            return False
        if delay and config["delay_wgrad_compute"] and not overlap:
            return False
        if both and overlap and not config["delay_wgrad_compute"]:
            return False
        rules = {name: rule for name, rule in (RULES | instead).items() if name != without}
        return not (overlap or always) or all(rule(config, p, v) for rule in rules.values())

    return accepted


def accepted_by_the_package(config):
    return not Megatron(**config).broken()


# ---- which one


def needs(p, v, weights):
    return {"1F1B": weights + p, "combined": weights + p + p / v, "DualPipe": 2 * weights + p + 1}


def times(p, m, v):
    return {
        "1F1B": 3 * (m + p - 1), "combined": total_time(p, m, v, 1, 2, 2),
        "DualPipe": 2 * m + 1.5 * p,
    }  # fmt: skip


def choosing(needs=needs, times=times, strict=False, least=min):
    def choose(p, m, v, weights, cap):
        need, time = needs(p, v, weights), times(p, m, v)
        fit = [n for n in need if (need[n] < cap if strict else need[n] <= cap)]
        return least(fit, key=time.get) if fit else None

    return choose


def choose_in_turn(p, m, v, weights, cap):
    by_time = sorted(times(p, m, v).items(), key=lambda entry: entry[1])
    return next((n for n, _ in by_time if needs(p, v, weights)[n] <= cap), None)


RIGHT = {
    "combined_one": [(combined_one,), (combined_one_by_loop,)],
    "pair_warmup": [(lambda p, r: 2 * (p - 1 - r) + 1,), (lambda p, r: 2 * (p - r) - 1,)],
    "combined": [(combined,), (combined_by_counting,)],
    "total_time": [(total_time,), (total_time_on_the_last_rank,)],
    "paired_share": [(paired_share,), (paired_share_counted,)],
    "accepted": [(accepting(),), (accepted_by_the_package,)],
    "choose": [(choosing(),), (choose_in_turn,)],
}

WRONG = {
    "combined_one": [
        (lambda m: [x for i in range(m) for x in (F(i), B(i))], "there is no Pair in it"),
        (lambda m: [*map(F, range(m)), *map(B, range(m))], "there is no Pair in it"),
        (lambda m: [Pair(F(i), B(i)) for i in range(m)], "backward of the same micro-batch"),
        (
            lambda m: [F(0), *(Pair(B(i), F(i + 1)) for i in range(m - 1)), B(m - 1)],
            r"the forward goes first: Pair\(forward, backward\)",
        ),
        (
            lambda m: [F(0), *((F(i + 1), B(i)) for i in range(m - 1)), B(m - 1)],
            "two ops in a bracket are no step",
        ),
        (lambda m: combined_one(m)[:-1], "the backwards that are left still have to run"),
        (two_ahead, "it has 2 pairs, and 3 are possible"),
        (lambda m: [combined_one(m)], "there is one rank: give its list"),
        (lambda m: None, "is not a list of ops: is a return missing"),
        (
            lambda m: [F(0), *(Pair(F(i + 1), B(i)) for i in range(m)), B(m)],
            "names micro-batch 4, but there are only micro-batches 0 to 3",
        ),
    ],
    "pair_warmup": [
        (lambda p, r: p - 1 - r, "needs itself|that is the warm-up of 1F1B without pairs"),
        (
            lambda p, r: p - 1 - r + (r == p - 1),
            "frees the last rank, and the rank before it then waits.*deadlock",
        ),
        (lambda p, r: p - r, "takes 99, but 57 is possible: one more than 1F1B on every rank"),
        (lambda p, r: 2 * (p - 1 - r), "eager warm-up.*one more"),
        (lambda p, r: 2 * (p - r), "one forward more than needed"),
        (lambda p, r: 2 * r + 1, "upside down"),
        (lambda p, r: 2 * p - 1, "every rank does what only the first one needs"),
        (lambda p, r: 3 * p - 1 - 2 * r, "are for a second chunk"),
        (lambda p, r: None, "not a number: is a return missing"),
        (lambda p, r: (p - r) / 2, "a number of forwards is a whole number"),
    ],
    "combined": [
        (with_warmup(lambda p, v, r: right_warmup(p, v, r) - 1), "one more forward of warm-up"),
        (with_warmup(lambda p, v, r: right_warmup(p, v, r) + 1), "it has .* pairs, and .* are pos"),
        (
            with_warmup(lambda p, v, r: right_warmup(p, v, r) - (r < p - 1)),
            "rank 0 runs 4 forwards before its first pair, and needs 5",
        ),
        (not_paired, "there is no Pair in it"),
        (with_warmup(right_warmup, pair=lambda f, b: (f, b)), "two ops in a bracket"),
        (with_warmup(right_warmup, pair=lambda f, b: Pair(b, f)), "the forward goes first"),
        (with_warmup(right_warmup, tail=False), "the backwards that are left"),
        (wrong_chunk_for_backwards, "deadlock|needs itself"),
        (neighbours, r"chunk c of rank r is stage c\*p \+ r"),
        (lambda p, m, v: combined(p, m, v)[:1], "lists for 1 ranks, not for 2"),
        (lambda p, m, v: None, "is a return missing"),
        (
            with_warmup(lambda p, v, r: p - 1 - r + (v - 1) * p + 1),
            "rank 0 runs 4 forwards before its first pair, and needs 5",
        ),
    ],
    "total_time": [
        (lambda p, m, v, F, B, FB: (m + (p - 1) / v) * (F + B), "without pairs"),
        (lambda p, m, v, F, B, FB: (p - 1) * (F + B) / v + m * FB, "every forward for paired"),
        (of(lambda p, v: p * (v - 1)), "the one more forward of warm-up"),
        (lambda *c: total_time(*c) * c[2], "those are whole ranks' times"),
        (
            lambda p, m, v, F, B, FB: total_time(p, m, v, F, B, FB) - (p - 1) * (F + B) / v,
            "that is what the last rank works",
        ),
        (
            lambda p, m, v, F, B, FB: total_time(p, m, v, F, B, FB) - (p - 1) * (F + B - FB) / v,
            "on the way there and back nothing is paired",
        ),
        (
            lambda p, m, v, F, B, FB: total_time(p, m, v, F, B, FB) - m * (v - 1) * FB / v,
            r"m\*v chunk-forwards, not m",
        ),
        (
            lambda p, m, v, F, B, FB: of(lambda p, v: min(m * v, 2 * (p - 1) + p * (v - 1) + 1))(
                p, m, v, F, B, FB
            ),
            "n is that of rank 0",
        ),
        (lambda *c: 28.5, "check each of the three terms"),
        (lambda *c: None, "not a number: is a return missing"),
    ],
    "paired_share": [
        (lambda *c: 1 - paired_share(*c), "the share that has no partner"),
        (
            lambda p, m, v, r: max(0, 1 - (right_warmup(p, v, r) - 1) / (m * v)),
            "the extra forward of warm-up is missing",
        ),
        (lambda p, m, v, r: 1 - right_warmup(p, v, r) / (m * v), "a share is never negative"),
        (lambda p, m, v, r: paired_share(p, m, v, p - 1 - r), "rank at the other end"),
        (lambda p, m, v, r: max(0, 1 - right_warmup(p, v, r) / m), r"m\*v chunk-forwards"),
        (
            lambda p, m, v, r: max(0, 1 - (2 * (p - 1 - r) + 1) / (m * v)),
            "the chunks before the last one are missing",
        ),
        (
            lambda p, m, v, r: max(0, 1 - (p - 1 - r + (v - 1) * p + 1) / (m * v)),
            r"the warm-up of rank r is 2\(p-1-r\)",
        ),
        (
            lambda p, m, v, r: max(0, 1 - (p * (v - 1) + 1) / (m * v)),
            "right for the last rank",
        ),
        (lambda *c: 100 * paired_share(*c), "that is a percentage"),
        (lambda *c: 1, "forwards are in a pair: what is not in the warm-up is paired"),
    ],
    "accepted": [
        (lambda config: True, "with p=4 the overlap needs chunks"),
        (lambda config: False, "accepted.BASE. is False, but Megatron accepts it"),
        (accepting(without="chunks"), "with p=4 the overlap needs chunks"),
        (accepting(chunks=lambda c, p, v: v > 1), "with one pipeline rank the overlap needs no"),
        (accepting(delay=False), "delay_wgrad_compute needs overlap_moe_expert_parallel_comm"),
        (accepting(both=True), "the overlap does not need delay_wgrad_compute"),
        (accepting(without="experts"), "expert_model_parallel_size=1 there is none"),
        (
            accepting(dispatcher=lambda c, p, v: c["moe_token_dispatcher_type"] == "alltoall"),
            "flex dispatcher has an all-to-all too",
        ),
        (accepting(without="recompute"), "full recompute runs a layer as one piece"),
        (
            accepting(recompute=lambda c, p, v: c["recompute_granularity"] is None),
            "selective recompute leaves a layer's nodes apart",
        ),
        (accepting(without="shared"), "choose one of the two"),
        (accepting(without="mtp"), "one multi-token-prediction layer at most"),
        (accepting(mtp=lambda c, p, v: not c["mtp_num_layers"]), "prediction layer is allowed"),
        (accepting(half=lambda c, p, v: c["bf16"]), "fp16 will do as well"),
        (
            lambda c: (
                accepting()(c)
                or not c["overlap_moe_expert_parallel_comm"]
                and not c["delay_wgrad_compute"]
            ),
            "2 chunks per rank need more than one pipeline rank",
        ),
        (accepting(always=True), "without the overlap, its conditions do not count"),
        (lambda config: "chunks", "return True or False"),
        (lambda config: None, "is a return missing"),
    ],
    "choose": [
        (lambda *c: "combined", "gives combined, which does not fit"),
        (lambda *c: None, "gives None, but 1F1B fits"),
        (choosing(strict=True), "gives None, but 1F1B fits.*Exactly at the cap fits too"),
        (
            choosing(lambda p, v, w: needs(p, v, w) | {"DualPipe": w + p + 1}),
            "gives DualPipe, which does not fit.*the weights of two stages",
        ),
        (
            choosing(lambda p, v, w: needs(p, v, w) | {"combined": w + p + (p - 1) / v}),
            "gives combined, which does not fit.*the extra forward is missing",
        ),
        (
            choosing(lambda p, v, w: needs(p, v, w) | {"combined": w + p * (v + 1)}),
            "but combined fits too, and is faster.*1/v of a share's",
        ),
        (
            choosing(lambda p, v, w: needs(p, v, w) | {"combined": 2 * w + p + p / v}),
            "but combined fits too, and is faster.*one copy of the model, in v parts",
        ),
        (
            choosing(lambda p, v, w: needs(p, v, 0)),
            "for weights and activations together",
        ),
        (choosing(least=max), "fits too, and is faster"),
        (
            choosing(times=lambda p, m, v: times(p, m, v) | {"DualPipe": 0}),
            "gives DualPipe, but combined fits too",
        ),
        (lambda *c: "ZB-V", "the answer is 1F1B, combined and DualPipe, or None"),
    ],
}

PROGRAMS = ()
