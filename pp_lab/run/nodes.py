"""Carry out a schedule whose ops are layers, node by node, on two streams.

A node takes what the one before it gave, cut off from its autograd graph, and keeps its own
part of the graph; its backward starts from the gradients that the node after it found. So a
backward can be stopped between any two nodes, and another micro-batch's forward run in between.
(Megatron's ScheduleNode, in teaching size.)

With the virtual clock one thread runs a rank's nodes in the order in which they are enqueued,
and each stream has a time of its own. With real time each stream is a thread, as a CUDA stream
runs beside the host: it takes its nodes in order, and waits for what each of them needs.
"""

from collections import defaultdict

import torch
import torch.distributed as dist

from ..schedule.op import EXCHANGES, PARTS, Move, Node, needs
from .rank_clocks import VirtualClock
from .split import collect, splittable, weight_gradients
from .streams import Event, finish, stream


class Groups:
    """The ranks that share this rank's experts, as two groups: one for tokens, one for how many
    of them there are, since two threads must not use the same group."""

    def __init__(self, rank, size, ep):
        self.ep, self.index = ep, rank % ep
        for first in range(0, size, ep):
            made = [dist.new_group(list(range(first, first + ep))) for _ in range(2)]
            if first <= rank < first + ep:
                self.tokens, self.counts = made

    def exchange(self, output, rows, received=None, sent=None):
        group = self.counts if received is None else self.tokens
        dist.all_to_all_single(output, rows, received, sent, group=group)

    def latest(self, moment):
        """The latest of the members' times, as exact as they are."""
        times = [None] * self.ep
        dist.all_gather_object(times, moment, group=self.tokens)
        return max(times)


