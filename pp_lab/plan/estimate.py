"""Which configurations of a network fit a cluster, and how long a step of each takes.

Memory is counted; a step is the simulated schedule plus what its gradient sync shows. Left out:
how efficient kernels are at each size (`Cluster.flops` is one number for all), contention
between messages, hot experts, the optimizer's own time, data loading, and memory that breaks
into fragments. So trust it to rule out and to rank, and measure the few that are left.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache

from ..schedule import Cost, ScheduleError, lower_bound, schedules, simulate
from ..schedule.verify import activations
from .network import GIB, Cluster, Config, Network

MAKERS = {
    "GPipe": lambda p, m, v: schedules.gpipe(p, m),
    "1F1B": lambda p, m, v: schedules.one_f_one_b(p, m),
    "interleaved": schedules.interleaved,
    "ZB-H1": lambda p, m, v: schedules.zb_h1(p, m),
    "ZB-V": lambda p, m, v: schedules.zb_v(p, m),
    "combined": schedules.combined_1f1b,
    "DualPipe": lambda p, m, v: schedules.dualpipe(p, m),
}
OVERLAPPED = ("combined", "DualPipe")  # whose pairs hide all-to-alls


@lru_cache(maxsize=512)
def scheduled(name, p, m, v):
    """(schedule, for each rank the most stage activations that it holds)."""
    made = MAKERS[name](p, m, v)
    return made, [max(activations(made, rank, "W"), default=0) for rank in range(p)]


@dataclass(frozen=True)
class Estimate:
    """What a configuration needs, and how long its step takes. Bytes and seconds, per GPU."""

    network: Network
    cluster: Cluster
    config: Config

    @cached_property
    def problem(self):
        """Why this cannot run, whatever the memory; None where it can."""
        n, c, k = self.network, self.cluster, self.config
        if k.tp * k.pp * k.dp != c.gpus:
            return f"tp x pp x dp = {k.tp * k.pp * k.dp} GPUs, and there are {c.gpus}"
        if n.heads % k.tp:
            return f"{n.heads} heads cannot be split over tp={k.tp}"
        if k.ep > 1 and ((k.tp * k.dp) % k.ep or n.experts % k.ep):
            return f"ep={k.ep} must divide tp x dp = {k.tp * k.dp} and {n.experts} experts"
        if k.pp * k.v > n.layers:
            return f"{n.layers} layers do not make {k.pp * k.v} stages"
        if k.schedule in OVERLAPPED and k.recompute == "full":
            return "pairs cannot overlap where all is computed again"
        try:
            scheduled(k.schedule, k.pp, k.m, k.v)
        except ScheduleError as error:
            return str(error)
        return None

    @property
    def schedule(self):
        """The schedule, as data."""
        return scheduled(self.config.schedule, self.config.pp, self.config.m, self.config.v)[0]

    @cached_property
    def _held(self):
        """For each rank the ranges of layers that it holds, with their stage."""
        cut, placement = self.network.cut(self.schedule.stages), self.schedule.placement
        ranks = range(self.schedule.p)
        return [[(s, cut[s]) for _, s in placement.held_by(r)] for r in ranks]

    @cached_property
    def parameters(self):
        """For each rank (outside of experts, in experts): parameters on one of its GPUs."""
        n, k, last, rows = self.network, self.config, self.schedule.stages - 1, []
        for held in self._held:
            weights = [n.weights(layer) for _, layers in held for layer in layers]
            ends = sum((s == 0) + (s == last) for s, _ in held)
            ends -= n.tied and last == 0  # on one stage it is there once
            others = sum(w for w, _ in weights) + ends * n.embedding
            rows.append((others / k.tp, n.experts / k.ep * sum(e for _, e in weights)))
        return rows

    @property
    def copies(self):
        """Over how many GPUs the optimizer's state is spread: (outside of experts, in experts)."""
        return self.config.dp, self.config.tp * self.config.dp / self.config.ep

    @cached_property
    def state_bytes(self):
        """For each rank the bytes of parameters, gradients and optimizer state.

        Per parameter 2 (bf16) + 4 (fp32 gradient) + 12 (fp32 copy and two moments), the 12
        spread over the data-parallel ranks: 18 on one, 6 + 12/dp with the distributed optimizer.
        """
        pairs = [zip(row, self.copies, strict=True) for row in self.parameters]
        return [sum(n * (6 + 12 / d) for n, d in pair) for pair in pairs]

    @cached_property
    def activation_bytes(self):
        """For each rank the bytes of its activations at the worst moment.

        Every stage counts as the rank's largest one, and every layer of a MoE as one with
        experts.
        """
        peaks = scheduled(self.config.schedule, self.config.pp, self.config.m, self.config.v)[1]
        layer = self.network.model(self.config).layer_bytes
        largest = [max(len(layers) for _, layers in held) for held in self._held]
        return [peak * n * layer for peak, n in zip(peaks, largest, strict=True)]

    @cached_property
    def memory(self):
        """The bytes of the fullest rank."""
        return max(map(sum, zip(self.state_bytes, self.activation_bytes, strict=True)))

    @property
    def fits(self):
        """Whether it can run and no rank needs more memory than there is."""
        return self.problem is None and self.memory <= self.cluster.memory

    @cached_property
    def why(self):
        """One sentence: why it cannot run, or what the fullest rank holds."""
        if self.problem:
            return self.problem
        needs = list(map(sum, zip(self.state_bytes, self.activation_bytes, strict=True)))
        rank = needs.index(self.memory)
        state, kept = self.state_bytes[rank] / GIB, self.activation_bytes[rank] / GIB
        return (
            f"{'fits' if self.fits else 'does not fit'}: rank {rank} needs {state:.1f} GiB for "
            f"parameters and optimizer and {kept:.1f} GiB for activations, of "
            f"{self.cluster.memory / GIB:.0f} GiB"
        )

    def _seconds(self, stage, layers):
        """(forward, input gradient, weight gradient, all-to-alls of a forward), of one stage and
        micro-batch; without the all-to-alls."""
        n, c, k = self.network, self.cluster, self.config
        tokens = n.sequence * k.b
        rate = tokens / k.tp / c.flops
        products = rate * sum(map(n.flops, layers))
        products += rate * 2 * n.embedding * (stage == self.schedule.stages - 1)
        core = rate * n.core * len(layers)
        routed = sum(n.weights(layer)[1] > 0 for layer in layers)
        reduces = 2 * len(layers) - routed  # an MLP of experts needs no all-reduce
        volume = 2 * (k.tp - 1) / k.tp * 2 * tokens * n.hidden
        reduce = reduces * (volume / c.link(k.tp) + c.latency * (k.tp > 1))
        forward, again = products + core + reduce, 0
        a2a = routed * self._exchange(tokens / k.tp)
        if k.recompute == "full":
            again = forward + a2a
        elif k.recompute == "selective":
            again = core
        return forward, products + 2 * core + reduce + again, products, a2a

    def _exchange(self, tokens):
        """Seconds of a MoE layer's dispatch and combine."""
        n, c, k = self.network, self.cluster, self.config
        if k.ep == 1:
            return 0
        copies, stays = n.top_k, 1
        if k.ep > c.per_node:  # what leaves the node counts
            copies, stays = min(n.top_k, n.nodes or n.top_k), c.per_node
        volume = tokens * copies * 2 * n.hidden * (k.ep - stays) / k.ep
        return 2 * (volume / c.link(k.ep) + c.latency)

    @cached_property
    def cost(self):
        """What each stage costs, in seconds."""
        c, k, rows = self.cluster, self.config, []
        for stage, layers in enumerate(self.network.cut(self.schedule.stages)):
            F, I, W, a2a = self._seconds(stage, layers)  # noqa: E741
            pair = max(F + I + W, 2 * a2a) if k.schedule in OVERLAPPED else F + I + W + 2 * a2a
            rows.append((F + a2a, I + a2a + W, I + a2a, W, pair))
        message = self.network.model(k).output_bytes / k.tp / c.link(c.gpus)
        comm = 0.0 if k.pp == 1 else message + c.latency
        return Cost(*(list(column) for column in zip(*rows, strict=True)), comm=comm)

    @cached_property
    def trace(self):
        """The step on the clock, without the gradient sync."""
        return simulate(self.schedule, self.cost)

    @property
    def bubble(self):
        """The share of all ranks' time that the schedule leaves idle."""
        return self.trace.bubble

    @cached_property
    def sync(self):
        """For each rank the seconds of its gradient sync: reduce-scatter, all-gather."""
        c, k = self.cluster, self.config
        link = c.link(k.tp * k.dp)
        return [
            sum(6 * n * (d - 1) / d / link for n, d in zip(row, self.copies, strict=True))
            for row in self.parameters
        ]

    @cached_property
    def step(self):
        """Seconds. A stage's sync begins with its last backward, so early ones hide in the step."""
        step = self.trace.makespan
        for last, sync in zip(self.trace.last_backwards, self.sync, strict=True):
            done = 0
            for start in sorted(last.values()):
                done = max(done, start) + sync / len(last)
            step = max(step, done)
        return step

    @cached_property
    def floor(self):
        """Seconds that no order of the same ops on the same stages can beat."""
        k, split = self.config, self.config.schedule in ("ZB-H1", "ZB-V", "DualPipe")
        placement, pairs = self.schedule.placement, k.schedule in OVERLAPPED
        return lower_bound(k.pp, k.m, self.cost, placement, split, pairs)

    @property
    def tokens(self):
        """Tokens per second and GPU."""
        k = self.config
        return k.dp * k.m * k.b * self.network.sequence / self.step / self.cluster.gpus

    @property
    def efficiency(self):
        """Useful FLOP/s over those that the GPU achieves in matrix products."""
        return self.tokens * self.network.step_flops / self.cluster.flops


def ranked(network, cluster, configs, count=5):
    """The `count` fastest that fit, the fastest first. Simulates only what can be among them."""
    fitting = [e for config in configs if (e := Estimate(network, cluster, config)).fits]
    best = []
    for estimate in sorted(fitting, key=lambda e: e.floor):
        if len(best) == count and estimate.floor >= best[-1].step:
            break
        best = sorted([*best, estimate], key=lambda e: e.step)[:count]
    return best


def breakdown(estimates):
    """Print estimates, the fastest first, and where the time of each goes: useful work, what is
    done beside it (all-reduces, all-to-alls, recompute), bubble, sync that nothing hides."""
    rows = sorted(estimates, key=lambda e: e.step)
    print(" step s  slower  useful  beside  bubble    sync   GiB")
    for e in rows:
        useful, busy = e.efficiency, sum(e.trace.busy) / e.config.pp / e.step
        after = 1 - e.trace.makespan / e.step
        parts = (e.step / rows[0].step - 1, useful, busy - useful, 1 - busy - after, after)
        shares = " ".join(f"{abs(part):7.1%}" for part in parts)
        print(f"{e.step:7.2f} {shares} {e.memory / GIB:5.1f}  {e.config}")
