"""What a rank program sees: `fn(rank)` runs once on every rank, in a process of its own.

    def my_program(rank):
        for i in range(rank.microbatches):
            x = rank.recv_forward(i)
            y = rank.forward(i, x)
            rank.send_forward(i, y)
        …

On the first rank `recv_forward` gives the data and `send_backward` does nothing; on the last,
`send_forward` does nothing and `recv_backward` gives None. So one program serves all ranks.
Sends are rendezvous: they return when the other side receives.
"""

import functools
import inspect
import math
from contextlib import nullcontext

import torch
import torch.distributed as dist

from ..schedule.cost import exact
from ..schedule.grid import Grid
from ..schedule.op import Move, Op
from .failures import StepError
from .groups import Groups, Reduction
from .rank_clocks import VirtualClock
from .split import collect, weight_gradients
from .tensor_parallel import ParallelMLP, TensorGroup


class P2POp:
    """One entry of `rank.batch_isend_irecv`, as in torch.distributed: op is rank.isend or
    rank.irecv, then the tensor and the other rank."""

    def __init__(self, op, tensor, peer, tag=0):
        if getattr(op, "__name__", None) not in ("isend", "irecv"):
            raise StepError(f"P2POp takes rank.isend or rank.irecv, not {op!r}")
        self.op, self.tensor, self.peer, self.tag = op, tensor, peer, tag


def _call(method):
    """Note, where the parent can read it, which call the rank is in, and when it is over."""
    names = list(inspect.signature(method).parameters)[1:]

    @functools.wraps(method)
    def noted(self, *args, **kwargs):
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        shown = (str(v) if isinstance(v, int) else n for n, v in given.items())
        place = f"{method.__name__}({', '.join(shown)})"
        self.transport.at(f"in {place}")
        result = method(self, *args, **kwargs)
        self.transport.at(f"after {place}")
        return result

    return noted


def forward_step(rank, i, x):
    """Run this rank's stage on micro-batch i. x: [rows, hidden]; returns [rows, hidden], or
    on the last rank the micro-batch's share of the loss."""
    if not rank.is_first:
        x.requires_grad_()  # so that the backward finds the gradient for the stage before
    y = rank.module(x)
    return rank.share(i, rank.loss(i, y)) if rank.is_last else y


def backward_step(rank, i, x, y, dy):
    """Gradient of x from dy, the gradient of y (None on the last rank, where y is the loss).
    Adds to the gradients of the stage's weights."""
    if y.requires_grad:  # not so where all that came before is frozen
        _engine((y,), (torch.ones_like(y) if dy is None else dy,), False, False, ())
    return x.grad


def _engine(*arguments):
    """torch.autograd.backward without its checks, which take longer than a small backward: the
    shapes have been checked."""
    torch.autograd.Variable._execution_engine.run_backward(
        *arguments, allow_unreachable=True, accumulate_grad=True
    )


