"""A schedule that is built op by op: what can come next, and why something cannot."""

from .errors import ScheduleError
from .op import PROVIDES, Op, needs
from .schedule import Schedule, loop


class ByHand:
    """Rows that grow. An op is added when what it needs is there, so what is built is legal.

    p, m: ranks and micro-batches, one stage per rank; split: backwards come as I and W.
    """

    def __init__(self, p, m, split=False):
        self.p, self.m, self.split = p, m, split
        self.rows = [[] for _ in range(p)]
        self._order = []  # ranks, in the order in which ops were added
        self._done = set()

    @property
    def complete(self):
        return sum(map(len, self.rows)) == self.p * self.m * (3 if self.split else 2)

    def ready(self, rank):
        """The ops that `rank` can run now: what they need is there, and they are not."""
        kinds = "FIW" if self.split else "FB"
        return [
            op
            for kind in kinds
            for i in range(self.m)
            if self.why_not(rank, op := Op(kind, rank, i)) is None
        ]

    def why_not(self, rank, op):
        """A sentence that says why `rank` cannot run `op` now; None if it can."""
        if not 0 <= rank < self.p:
            return f"there is no rank {rank}: ranks are 0 to {self.p - 1}"
        if op.stage != rank:
            return f"{op} belongs to rank {op.stage}"
        if not 0 <= op.microbatch < self.m:
            return f"there is no micro-batch {op.microbatch}: they are 0 to {self.m - 1}"
        if op.kind not in ("FIW" if self.split else "FB"):
            asked = "I and W" if self.split else "B"
            return f"backwards come as {asked} here, so {op} has no place"
        if op in self.rows[rank]:
            return f"{op} is there already"
        lacking = [n for n in needs(op, self.p) if n not in self._done]
        if lacking:
            names = " and ".join(self._name(n) for n in lacking)
            return f"{op} needs {names}, which {'has' if len(lacking) == 1 else 'have'} not run yet"
        return None

    def _name(self, need):
        """A result by the op that makes it: of a whole backward, the B."""
        return str(need if self.split or need.kind == "F" else need._replace(kind="B"))

    def add(self, rank, op):
        """Let `rank` run `op` next; ScheduleError says why it cannot."""
        if reason := self.why_not(rank, op):
            raise ScheduleError(reason, rank, len(self.rows[rank]) if rank < self.p else 0, op)
        self.rows[rank].append(op)
        self._order.append(rank)
        self._done |= {op._replace(kind=kind) for kind in PROVIDES[op.kind]}

    def undo(self):
        """Take back the op that was added last, and return it; None where there is none."""
        if not self._order:
            return None
        op = self.rows[self._order.pop()].pop()
        self._done -= {op._replace(kind=kind) for kind in PROVIDES[op.kind]}
        return op

    def schedule(self, name="by hand"):
        """What is there so far as a Schedule."""
        return Schedule(name, self.rows, loop(self.p), self.m)

    def recognised(self, family):
        """The names of those of `family`, {name: function of p and m}, that have these rows."""
        found = []
        for name, make in family.items():
            try:
                made = make(self.p, self.m)
            except (ScheduleError, ValueError):
                continue
            if list(map(list, made.ranks)) == self.rows:
                found.append(name)
        return found
