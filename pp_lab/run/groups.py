"""The ranks that one rank does something together with: groups, and sums over them.

A group is named after the axes of the `Grid` on which its members differ. "embedding" is the
ranks that hold a tied weight.
"""

import time

import torch.distributed as dist

from ..schedule.op import Op
from ..schedule.reductions import last_backwards, reductions
from .failures import StepError
from .rank_clocks import VirtualClock
from .streams import Event, stream


class Groups:
    """The groups that a rank is in, and what it has moved in each.

    traffic: {group: [calls, bytes]}: what a ring sends from every rank, 2(n-1)/n of a tensor for
    an all-reduce, half of that for an all-gather or a reduce-scatter
    """

    def __init__(self, rank):
        self.rank, self.traffic = rank, {}
        self.free = 0  # when the last reduction ends, on the virtual clock
        self._members = {None: tuple(range(rank.size))}
        self._made, self._stream = {self._members[None]: dist.group.WORLD}, None
        grid = rank.grid
        for name in ("tp", "cp", "dp", "dp-cp"):
            alone = len(grid.group(name, rank.index)) == 1  # and so is everybody
            self._make(name, [(rank.index,)] if alone else grid.groups(name))
        if rank.problem.tied:
            self._make("embedding", self._holders())

    def _holders(self):
        """For each copy of the model on each rank's pipelines, who holds the tied weights."""
        problem, grid, copies = self.rank.problem, self.rank.grid, self.rank.placement.copies
        tied = {name for names in problem.tied for name in names}
        stages = [s for s in range(problem.stages) if tied & {*problem.names(s)}]
        places = [[grid.coordinates(owners[s])["pp"] for s in stages] for owners in copies]
        found = []
        for rank in range(grid.size):
            here = grid.coordinates(rank)
            for of in places:
                ranks = {grid.rank(**here | {"pp": pp}) for pp in of}
                if rank in ranks:
                    found.append(tuple(sorted(ranks)))
        return tuple(dict.fromkeys(found))

    def _make(self, name, groups):
        """torch.distributed's groups; all ranks make all of them, in the same order."""
        for members in groups:
            if len(members) > 1 and members not in self._made:
                self._made[members] = dist.new_group(list(members))
            if self.rank.index in members:
                self._members[name] = members

    def members(self, name):
        """The ranks of a group, in order: None is all of them."""
        if name not in self._members:
            known = ", ".join(repr(n) for n, m in self._members.items() if n and len(m) > 1)
            raise StepError(
                f"rank {self.rank.index} is in no group {name!r}: there "
                + (f"are {known}" if known else "is none; give the run a grid")
            )
        return self._members[name]

    def of(self, members):
        """torch.distributed's group of these ranks; None for one rank alone."""
        return self._made.get(members)

    def run(self, verb, name, start):
        """Carry out a collective, and return when it is done. start: a function of the group."""
        members = self.members(name)
        if len(members) > 1:
            self.rank.transport.collective(verb, members, lambda: start(self.of(members)))

    def count(self, name, tensor, turns):
        """Note that a tensor goes round a ring once, or twice as in an all-reduce."""
        others = len(self.members(name)) - 1
        moved = self.traffic.setdefault(name or "all", [0, 0])
        moved[0] += 1
        moved[1] += turns * others * tensor.numel() * tensor.element_size() // (others + 1)

    def all_reduce(self, tensor, name):
        """Sum over a group, in place, off the clock."""
        self.count(name, tensor, 2)
        self.run("all_reduce", name, lambda group: dist.all_reduce(tensor, group=group))

    def latest(self, name, moment, tensor):
        """The latest of the members' times, as exact as they are. Refuses tensors that cannot be
        added up, for gloo would end the process."""
        given = []
        self.run("all_reduce", name, lambda group: given.extend(_told(moment, tensor, group)))
        self.agree(name, given)
        return max((told[0] for told in given), default=moment)

    def agree(self, name, given):
        """Refuse tensors of different shapes. given: what `_told` gave, one for each member."""
        members = self.members(name)
        for rank, (_, *other) in zip(members, given, strict=False):
            if other != [*given[0][1:]]:
                (_, shape, dtype), (its_shape, its_dtype) = given[0], other
                raise StepError(
                    f"all_reduce over {name or 'all ranks'}: rank {members[0]} gives {dtype} of "
                    f"shape {shape}, and rank {rank} gives {its_dtype} of shape {its_shape}. All "
                    "members sum tensors of one shape"
                )

    @property
    def stream(self):
        """Where sums are made beside what the rank computes."""
        if self._stream is None:
            self._stream = stream("all-reduce", self.rank.device)
        return self._stream


