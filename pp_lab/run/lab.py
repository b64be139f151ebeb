"""`Lab`: a problem, its reference, real runs of it, and the comparison."""

import copy
import inspect
import os
import time
from collections import defaultdict
from dataclasses import replace
from functools import cached_property
from operator import itemgetter
from types import NoneType

import torch

from ..schedule.connect import by_lane
from ..schedule.cost import Cost
from ..schedule.errors import LabError
from ..schedule.layers import Layers, spread
from ..schedule.lower import lower
from ..schedule.op import Op
from ..schedule.schedule import Schedule, loop
from ..schedule.text import headline, number
from ..schedule.trace import Event, Trace
from ..schedule.verify import verify
from .diagnosis import bounds, diagnose, differences
from .launch import launch, server
from .meter import Meter
from .moe import MoELayer
from .problem import ACTIVATIONS, DTYPES, Problem, Result, reference
from .score import Score
from .worker import Job


class ProblemError(LabError, ValueError):
    """A lab that cannot be: the text says why, and what the nearest possible values are."""


class Lab:
    """A model cut into stages, a batch cut into micro-batches, and real processes to train it.

    stages: how many stages; with one stage per rank, also how many ranks
    microbatches: into how many equal parts the batch is cut
    batch: rows in the batch; 4 per micro-batch unless given
    hidden: width of every block, so that tensors between stages are [batch/microbatches, hidden]
    blocks: Linear + activation, how many; 2 per stage unless given. Or a list of modules of your
        own, each taking what the one before gives; then `inputs` and `targets` too
    cut: blocks per stage, like [3, 3, 2, 2]; as even as possible unless given
    activation: "tanh", "relu", "gelu" or "identity"
    loss: of a micro-batch's output and targets, a scalar; mean squared error unless given
    reduction: what the step's loss is of the micro-batches' losses: their "mean", their "sum",
        or, for a function of a micro-batch's targets that gives its weight (its number of
        tokens, say), their weighted mean
    inputs, targets: [batch, …]; random numbers unless given
    dtype: "float64", so that equality is exact, or "float32"
    lr: of the one SGD step that every run takes
    seed: of weights, inputs and targets, and of dropout
    backend: "gloo" or "nccl"; NCCL where there is a GPU for every rank, else gloo, unless given
    """

    def __init__(
        self,
        stages=4,
        microbatches=8,
        *,
        batch=None,
        hidden=16,
        blocks=None,
        cut=None,
        activation="tanh",
        loss=None,
        reduction="mean",
        inputs=None,
        targets=None,
        dtype="float64",
        lr=0.1,
        seed=0,
        backend=None,
    ):
        if "LOCAL_WORLD_SIZE" not in os.environ:  # under torchrun the ranks are there already
            server()  # starts in the background while the reference is computed
        for name, value in dict(stages=stages, microbatches=microbatches, hidden=hidden).items():
            _whole(name, value)
        given, blocks = _given_blocks(blocks)
        data = _given_data(inputs, targets, given, batch)
        batch = len(data[0]) if data else 4 * microbatches if batch is None else batch
        if _whole("batch", batch) % microbatches:
            raise ProblemError(
                f"a batch of {batch} cannot be cut into {microbatches} equal micro-batches. "
                f"Nearest: {_nearest(batch, microbatches)}"
            )
        dtype = str(dtype).removeprefix("torch.")
        for name, value, known in (
            ("activation", activation, ACTIVATIONS),
            ("dtype", dtype, DTYPES),
            ("backend", backend, (None, "gloo", "nccl")),
        ):
            if value not in known:
                choices = " or ".join(str(k) for k in known if k)
                raise ProblemError(f"{name}={value!r} is not known: choose {choices}")
        if reduction not in ("mean", "sum") and not callable(reduction):
            raise ProblemError(
                f"reduction={reduction!r} is not known: choose mean or sum, or give a function "
                "of a micro-batch's targets that gives its weight"
            )
        self.problem = Problem(
            cut=_cut(stages, blocks, cut),
            microbatches=microbatches,
            batch=batch,
            hidden=hidden,
            dtype=dtype,
            activation=activation,
            lr=lr,
            seed=seed,
            reduction=reduction,
            given_blocks=given,
            given_loss=loss,
            given_data=data,
        )
        self.backend = backend

    @property
    def stages(self):
        return self.problem.stages

    @property
    def microbatches(self):
        return self.problem.microbatches

    @cached_property
    def reference(self) -> Result:
        """Loss, gradients and updated weights of the same step in a single process."""
        self._try_shapes()
        return reference(self.problem)

    def run(
        self,
        program,
        *,
        clock="virtual",
        cost=None,
        pace=0.02,
        timeout=60,
        tags=None,
        placement=None,
        grid=None,
        recompute=None,
        meter=False,
        forward_step=None,
        backward_step=None,
        start=launch,
    ):
        """Train one step on fresh processes, one per rank; returns a `Run`.

        program: a rank program `fn(rank)`, a `Schedule`, or a function `fn(p, m)` that
            returns a schedule or each rank's list of ops
        clock: "virtual" (declared durations, exact), "wall" (measured), or "pace" (each op
            stretched to `pace` seconds per unit of cost)
        cost: durations of ops for the virtual clock and for pace; `Cost(F=1, B=2)` unless given
        timeout: seconds after which the run is ended
        tags: match messages by direction, stage and micro-batch, or (False) in the order in
            which they were sent, as NCCL does; by default rank programs do without
        placement: for a rank program, which rank owns which stage; stage s on rank s unless given
        grid: a `Grid`, where the pipeline is one of several parallelisms. The lab's micro-batches
            are then dealt out to its dp copies. A rank program reduces gradients itself (see
            `Rank.all_reduce`); after a schedule it is done
        recompute: keep a stage's input only, and run its forward again before its backward: True,
            a collection of stages, or a function (stage, micro-batch) -> bool
        meter: True, or a `Meter`, to have the bytes that each rank holds for its backwards
            reported: `run.held_bytes`, `run.peak_bytes`, and the strip in the timeline
        forward_step, backward_step: take the place of `pp_lab.run.rank`'s functions
        start: starts the ranks and brings home what they report; see `pp_lab.run.cluster`

        Raises RunError, after ending every process, when the run cannot be finished.
        """
        cost = Cost() if cost is None else cost
        meter = _meter(meter, cost)
        if clock not in ("virtual", "wall", "pace"):
            raise ProblemError(f"clock={clock!r} is not known: choose virtual, wall or pace")
        if not (isinstance(pace, (int, float)) and pace > 0):
            raise ProblemError(f"pace={pace!r}: give the seconds that one unit of cost takes")
        layers, program = self._laid_out(program, cost, grid)
        schedule = program if isinstance(program, Schedule) else None
        if schedule:
            placement, size = schedule.placement, schedule.p
        else:
            placement = self._on(grid) if grid else placement or loop(self.stages)
            size = grid.size if grid else 1 + max(max(copy) for copy in placement.copies)
        steps = {"forward_step": forward_step, "backward_step": backward_step}
        self._try_shapes()
        job = Job(
            name=schedule.name if schedule else getattr(program, "__name__", "rank program"),
            problem=layers.problem,
            placement=placement,
            size=size,
            program=schedule.ranks if schedule else program,
            recompute=_recompute(recompute, self.stages),
            steps=tuple((name, step) for name, step in steps.items() if step),
            clock=clock,
            cost=cost,
            pace=pace,
            backend=self._backend(size),
            tags=bool(schedule) if tags is None else tags,
            timeout=timeout,
            grid=grid,
            meter=meter,
        )
        began = time.perf_counter()
        reports = start(job)
        return reports and Run(layers, job, reports, time.perf_counter() - began)

    def check(self, run, *, makespan=None, peak=None, messages=None) -> Score:
        """Compare a run with the reference, elementwise, and with targets where they are given.

        makespan: at most this; peak: activations held by each rank, at most this list (or
        number); messages: sent by all ranks together, at most this. One point for each.
        """
        reasons = [run.compare()]
        trace = run.trace
        if makespan is not None:
            reasons.append(_target("makespan", trace.makespan, makespan))
        if peak is not None:
            caps = [peak] * len(run.peak_activations) if isinstance(peak, int) else list(peak)
            over = [
                r
                for r, (n, cap) in enumerate(zip(run.peak_activations, caps, strict=True))
                if n > cap
            ]
            text = f"peak activations {_row(run.peak_activations)}, target {_row(caps)}"
            if over:
                text += f": rank {over[0]} holds too many. Run its backwards earlier"
            reasons.append(("no" if over else "yes", text))
        if messages is not None:
            reasons.append(_target("messages", sum(run.messages), messages))
        return Score(sum(kind == "yes" for kind, _ in reasons), len(reasons), reasons)

    def _laid_out(self, program, cost, grid):
        """(the lab with the stages of the run, what is run): the latter is a rank program, or a
        schedule with its messages, for all ranks of the grid."""
        if isinstance(cost, Layers):
            if grid:
                raise ProblemError("Layers have their own ep ranks: give no grid with them")
            return self._in_layers(program, cost)
        schedule = self._schedule(program, self._dealt(grid))
        if schedule is None:
            return self, program
        lowered = lower(schedule, cost)
        return self, grid.spread(lowered) if grid else lowered

    def _dealt(self, grid):
        """How many micro-batches each copy of the pipeline on a grid gets; None without one."""
        if grid is None:
            return None
        if grid.ep > 1:
            raise ProblemError(
                "expert parallelism runs with Layers(ep=…) as the cost, and MoELayer as the "
                "blocks; give the grid ep=1"
            )
        if self.microbatches % grid.dp:
            raise ProblemError(
                f"{self.microbatches} micro-batches cannot be dealt out evenly to dp={grid.dp} "
                f"copies. Nearest: {_nearest(self.microbatches, grid.dp)}"
            )
        rows = self.problem.batch // self.microbatches
        if rows % grid.parts:
            raise ProblemError(
                f"the {rows} rows of a micro-batch cannot be cut into {grid.parts} parts"
            )
        return self.microbatches // grid.dp

    def _on(self, grid):
        """The placement of a rank program's stages, one for each place on the pp axis."""
        if grid.pp != self.stages:
            raise ProblemError(f"the grid has pp={grid.pp}, and the lab {self.stages} stages")
        return grid.placement()

    def _in_layers(self, program, model):
        """(a lab in which every layer is a stage, the schedule of nodes) for `Layers`."""
        blocks, cut = self.problem.given_blocks or (), set(self.problem.cut)
        if not blocks or not all(isinstance(block, MoELayer) for block in blocks):
            raise ProblemError("Layers as the cost are for a lab whose blocks are all MoELayer")
        if cut != {model.layers}:
            raise ProblemError(
                f"the cost has {model.layers} layers per stage, this lab's stages have "
                f"{' or '.join(map(str, sorted(cut)))}"
            )
        if self.microbatches % model.ep:
            raise ProblemError(
                f"{self.microbatches} micro-batches cannot be dealt out evenly to {model.ep} "
                "expert-parallel ranks"
            )
        schedule = self._schedule(program, self.microbatches // model.ep)
        if schedule is None:
            raise ProblemError("with Layers as the cost, give a schedule, not a rank program")
        verify(schedule)
        lab = copy.copy(self)
        lab.problem = replace(self.problem, cut=(1,) * len(blocks))
        return lab, spread(schedule, model)

    def _schedule(self, program, microbatches=None):
        """The schedule that `program` is or makes; None for a rank program.

        microbatches: of the schedule, if not the lab's
        """
        microbatches = microbatches or self.microbatches
        if callable(program):
            wanted = [
                p
                for p in inspect.signature(program).parameters.values()
                if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
            ]
            if len(wanted) == 1:
                return None
            if len(wanted) != 2:
                raise ProblemError(
                    f"{getattr(program, '__name__', program)} takes {len(wanted)} arguments: a "
                    "rank program takes one (rank), a schedule generator two (p, m)"
                )
            name = getattr(program, "__name__", "schedule")
            program = program(self.stages, microbatches)
            if not isinstance(program, Schedule):
                if not isinstance(program, (list, tuple)):
                    raise ProblemError(
                        f"{name} returned {program!r}, not a list of ops for each "
                        "rank: is a return missing?"
                    )
                program = Schedule(name, program, loop(self.stages), microbatches)
        if not isinstance(program, Schedule):
            raise ProblemError(
                f"cannot run {program!r}: give a function of a rank, a Schedule, "
                "or a function of (p, m) that makes one"
            )
        if (program.stages, program.microbatches) != (self.stages, microbatches):
            raise ProblemError(
                f"{program.name} is for {program.stages} stages and {program.microbatches} "
                f"micro-batches, this lab has {self.stages} and {microbatches}: make a "
                f"Lab(stages={program.stages}, microbatches={program.microbatches})"
            )
        if program.has_moves:  # which are made anew: `lower` sees the ops only, and refuses them
            verify(program)
        return program

    def _try_shapes(self):
        """Run the blocks once, here, so that a model that cannot run is refused at once."""
        try:
            return self.problem.shapes
        except Exception as error:
            raise ProblemError(
                "the blocks cannot run one after the other on the inputs: "
                f"{type(error).__name__}: {error}"
            ) from None

    def _backend(self, ranks):
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", ranks))  # torchrun's, on this machine
        if self.backend == "nccl" and gpus < ranks:
            raise ProblemError(
                f"NCCL needs a GPU for every rank, since ranks cannot share one: {ranks} ranks, "
                f"{gpus} GPUs. Use fewer stages, or backend='gloo', which runs on the CPU"
            )
        return self.backend or ("nccl" if gpus >= ranks else "gloo")


class Run:
    """What a run brought home.

    trace: a `Trace`, in units of cost ("virtual", "pace") or in seconds ("wall")
    loss, grads, weights: of the step; tensors by parameter name, weights after the update
    messages, message_bytes: sent by each rank; peak_activations: counted on each rank
    traffic: for each rank {group: [calls, bytes]} of its collectives, see `Groups`
    held_bytes, peak_bytes: with `meter`, for each rank the steps (time, bytes held from then on),
        and the most bytes; None without
    seconds: from the call of `lab.run` to its return, starting the processes included
    """

    def __init__(self, lab, job, reports, seconds):
        self.lab, self.seconds = lab, seconds
        lanes = [by_lane(report.items, key=itemgetter(0)) for report in reports]
        items = [[item for item, *_ in of["compute"]] for of in lanes]
        self.schedule = Schedule(job.name, items, job.placement, lab.microbatches)
        events = []
        for rank, (of, report) in enumerate(zip(lanes, reports, strict=True)):
            reduced = of.pop("all-reduce", [])
            timed = [(lane, *entry) for lane, entries in of.items() for entry in entries]
            timed += report.links + [("all-reduce", *entry) for entry in reduced]
            events += [Event(rank, *entry) for entry in timed]
        measured = job.clock == "wall"
        self.held_bytes = self.peak_bytes = None
        if job.meter:
            self.held_bytes = [report.held_bytes for report in reports]
            self.peak_bytes = [max((n for _, n in steps), default=0) for steps in self.held_bytes]
        cost = None if measured else job.cost
        self.trace = Trace(self.schedule, events, cost, job.clock, held_bytes=self.held_bytes)
        self.messages = [report.sent for report in reports]
        self.message_bytes = [report.sent_bytes for report in reports]
        self.peak_activations = [report.peak for report in reports]
        self.traffic = [report.traffic for report in reports]
        losses = defaultdict(float)
        for report in reports:
            for i, loss in report.losses.items():
                losses[i] += loss
        self.loss = sum(losses[i] for i in sorted(losses)) if losses else None
        # All copies of a stage should hold the same; the first one's are shown.
        self.grid = job.grid
        self._views = _views(reports, job.grid)
        _, self.grads, self.weights = self._views[0]
        self._reports = reports
        self._seen = set().union(*(report.seen for report in reports))
        self._backend, self._layers = job.backend, isinstance(job.cost, Layers)

    @property
    def exact(self):
        """True where the same numbers were added in the same order as in the reference."""
        if self._backend != "gloo" or len(self.schedule.placement.copies) > 1 or self.grid:
            return False
        orders = {}
        for row in self.schedule.ranks:
            for item in row:
                for op in item.parts:
                    if op.kind in "BW":
                        orders.setdefault(op.stage, []).append(op.microbatch)
        return all(order == sorted(order) for order in orders.values())

    def compare(self):
        """("yes" or "no", sentence): loss, gradients and weights against the reference."""
        problem, right = self.lab.problem, self.lab.reference
        for stage in range(problem.stages):
            for kind, what in (("F", "forward"), ("W", "backward")):
                done = {i for k, s, i in self._seen if (k, s) == (kind, stage)}
                if lost := sorted(set(range(problem.microbatches)) - done):
                    rank = self.schedule.owner(Op(kind, stage, lost[0]))
                    return "no", (
                        f"rank {rank} never ran the {what} of micro-batch {lost[0]}"
                        + (f" (nor of {_row(lost[1:])})" if lost[1:] else "")
                        + (f" on stage {stage}" if problem.stages != self.schedule.p else "")
                    )
        bad = min(
            (report.not_finite for report in self._reports if report.not_finite), default=None
        )
        if bad:
            time, op = bad
            return "no", (
                f"rank {self.schedule.owner(op)}: {op} gave the first NaN or infinity, at time "
                f"{number(time)}"
            )
        allowed = None if self.exact else bounds(problem)
        if allowed and (self._layers or self.grid):
            # An expert multiplies the tokens of all ranks at once, a tensor-parallel rank a part
            # of a sum: products are added up in other portions.
            most = 1e3 * torch.finfo(problem.torch_dtype).eps
            allowed = {n: b + most * right.grads[n].abs().max() for n, b in allowed.items()}
        for coordinates, grads, _ in self._views:
            if wrong := differences(problem, grads, right.grads, allowed):
                worst = max(wrong, key=lambda d: d.stage)
                dp = self.grid and (self.grid.dp, coordinates["dp"])
                cause = diagnose(problem, grads, right.grads, wrong, dp)
                return "no", (
                    f"rank {self._owner(worst.stage, coordinates)}: the gradient of {worst}"
                    + (f": {cause}" if cause else "")
                    + f". {len(wrong)} of {len(right.grads)} parameters are wrong"
                )
        eps = torch.finfo(problem.torch_dtype).eps
        if abs(self.loss - right.loss) > (0 if self.exact else 1e3 * eps * abs(right.loss)):
            return "no", (
                f"the gradients are right, but the loss is {self.loss:.6g}, expected "
                f"{right.loss:.6g}"
            )
        moved = allowed and {
            n: problem.lr * b + 4 * eps * right.weights[n].abs() for n, b in allowed.items()
        }
        for _, _, weights in self._views:
            if wrong := differences(problem, weights, right.weights, moved):
                return "no", f"after the optimizer step {wrong[0]}"
        how = (
            "equal to the last bit, being added up in the same order"
            if self.exact
            else f"within the rounding of adding {problem.microbatches} terms in another order "
            f"(largest allowed difference {max(b.max() for b in allowed.values()):.1e})"
        )
        return "yes", (
            f"loss, all {len(right.grads)} gradients and the updated weights equal the "
            f"single-process reference, elementwise: {how}"
        )

    def _owner(self, stage, coordinates):
        owner = self.schedule.placement.copies[0][stage]
        if self.grid is None:
            return owner
        return self.grid.rank(**coordinates | {"pp": self.grid.coordinates(owner)["pp"]})

    def __repr__(self):
        return headline(self.trace)


def _views(reports, grid):
    """The whole model, as each set of ranks that together hold all of it has it: (coordinates of
    the set, gradients, weights), by name. Parts of a tensor are put together."""
    sets = {}  # where a set is -> {tp: its reports}
    for rank, report in enumerate(reports):
        here = grid.coordinates(rank) if grid else {"tp": 0}
        place = tuple((axis, here[axis]) for axis in here if axis not in ("tp", "pp"))
        sets.setdefault(place, {}).setdefault(here["tp"], []).append(report)
    views = []
    for place, shares in sets.items():
        cut = {name: d for report in shares[0] for name, d in report.sharded.items()}
        found = [[_merged(report, kind) for kind in ("grads", "weights")]
                 for tp in sorted(shares) for report in [shares[tp]]]  # fmt: skip
        for tp, mine in enumerate(found):
            whole = [
                tensors | {n: _joined([f[k][n] for f in found], d) for n, d in cut.items()}
                for k, tensors in enumerate(mine)
            ]
            views.append((dict(place) | {"tp": tp}, *whole))
    return views


def _merged(reports, kind):
    """The gradients or weights that some ranks hold. Of copies on the same ranks the first."""
    found = {}
    for report in reports:
        for _, result in sorted(report.results.items(), reverse=True):
            found |= _tensors(getattr(result, kind))
    return found


def _joined(parts, dimension):
    return None if any(part is None for part in parts) else torch.cat(parts, dimension)


def _given_blocks(blocks):
    """(the modules, how many) for a list of modules; (None, blocks) for a number."""
    if blocks is None or isinstance(blocks, int):
        return None, blocks
    given = tuple(blocks)
    for k, block in enumerate(given):
        if not isinstance(block, torch.nn.Module):
            raise ProblemError(f"blocks[{k}] is {block!r}, not a module: give a number of blocks, "
                               "or a list of torch.nn.Module")  # fmt: skip
    if not any(p.requires_grad for block in given for p in block.parameters()):
        raise ProblemError("all parameters are frozen: there is nothing to train")
    return given, len(given)


def _given_data(inputs, targets, blocks, batch):
    if inputs is None and targets is None:
        if blocks is not None:
            raise ProblemError("with blocks of your own, give inputs and targets too, [batch, …]")
        return None
    for name, value in (("inputs", inputs), ("targets", targets)):
        if not isinstance(value, torch.Tensor) or value.dim() == 0:
            raise ProblemError(f"{name} is {type(value).__name__}: give inputs and targets, both "
                               "tensors whose first dimension is the batch")  # fmt: skip
    if len(inputs) != len(targets) or batch not in (None, len(inputs)):
        raise ProblemError(f"there are {len(inputs)} rows of inputs and {len(targets)} of targets"
                           + (f" for a batch of {batch}" if batch is not None else "")
                           + ": these must agree")  # fmt: skip
    return inputs, targets


def _recompute(which, stages):
    if which is None or callable(which):
        return which
    chosen = set(range(stages)) if which is True else set() if which is False else set(which)
    if not chosen <= set(range(stages)):
        raise ProblemError(f"recompute names stage {max(chosen)}, but there are only stages 0 to "
                           f"{stages - 1}")  # fmt: skip
    return lambda stage, microbatch: stage in chosen


def _meter(meter, cost):
    meter = Meter() if meter is True else meter or None
    if not isinstance(meter, (Meter, NoneType)):
        raise ProblemError(f"meter={meter!r}: give True, or a pp_lab.run.meter.Meter")
    if meter and isinstance(cost, Layers):
        raise ProblemError("the meter reads whole ops, and Layers run node by node: give no meter")
    return meter


def _target(name, got, most):
    kind = "yes" if got <= most else "no"
    return kind, f"{name} {got if isinstance(got, int) else format(got, '.4g')}, target {most}"


def _row(numbers):
    return " ".join(map(str, numbers))


def _tensors(arrays):
    return {n: None if a is None else torch.from_numpy(a) for n, a in arrays.items()}


def _whole(name, value):
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ProblemError(f"{name}={value!r}: {name} must be a whole number, at least 1")
    return value


def _nearest(batch, m):
    low, high = batch // m * m, -(-batch // m) * m
    divisors = [d for d in range(1, batch + 1) if batch % d == 0]
    below = max(d for d in divisors if d <= m)
    above = min(d for d in divisors if d >= m) if m <= batch else batch
    batches = " or ".join(f"batch={b}" for b in dict.fromkeys((low, high)) if b)
    counts = " or ".join(str(d) for d in dict.fromkeys((below, above)))
    return f"{batches}, or microbatches={counts} for this batch"


def _cut(stages, blocks, cut):
    """Blocks per stage: as given, or as even as possible, the earlier stages getting more."""
    if cut is None:
        blocks = 2 * stages if blocks is None else _whole("blocks", blocks)
        if blocks < stages:
            raise ProblemError(
                f"{blocks} blocks cannot fill {stages} stages, each needs one at "
                f"least: use blocks={stages} or more, or stages={blocks} or fewer"
            )
        return tuple(blocks // stages + (s < blocks % stages) for s in range(stages))
    cut = tuple(cut)
    if len(cut) != stages:
        raise ProblemError(
            f"cut={list(cut)} is for {len(cut)} stages, this lab has {stages}: "
            "give the number of blocks of each stage"
        )
    for size in cut:
        _whole("each entry of cut", size)
    if blocks is not None and sum(cut) != blocks:
        raise ProblemError(f"cut={list(cut)} has {sum(cut)} blocks, not {blocks}")
    return cut
