"""A schedule on the clock."""

from .clock import clock
from .collector import paused
from .connect import connect, result
from .cost import F1B2
from .reasons import refusal


@paused()
def timed(schedule, cost=F1B2):
    """The `Lane`s of a schedule under a cost: it is connected, and the clock runs it.

    Refuses, with a reason, whatever is not a complete set of ops, each once and on the rank that
    owns its stage, in an order in which nobody waits for ever.
    """
    try:
        queues = connect(schedule, cost)
        most = -(-schedule.microbatches // len(schedule.placement.copies))
        spans, made = clock([(queue.rules, queue.tasks) for queue in queues], most)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise refusal(schedule) or error from None
    ended = all(len(q.tasks) == len(ends) for q, (_, ends) in zip(queues, spans, strict=True))
    if not (ended and _complete(schedule, cost, made)):
        raise refusal(schedule)
    return [lane for q, span in zip(queues, spans, strict=True) for lane in q.lanes(*span)]


def _complete(schedule, cost, made):
    """Whether every stage has run each micro-batch of its copy forward and backward."""
    for copy in range(len(schedule.placement.copies)):
        count = len(schedule.placement.dealt(copy, schedule.microbatches))
        for stage in range(schedule.stages):
            for op in cost.pieces(stage):
                times = made.get(result(op, copy * schedule.stages), [None])
                if op.kind != "B" and None in times[:count]:  # a B is an I and a W
                    return False
    return True