def _told(moment, tensor, group):
    """Of each member of a group: its time, and the shape and dtype of its tensor."""
    mine = moment, list(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    given = [None] * dist.get_world_size(group)
    dist.all_gather_object(given, mine, group=group)
    return given


def reduce_gradients(rank):
    """What follows a schedule's last backward, and is not done beside it (see `Plan`): gradients
    of tied weights are added up, and those of what sequence parallelism leaves whole. Where a
    schedule has copies itself, their sum takes its declared time on the virtual clock.
    """
    grid, groups = rank.grid, rank.groups
    sync = [rank.clock.cost.of(Op("R", s, 0)) for s in range(rank.stages)] if rank.declared else []
    if any(sync) and grid.copies == 1:
        items, _, ends = zip(*rank.items, strict=True) if rank.items else ([], [], [])
        mine = last_backwards(rank.placement, rank.microbatches, items, ends)
        everyone = [mine] * rank.size
        groups.run("all_gather", None, lambda g: dist.all_gather_object(everyone, mine, group=g))
        held = {owner for owners in rank.placement.copies for owner in owners}
        done = {r: last for r, last in enumerate(everyone) if r in held}
        for r, *entry in reductions(rank.placement, done, sync.__getitem__):
            if r == rank.index:
                rank.items.append(tuple(entry))
    found = rank.gradients()
    if grid.sequence_parallel:
        for name, gradient in found.items():
            if name not in rank.sharded:
                groups.all_reduce(gradient, "tp")
    for names in rank.problem.tied:
        here = [name for name in names if name in found]
        if here:
            total = sum(found[name] for name in here)
            if len(groups.members("embedding")) > 1:
                groups.all_reduce(total, "embedding")
            found |= dict.fromkeys(here, total)
    if grid.sequence_parallel or rank.problem.tied:
        rank.set_gradients(found)


class Reduction:
    """A sum over a group that is under way: the tensor is not to be touched before `wait()`.

    With the virtual clock the sum is there at once, and time passes as declared. Otherwise a
    stream makes it while the rank goes on.
    """

    sends = False  # once waited for, the tensor has what it is for

    def __init__(self, groups, tensor, name, duration, op):
        self.groups, self.tensor, self.name = groups, tensor, name
        self.rank, self.duration, self.op = groups.rank, duration, op
        self.event, self.end, self.done = Event(), None, False
        members, transport = groups.members(name), self.rank.transport
        if isinstance(self.rank.clock, VirtualClock):
            start = groups.latest(name, max(self.rank.now, groups.free), tensor)
            groups.all_reduce(tensor, name)
            self.end = groups.free = start + duration
            if duration:
                self.rank.items.append((op, start, self.end))
        else:
            groups.count(name, tensor, 2)
            self.collective = transport.next_collective("all_reduce", members)
            groups.stream.follow()
            groups.stream.enqueue(self._work, groups.of(members))
            groups.stream.record(self.event)
        transport.reductions.append(self)

    def __repr__(self):
        return f"<all_reduce over {self.name or 'all ranks'}>"

    def wait(self):
        """Return when the sum is in the tensor."""
        transport = self.rank.transport
        if self.end is not None:
            self.rank.clock.now = max(self.rank.now, self.end)
        elif not self.done:
            transport.waiting = self.collective, time.monotonic()
            while not self.groups.stream.reached(self.event, 0.02):
                pass
            transport.waiting = None
        self.done = True
        return True

    def is_completed(self):
        """True once the sum is there, without waiting for it."""
        if self.end is not None:
            return self.rank.now >= self.end
        return self.groups.stream.reached(self.event, 0)

    def _work(self, group):
        clock = self.rank.clock
        if group:  # it begins when the last member has come
            self.groups.agree(self.name, _told(None, self.tensor, group))
        start = clock.start()
        if group:
            dist.all_reduce(self.tensor, group=group)
        self.rank.items.append((self.op, start, clock.after(start, self.duration)))
