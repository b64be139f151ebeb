"""Carry out a schedule: one loop over a rank's row, whatever the schedule."""

from collections import defaultdict

import torch

from ..schedule.op import Move, Op
from ..schedule.reductions import last_backwards
from .groups import Reduction
from .split import splittable


class Plan:
    """A rank's row of a lowered schedule (see `pp_lab.schedule.lower`), ready to run.

    All that can be looked up is looked up here, before the clock starts: peers, tags, shapes.
    """

    def __init__(self, rank, row):
        self.rank, self.steps = rank, []
        rank.split |= {op[1:] for item in row for op in item.parts if op.kind == "W"}
        for module in rank.modules.values() if rank.split else ():
            splittable(module)
        moves = {item for item in row if type(item) is Move}
        row = _receives_first(row, rank.transport.tags)
        last = {}  # where in the row a stage's gradients are complete, if copies have to agree
        if rank.grid.copies > 1:
            done = last_backwards(rank.placement, rank.microbatches, row, range(len(row)))
            last = {at: Op("R", stage, i) for (_, stage), (at, i) in done.items()}
        for at, item in enumerate(row):
            if type(item) is not Move:
                parts = [(op, *self._source(op, moves), _made(op)) for op in item.parts]
                self.steps.append((self._work, item, f"in {item} of the schedule", parts))
            elif item.action == "RECV":
                stage = item.stage if item.kind == "F" else item.stage + 1
                peer = rank.owner(item.partner)
                self.steps.append((self._receive, item, stage, peer, *rank.message(item)))
            else:
                peer = rank.owner(item.partner)
                made = (item.kind, item.stage, item.microbatch)
                self.steps.append((self._send, made, peer, *rank.message(item.partner)))
            if at in last:
                self.steps.append((self._reduce, last[at]))
        self._posted = False
        self._first = next(  # where the first op is: before it there are receives only
            (k for k, step in enumerate(self.steps) if step[0] != self._receive), len(self.steps)
        )

    def post(self):
        """Post the receives that come before the first op. `run` does it, if nobody has."""
        self.values, self.sends, self.receives, self.reductions = {}, [], {}, []
        for _, *arguments in self.steps[: self._first]:
            self._receive(*arguments)
        self._posted = True

    def run(self):
        """Run the row. Sends start when the value exists and are waited for at the end, so they
        never hold the rank up; receives are waited for by the op that needs them. A stage's
        gradients are averaged over its copies beside what follows its last backward. It can be
        run again."""
        if not self._posted:
            self.post()
        self._posted = False
        for step, *arguments in self.steps[self._first :]:
            step(*arguments)
        self.rank.transport.at("at its end")
        for request in self.sends:
            request.wait()
        for gradients, bucket, request in self.reductions:
            request.wait()
            parts = (bucket / self.rank.grid.copies).split([g.numel() for g in gradients.values()])
            named = zip(gradients.items(), parts, strict=True)
            self.rank.set_gradients({name: part.view(g.shape) for (name, g), part in named})

    def _reduce(self, op):
        rank = self.rank
        gradients = rank.gradients(op.stage)
        if gradients:
            bucket = torch.cat([g.flatten() for g in gradients.values()])
            takes = rank.clock.cost.of(op) if rank.clock.cost else 0
            request = Reduction(rank.groups, bucket, "dp-cp", takes, op)
            self.reductions.append((gradients, bucket, request))

    def _receive(self, move, stage, peer, tag, what):
        tensor = self.rank.empty_for(stage)
        self.receives[move] = tensor, self.rank.transport.irecv(tensor, peer, tag, what)

    def _send(self, made, peer, tag, what):
        self.sends.append(self.rank.transport.isend(self.values.pop(made), peer, tag, what))

    def _work(self, item, place, parts):
        rank = self.rank
        rank.transport.at(place)
        inputs = [fetch(key) for _, fetch, key, _ in parts]
        start = rank.clock.start()
        rank.clock.turn(item, start)
        for (op, _, _, made), x in zip(parts, inputs, strict=True):
            self.values[made] = rank.perform(op, x)
        rank.items.append((item, start, rank.clock.stop(item, start)))

    def _source(self, op, moves):
        """Where an op finds the tensor that it starts from: a function, and its argument."""
        kind = "F" if op.kind == "F" else "B"
        move = Move("RECV", kind, op.stage, op.microbatch)
        source = Op(kind, op.stage + (-1 if kind == "F" else 1), op.microbatch)
        if op.kind == "W":
            return _nothing, None
        if move in moves:
            return self._received, move
        if 0 <= source.stage < self.rank.stages:
            return self._kept, tuple(source)
        return (self.rank.data, op.microbatch) if kind == "F" else (_nothing, None)

    def _received(self, move):
        tensor, request = self.receives.pop(move)
        request.wait()
        return tensor

    def _kept(self, key):
        return self.values.pop(key)


def _nothing(_):
    return None


def _made(op):
    """Under which key an op's result is kept for who needs it."""
    kind = {"F": "F", "B": "B", "I": "B", "W": "W"}[op.kind]
    return kind, op.stage, op.microbatch


BATCH = 16  # ops


def _receives_first(row, tags):
    """The row with its receives moved up, so that they are under way while ops before run.

    On gloo a send ends when its receive is posted, and to post one wakes the sender up. So they are
    posted long before, and together: those of a batch of ops when the batch before begins, which
    bounds the buffers. That needs tags, for messages then come in any order. Without tags a
    receive moves up by one op, and never past another message.
    """
    if not tags:
        moved, held = [], []
        for item in row:
            if type(item) is Move and item.action == "RECV":
                moved.append(item)
            elif type(item) is Move:
                moved += [*held, item]
                held = []
            else:
                moved += held
                held = [item]
        return moved + held
    receives, others, ops = defaultdict(list), defaultdict(list), 0
    for item in row:
        if type(item) is Move and item.action == "RECV":
            receives[max(0, ops // BATCH - 1)].append(item)
        else:
            others[ops // BATCH].append(item)
            ops += type(item) is not Move
    return [item for k in range(ops // BATCH + 1) for item in receives[k] + others[k]]