class NodePlan:
    """A rank's nodes, ready to run. row: in the order in which they are enqueued."""

    def __init__(self, rank, row, model):
        self.rank, self.row, self.model = rank, row, model
        self.groups = Groups(rank.index, rank.size, model.ep) if model.ep > 1 else None
        rank.has_own_experts = self.groups is not None
        index = self.groups.index if self.groups else 0
        exchange = self.groups.exchange if self.groups else None
        for stage in rank.modules.values():
            stage[0] = splittable(stage[0].shared(model.ep, index, exchange))
        self.virtual = isinstance(rank.clock, VirtualClock)
        self.split = {node[1:3] for node in row if node.kind == "W"}  # (stage, micro-batch)
        self.kept = {}  # (stage, micro-batch) -> {part: (inputs, outputs)} and what else it needs
        self.given = {}  # node -> what it gave to the next stage
        self.done = {}  # node -> when it ended
        self.sends, self.receives, self.held = [], {}, 0

    # ---- in which order

    def run(self):
        if self.virtual or self.model.streams == 1:
            if not self.virtual:
                self._post_all()
            free = dict.fromkeys(("compute", "all-to-all"), 0)  # when each stream is
            for node in self.row:
                name = "compute" if self.model.streams == 1 else node.lane
                free[name] = self._run(node, free[name])
        else:
            self._enqueue_all()
        for request in self.sends:
            request.wait()

    def _enqueue_all(self):
        """Nodes of one micro-batch follow each other, on whichever stream: one event says how
        far it is. A weight gradient neither waits nor records: on its stream it is in its place.
        """
        rank = self.rank
        rank.transport.watched = False  # its one note of who waits is for one thread
        self._post_all()
        streams = {
            "compute": stream("compute", rank.device),
            "all-to-all": stream("all-to-all", rank.device, priority=-1),
        }
        events = defaultdict(Event)
        for node in self.row:
            on, event = streams[node.lane], events[node.microbatch]
            if node.kind != "W":
                on.wait(event)
            on.enqueue(self._run, node)
            if node.kind != "W":
                on.record(event)
        finish(list(streams.values()))

    def _post_all(self):
        """Receives are posted early and waited for late."""
        for node in self.row:
            self._post(node)

    # ---- one node

    def _mine(self, node):
        return self.rank.owner(node) == self.rank.index

    def _run(self, node, moment=0):
        """Run a node; returns when it ends. moment: when its stream is free."""
        rank = self.rank
        rank.transport.at(f"in {node}")
        outside, arrival = self._from_outside(node)
        if self.virtual:
            start = max([moment, arrival, *self._made(node)])
            if self.groups and node.part in EXCHANGES:
                start = self.groups.latest(start)
        else:
            start = rank.clock.start()
        result = (self._forward if node.kind == "F" else self._backward)(node, outside)
        clock = rank.clock
        end = start + clock.cost.of(node) if self.virtual else clock.stop(node, start)
        rank.items.append((node, start, end))
        self._count(node)
        if result is not None:
            self._pass_on(node, result, end)
        for kind in "IW" if node.kind == "B" else node.kind:
            self.done[node._replace(kind=kind)] = end
        return end

    def _made(self, node):
        """When each of the results that a node needs from its own rank was there."""
        return [self.done[n] for n in needs(node, self.rank.stages) if self._mine(n)]

    def _count(self, node):
        """Activations held: a node with weights keeps one from its forward to its W."""
        if node.part not in EXCHANGES:
            self.held += {"F": 1, "I": 0, "W": -1, "B": -1}[node.kind]
            self.rank.peak = max(self.rank.peak, self.held)
        if node.part == "combine" and node.kind == "F":
            self.rank.seen.add(("F", node.stage, node.microbatch))
        if node.part == "attn" and node.kind in "WB":
            self.rank.seen.add(("W", node.stage, node.microbatch))

    # ---- from and to other stages

    def _edge(self, node):
        """The node of another stage that this one needs, if any, and the name of the message."""
        for need in needs(node, self.rank.stages):
            if need.stage != node.stage:
                return need, Move("RECV", "F" if node.kind == "F" else "B", *node[1:3])
        return None, None

    def _post(self, node):
        need, move = self._edge(node)
        if need is not None and not self._mine(need):
            peer = self.rank.owner(need)
            tensor = self.rank.empty_for(node.stage if move.kind == "F" else node.stage + 1)
            request = self.rank.transport.irecv(tensor, peer, *self.rank.message(move))
            self.receives[move] = tensor, request

    def _from_outside(self, node):
        """What a node takes from the stage before or after, and when it was there."""
        need, move = self._edge(node)
        if need is None:
            first = node.kind == "F" and node.part == "attn"
            return (self.rank.data(node.microbatch) if first else None), 0
        if self._mine(need):
            return self.given.pop(need), 0
        if move not in self.receives:
            self._post(node)
        tensor, request = self.receives.pop(move)
        if self.virtual:
            self.rank.clock.now = 0
        request.wait()
        return tensor, self.rank.clock.now if self.virtual else 0

    def _pass_on(self, node, result, end):
        """Keep a stage's result where the next stage is here, or send it to where that is."""
        rank, forward = self.rank, node.kind == "F"
        stage = node.stage + (1 if forward else -1)
        if not 0 <= stage < rank.stages:
            return
        move = Move("RECV", "F" if forward else "B", stage, node.microbatch)
        after = Node("F" if forward else "I", stage, node.microbatch, PARTS[0 if forward else -1])
        if self._mine(after):
            self.given[node if forward else node._replace(kind="I")] = result
            return
        if self.virtual:
            rank.clock.now = end
        self.sends.append(rank.transport.isend(result, rank.owner(after), *rank.message(move)))

    # ---- the work

    def _layer(self, node):
        copy = self.rank.placement.copy(node.microbatch, self.rank.microbatches)
        return self.rank.modules[copy, node.stage][0]

    def _forward(self, node, x):
        layer, key = self._layer(node), (node.stage, node.microbatch)
        kept = self.kept.setdefault(key, {"later": {}})
        if node.part == "attn":
            given = [x]
        elif node.part == "dispatch":
            given = [kept["attn"][1][2]]
        elif node.part == "mlp":
            given = kept["dispatch"][1]
        else:
            given = [*kept["mlp"][1], *kept["attn"][1][:2]]
        inputs = [tensor.detach().requires_grad_() for tensor in given]
        later = key in self.split and node.part not in EXCHANGES
        if later:
            collect(layer.weights(node.part), kept["later"].setdefault(node.part, []))
        if node.part == "attn":
            outputs, kept["plan"] = layer.attn(*inputs)
        elif node.part == "combine":
            outputs = [layer.combine(*inputs, kept["plan"])]
        else:
            outputs = [getattr(layer, node.part)(*inputs, kept["plan"])]
        if later:
            collect(layer.weights(node.part), None)
        if node.part == "combine" and node.stage == self.rank.stages - 1:
            loss = self.rank.share(node.microbatch, self.rank.loss(node.microbatch, outputs[0]))
            outputs = [loss]
            self.rank.losses[node.microbatch] = loss.detach()
        kept[node.part] = inputs, outputs
        return outputs[0].detach() if node.part == "combine" else None

    def _backward(self, node, dy):
        kept = self.kept[node.stage, node.microbatch]
        if node.kind == "W":
            weight_gradients(kept["later"].pop(node.part))
            return None
        inputs, outputs = kept[node.part]
        grads = [dy] if node.part == "combine" else kept.pop(f"gradient of {node.part}")
        torch.autograd.backward(outputs, grads)
        found = [x.grad for x in inputs]
        kept[node.part] = None  # free: what W needs is in `later`
        if node.part == "combine":
            kept["gradient of mlp"], kept["gradient of attn"] = found[:1], found[1:]
        elif node.part == "mlp":
            kept["gradient of dispatch"] = found
        elif node.part == "dispatch":
            kept["gradient of attn"] += found
        else:
            return found[0]