class Rank:
    """One rank of a pipeline with one stage per rank.

    index, size: which rank of how many; microbatches: m; is_first, is_last: of the stages;
    previous, next: the neighbours, None at the ends; module: this rank's stage.
    grid, coordinates: where the pipeline is one of several parallelisms; mine: the micro-batches
    that go through this rank.
    """

    def __init__(
        self, index, problem, placement, clock, transport, steps=(), recompute=None, grid=None
    ):
        self.index, self.grid = index, grid or Grid(pp=max(max(c) for c in placement.copies) + 1)
        self.size, self.coordinates = self.grid.size, self.grid.coordinates(index)
        self.microbatches, self.dtype = problem.microbatches, problem.torch_dtype
        self.device, self.recompute = transport.device, recompute
        self.placement, self.clock, self.transport = placement, clock, transport
        self.forward_step, self.backward_step = forward_step, backward_step
        for name, step in steps:
            setattr(self, name, step)
        self.problem, self.stages = problem, placement.stages
        self.copy, self._stage = placement.held_by(index)[0]  # of the op that is being run
        self.mine = placement.dealt(self.copy, self.microbatches)
        self.groups, self.sharded = Groups(self), {}
        self.modules = {
            (copy, stage): self._share(stage, problem.module(stage)).to(self.device)
            for copy, stage in placement.held_by(index)
        }
        parts = self.grid.parts
        self.shapes = [((s[0] // parts, *s[1:]) if s else s, d) for s, d in problem.shapes]
        held = {stage for _, stage in self.modules}
        self._inputs = self._rows(problem.inputs()) if 0 in held else None
        self._targets = self._rows(problem.targets()) if self.stages - 1 in held else None
        self._inside = False  # an op
        self._latest = 0  # the last micro-batch whose weight gradient was found
        self.saved = {}  # (stage, micro-batch) -> what the backward needs
        self.split = set()  # the (stage, micro-batch) whose backward comes as I and W
        self.meter = None  # a `Reading` of the bytes held, where they are asked for
        self.not_finite = None  # the first op that gave NaN or infinity, and when
        self.seen = set()  # the F, I and W that this rank has done
        self.peak = 0  # most activations held at once
        self.items = []  # (item, start, end), in order
        self.has_own_experts = False  # that no other copy of the model has
        self.losses = {}
        self._runs = {"F": self._run_F, "B": self._run_B, "I": self._run_I, "W": self._run_W}
        self.declared = isinstance(clock, VirtualClock)  # time that is not measured may be spent

    # ---- where am I

    @property
    def is_first(self):
        return self._stage == 0

    @property
    def is_last(self):
        return self._stage == self.stages - 1

    @property
    def previous(self):
        return self._neighbour(-1)

    @property
    def next(self):
        return self._neighbour(1)

    @property
    def module(self):
        """This rank's stage, [rows, hidden] -> [rows, hidden]."""
        return self.modules[self.copy, self._stage]

    @property
    def shape(self):
        """Of what this rank's stage takes for one micro-batch."""
        return self.shapes[self._stage][0]

    @property
    def now(self):
        """The time on this rank's clock."""
        return self.clock.now

    def __repr__(self):
        return f"<rank {self.index} of {self.size}, {self.microbatches} micro-batches>"

    # ---- compute

    @_call
    def forward(self, i, x):
        """Run the stage on micro-batch i and keep what its backward needs."""
        return self.run("F", self._own_stage(), i, x)

    @_call
    def backward(self, i, dy):
        """Run the backward of micro-batch i; returns the gradient of the stage's input."""
        return self.run("B", self._own_stage(), i, dy)

    def loss(self, i, y):
        """Mean loss of micro-batch i, a scalar. Only the last stage has the targets."""
        if self._targets is None:
            raise StepError(
                f"rank {self.index} has no targets: only the last rank computes the loss"
            )
        return self.problem.loss(y, self._targets[self._microbatch(i)])

    def share(self, i, loss):
        """What the loss of micro-batch i contributes to the loss of the step: loss / m, unless
        the lab has another reduction. Only the last stage knows. Where there are copies on a
        grid, the step is that of this copy: m counts its own micro-batches, and the mean over
        the copies is the whole."""
        share = self.problem.share(loss, i, self._targets)
        if self.grid.dp > 1:
            share = share * self.grid.dp
        return share / self.grid.tp if self.grid.sequence_parallel else share

    @property
    def counts(self):
        """How much of the whole step's loss a loss of this rank's is."""
        grid = self.grid
        if grid.tp > 1 and not grid.sequence_parallel and self.coordinates["tp"]:
            return 0  # the first of those who all have the same
        return 1 / grid.copies

    def run(self, kind, stage, i, tensor):
        """Run one op and give its result: y for F, the input gradient for B and I."""
        op = Op(kind, stage, self._microbatch(i))
        if (self.placement.copy(i, self.microbatches), stage) not in self.modules:
            raise StepError(
                f"micro-batch {i} does not go through rank {self.index}: rank.mine names those "
                f"that do, {self.mine[0]} to {self.mine[-1]}"
            )
        self._check(op, tensor)
        start = self.clock.start()
        self.clock.turn(op, start)
        result = self.perform(op, tensor)
        self.items.append((op, start, self.clock.stop(op, start)))
        return result

    def perform(self, op, tensor):
        """Run an op that is known to be in its place, off the clock."""
        kind, stage, i = op
        self.copy, self._stage = self.placement.copy(i, self.microbatches), stage
        self._inside = True
        if self.meter:
            self.meter.begin()
        module = self.module
        if module.microbatch != i:
            module.__dict__["microbatch"] = i  # nn.Module's own way of setting it is slow
        result = self._runs[kind](op, tensor)
        self._inside = False
        if self.meter:
            self.meter.end(op, over=kind in "BW")
        if kind in "BW":
            self._latest = i
        if self.declared and self.not_finite is None and result is not None:
            self._look_at(op, result)
        if kind == "B":
            self.seen.update((("I", stage, i), ("W", stage, i)))
        else:
            self.seen.add(op)
        return result

    def _run_F(self, op, x):
        later = [] if op[1:] in self.split else None
        if self.meter:
            x = self.meter.given(op, x)
        if self.recompute is not None and self.recompute(op.stage, op.microbatch):
            with torch.no_grad():
                given = self._forward(op, x, None)
            self.saved[op[1:]] = x, None, later
        else:
            y = self._forward(op, x, later)
            given = y.detach()
            self.saved[op[1:]] = x, y, later
        self.peak = max(self.peak, len(self.saved))
        if op.stage == self.stages - 1:
            self.losses[op.microbatch] = given
        return given

    def _forward(self, op, x, later):
        """Run the stage; its Linears put the second halves of their backwards into `later`."""
        if later is not None:
            collect(self.module, later)
        with self._metered("forward", op, x):
            y = self.forward_step(self, op.microbatch, x)
        if later is not None:
            collect(self.module, None)
        last = op.stage == self.stages - 1
        if self.meter and not last and op.kind == "F":
            self.meter.gave(op, y)
        want = () if last else self.shapes[op.stage + 1][0]
        if not isinstance(y, torch.Tensor) or tuple(y.shape) != want:
            got = f"shape {list(y.shape)}" if isinstance(y, torch.Tensor) else repr(y)
            raise StepError(
                f"the forward of {op} gave {got}, not "
                + ("the loss, a scalar" if last else f"a tensor of shape {list(want)}")
            )
        return y

    def _run_B(self, op, dy):
        dx = self._backward(op, dy)
        self.saved.pop(op[1:])
        return dx

    def _run_I(self, op, dy):
        dx = self._backward(op, dy)
        self.saved[op[1:]] = later = self.saved[op[1:]][2]  # only what W needs stays
        for _, dy, *_ in later if self.meter else ():
            self.meter.add(op, dy)
        return dx

    def _run_W(self, op, _):
        weight_gradients(self.saved.pop(op[1:]))

    def _backward(self, op, dy):
        x, y, later = self.saved[op[1:]]
        if y is None:  # to be computed a second time
            y = self._forward(op, x, later)
        with self._metered("backward", op):
            dx = self.backward_step(self, op.microbatch, x, y, dy)
        if op.stage > 0 and (not isinstance(dx, torch.Tensor) or dx.shape != x.shape):
            raise StepError(
                f"the backward of {op} gave {dx if dx is None else list(dx.shape)}, but the stage "
                f"before needs the gradient of its output, shape {list(x.shape)}. Was the input "
                "detached, or requires_grad_() forgotten, before the stage ran on it?"
            )
        return None if op.stage == 0 else dx

    def _metered(self, step, *arguments):
        """What a step runs within: the meter's hooks, if there is a meter."""
        return getattr(self.meter, step)(*arguments) if self.meter else nullcontext()

    def _look_at(self, op, result):
        """Remember the first op that gave NaN or infinity. The sum is nearly always enough."""
        if not (math.isfinite(result.sum().item()) or result.isfinite().all()):
            self.not_finite = self.now, op

    def _check(self, op, tensor):
        name = {"F": "forward", "B": "backward"}.get(op.kind, op.kind)
        if self.seen & {Op(k, *op[1:]) for k in ("IW" if op.kind == "B" else op.kind)}:
            raise StepError(
                f"{name} of micro-batch {op.microbatch} was done before on this rank: "
                "each micro-batch goes forward once and backward once"
            )
        if op.kind != "F" and Op("F", *op[1:]) not in self.seen:
            raise StepError(
                f"{name} of micro-batch {op.microbatch}, but its forward has not run "
                "on this rank yet"
            )
        if op.kind == "W" and Op("I", *op[1:]) not in self.seen:
            raise StepError(
                f"{op} before {op._replace(kind='I')}: the weight gradient needs the "
                "output gradient that the input gradient was computed from"
            )
        if op.kind == "W" or (op.kind != "F" and op.stage == self.stages - 1):
            if tensor is not None:
                raise StepError(
                    f"{name} of micro-batch {op.microbatch} on the last rank starts "
                    "from the loss: its output gradient is None"
                )
            return
        forward = op.kind == "F"
        kind = "its input" if forward else "the gradient of its output"
        shape = self.shapes[op.stage if forward else op.stage + 1][0]
        if not isinstance(tensor, torch.Tensor):
            raise StepError(
                f"{name} of micro-batch {op.microbatch} needs {kind}, a tensor, but got {tensor!r}"
            )
        if tuple(tensor.shape) != shape:
            raise StepError(
                f"{name} of micro-batch {op.microbatch} needs {kind}, shape {list(shape)}, but got "
                f"shape {list(tensor.shape)}"
            )

    # ---- communication, micro-batch by micro-batch

    @_call
    def recv_forward(self, i):
        """The input of micro-batch i, [rows, hidden]: from the rank before, or the data."""
        if self.is_first:
            return self.data(i)
        return self._recv(self.previous, "F", i)

    @_call
    def send_forward(self, i, y):
        """Give the output of micro-batch i to the next rank; returns when it is received."""
        if not self.is_last:
            self._isend(y, self.next, "F", i).wait()

    @_call
    def recv_backward(self, i):
        """The gradient of micro-batch i's output: from the next rank; None on the last."""
        if not self.is_last:
            return self._recv(self.next, "B", i)

    @_call
    def send_backward(self, i, dx):
        """Give the gradient of micro-batch i's input to the rank before."""
        if not self.is_first:
            self._isend(dx, self.previous, "B", i).wait()

    @_call
    def send_forward_recv_backward(self, i, y, j):
        """Send micro-batch i's output to the next rank and, at the same time, receive from it
        the gradient of micro-batch j's output."""
        if not self.is_last:
            return self._exchange(y, self.next, ("F", i), ("B", j))

    @_call
    def send_backward_recv_forward(self, i, dx, j):
        """Send micro-batch i's input gradient to the rank before and, at the same time, receive
        from it the input of micro-batch j (the data, on the first rank)."""
        if self.is_first:
            return self.data(j)
        return self._exchange(dx, self.previous, ("B", i), ("F", j))

    def data(self, i):
        """The inputs of micro-batch i, [rows, hidden]. Only the first rank has them."""
        if self._inputs is None:
            raise StepError(f"rank {self.index} has no data: only the first rank does")
        return self._inputs[self._microbatch(i)]

    def empty(self):
        """An uninitialised tensor of the shape of this stage's input, to receive into."""
        return self.empty_for(self._stage)

    # ---- communication with torch.distributed's names and meaning

    @_call
    def isend(self, tensor, dst, tag=0):
        """Start sending; returns a request. The tensor must not change before its wait()."""
        return self.transport.isend(tensor, dst, tag)

    @_call
    def irecv(self, tensor, src, tag=0):
        """Start receiving into `tensor`, which is filled once the request's wait() returns."""
        return self.transport.irecv(tensor, src, tag)

    @_call
    def send(self, tensor, dst, tag=0):
        """Send, and return when it is received."""
        self.transport.isend(tensor, dst, tag).wait()

    @_call
    def recv(self, tensor, src, tag=0):
        """Receive into `tensor`."""
        self.transport.irecv(tensor, src, tag).wait()

    def batch_isend_irecv(self, ops):
        """Start several sends and receives at once; returns their requests, in order."""
        ops = list(ops)
        if not ops or not all(isinstance(op, P2POp) for op in ops):
            raise StepError(
                "batch_isend_irecv takes a list of P2POp(rank.isend or rank.irecv, "
                f"tensor, peer), not {ops!r}"
            )
        return [op.op(op.tensor, op.peer, op.tag) for op in ops]

    @_call
    def all_reduce(self, tensor, group=None, async_op=False):
        """Sum a tensor over a group, in place: "dp", "tp", "dp-cp", "embedding" (see `Grid`), or
        all ranks. With async_op the sum is made beside what follows; returns a request then.

        It begins when the last member has come, and takes the tensor's part of `cost.sync`,
        which is for all gradients of a stage. Within an op it is part of the op.
        """
        if not isinstance(tensor, torch.Tensor):
            raise StepError(
                f"all_reduce takes a tensor, not {type(tensor).__name__}: one at a time"
            )
        if self._inside:
            return self.groups.all_reduce(tensor, group)
        op = Op("R", self._stage, self._latest)
        sync = self.clock.cost.of(op) if self.clock.cost else 0
        whole = sum(p.numel() for p in self.module.parameters()) or 1
        request = Reduction(self.groups, tensor, group, exact(sync * tensor.numel(), whole), op)
        if async_op:
            return request
        request.wait()

    @_call
    def all_to_all_single(self, output, input, output_split_sizes=None, input_split_sizes=None):
        """Send a part of `input` to every rank, receive a part of `output` from every rank."""
        self.groups.run(
            "all_to_all_single",
            None,
            lambda _: dist.all_to_all_single(output, input, output_split_sizes, input_split_sizes),
        )

    # ---- gradients

    def gradients(self, stage=None):
        """{name in the whole model: gradient} of this rank's weights, or of one of its stages, as
        they are now. Copies; zeros where there is none yet."""
        return {
            name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
            for name, p in self._parameters(stage).items()
        }

    def set_gradients(self, gradients):
        """Replace some or all of this rank's gradients: {name: tensor}."""
        parameters = self._parameters()
        for name, tensor in gradients.items():
            if name not in parameters:
                raise StepError(
                    f"set_gradients: rank {self.index} has no parameter {name!r}, but "
                    f"{', '.join(parameters)}"
                )
            if not isinstance(tensor, torch.Tensor) or tensor.shape != parameters[name].shape:
                raise StepError(
                    f"set_gradients: the gradient of {name} is a tensor of shape "
                    f"{list(parameters[name].shape)}, not "
                    + (
                        str(list(tensor.shape))
                        if isinstance(tensor, torch.Tensor)
                        else repr(tensor)
                    )
                )
            parameters[name].grad = tensor.detach().clone()

    def _parameters(self, only=None):
        return {
            name: parameter
            for (_, stage), module in self.modules.items()
            if only in (None, stage)
            for name, parameter in self.problem.parameters(stage, module).items()
        }

    # ---- inside

    def empty_for(self, stage):
        """An uninitialised tensor of the shape of a stage's input."""
        shape, dtype = self.shapes[stage]
        return torch.empty(shape, dtype=dtype, device=self.device)

    def _recv(self, peer, kind, i):
        tensor, request = self._irecv(peer, kind, i)
        request.wait()
        return tensor

    def _irecv(self, peer, kind, i):
        move = Move("RECV", kind, self._own_stage(), self._microbatch(i))
        tensor = self.empty_for(move.stage if kind == "F" else move.stage + 1)
        return tensor, self.transport.irecv(tensor, peer, *self.message(move))

    def _isend(self, tensor, peer, kind, i):
        move = Move("SEND", kind, self._own_stage(), self._microbatch(i))
        return self.transport.isend(tensor, peer, *self.message(move.partner))

    def _exchange(self, tensor, peer, out, back):
        sent = self._isend(tensor, peer, *out)
        received, request = self._irecv(peer, *back)
        sent.wait()
        request.wait()
        return received

    def message(self, move):
        """Tag and name of the message that `move` receives."""
        tag = 1 + 2 * (move.stage * self.microbatches + move.microbatch) + (move.kind == "B")
        direction = "forward" if move.kind == "F" else "backward"
        return tag, f"the {direction} of micro-batch {move.microbatch}"

    def sent(self):
        """[(lane, move, start, end)] of the messages that took time on a link, by link."""
        found = []
        for peer, spans in self.clock.links.items():
            for tag, (start, end) in zip(self.transport.over[peer], spans, strict=True):
                if end > start and tag > 0:
                    place, gradient = divmod(tag - 1, 2)
                    kind = "B" if gradient else "F"
                    move = Move("RECV", kind, *divmod(place, self.microbatches)).partner
                    found.append((f"to rank {peer}", move, start, end))
        return found

    def _own_stage(self):
        if len(self.modules) != 1:
            raise StepError(
                f"rank {self.index} holds {len(self.modules)} stages: run this "
                "placement as a schedule"
            )
        return self._stage

    def owner(self, op):
        """The rank that runs `op`."""
        copy = self.placement.copy(op.microbatch, self.microbatches)
        return self.placement.copies[copy][op.stage]

    def _microbatch(self, i):
        if not isinstance(i, int) or not 0 <= i < self.microbatches:
            raise StepError(f"there is no micro-batch {i!r}: they are 0 to {self.microbatches - 1}")
        return i

    def _rows(self, tensors):
        """This rank's rows of each micro-batch."""
        part = self.coordinates["cp"]
        if self.grid.sequence_parallel:
            part = part * self.grid.tp + self.coordinates["tp"]
        return [t.chunk(self.grid.parts)[part].to(self.device) for t in tensors]

    def _share(self, stage, module):
        """A stage whose blocks hold this rank's share of what tensor parallelism cuts."""
        if self.grid.tp > 1:
            group = TensorGroup(self.groups, self.grid.sequence_parallel)
            for k, (number, block) in enumerate(
                zip(self.problem.blocks(stage), module, strict=True)
            ):
                if isinstance(block, ParallelMLP):
                    module[k] = block.shared(group)
                    self.sharded |= {f"block{number}.{n}": d for n, d in block.sharded.items()}
        return module

    def _neighbour(self, step):
        """The rank of the stage before or after, None at the ends."""
        place = self.coordinates["pp"] + step
        if not 0 <= place < self.grid.pp:
            return None
        return self.grid.rank(**self.coordinates | {"pp": place})
