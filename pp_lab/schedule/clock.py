"""The one clock: everything that works in order is a first-in-first-out lane.

A rank's compute, a CUDA stream, a link: each is a lane. Time = lanes + needs.
"""

from typing import NamedTuple


class Rule(NamedTuple):
    """What the tasks of one kind at one place wait for, make, and take, for every micro-batch.

    needs: pairs (result, lag): not before the result was made, plus the lag
    makes: the results that are there when the task ends
    """

    needs: list
    makes: list
    duration: object


def clock(lanes, microbatches):
    """When each task starts and ends.

    lanes: for each lane its rules and its tasks. A task is (kind, place, micro-batch), and
        `rules[kind][place]` is its `Rule`; it needs and makes the results of its own
        micro-batch. Tasks on a lane run one after the other, in the order given.

    Returns for each lane the starts and the ends of its tasks, cut short where a task can
    never start; and for each result the time at which it was made, by micro-batch (None if
    never). Each task and each need is looked at once, however long the lanes are. KeyError,
    IndexError or TypeError where there is no rule for a task, ValueError where a result is
    made twice.
    """
    results = {}  # result -> its times, and for each time to come the lanes that wait for it

    def find(result):
        return results.setdefault(result, ([None] * microbatches, {}))

    def work(rules, tasks, starts, ends):
        """Run a lane as far as it goes; yield what it waits for."""
        rules = {
            kind: {
                place: (
                    [(*find(result), lag) for result, lag in needs],
                    list(map(find, makes)),
                    duration,
                )
                for place, (needs, makes, duration) in places.items()
            }
            for kind, places in rules.items()
        }
        now = 0
        for kind, place, i in tasks:
            needs, makes, duration = rules[kind][place]
            for times, waiting, lag in needs:
                end = times[i]
                if end is None:
                    yield waiting, i
                    end = times[i]
                end += lag
                if end > now:
                    now = end
            starts.append(now)
            now += duration
            ends.append(now)
            for times, waiting in makes:
                if times[i] is not None:
                    raise ValueError("a result is made twice")
                times[i] = now
                if i in waiting:
                    runnable.extend(waiting.pop(i))

    spans = [([], []) for _ in lanes]
    runnable = [work(*lane, *span) for lane, span in zip(lanes, spans, strict=True)]
    while runnable:
        lane = runnable.pop()
        for waiting, i in lane:
            waiting.setdefault(i, []).append(lane)
            break
    return spans, {result: times for result, (times, _) in results.items()}
