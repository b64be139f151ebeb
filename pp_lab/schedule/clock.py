"""The one clock: everything that works in order is a first-in-first-out lane.

A rank's compute, a CUDA stream, a link: each is a lane. Time = lanes + needs.
"""


def clock(lanes, needs, durations):
    """When each task starts and ends.

    lanes: for each lane its tasks, in order; tasks are numbered 0, 1, 2, …
    needs: for each task, pairs (task, lag): it starts no earlier than that task's end + lag.
    durations: for each task.

    Returns (starts, ends), with None for tasks that can never start. Each task and each
    need is looked at once, however long the lanes are.
    """
    starts, ends = [None] * len(durations), [None] * len(durations)
    position, free = [0] * len(lanes), [0] * len(lanes)
    waiting = {}  # task -> lanes whose next task needs it
    runnable = list(range(len(lanes)))
    while runnable:
        lane = runnable.pop()
        queue, at, now = lanes[lane], position[lane], free[lane]
        while at < len(queue):
            task = queue[at]
            start = now
            for need, lag in needs[task]:
                end = ends[need]
                if end is None:
                    waiting.setdefault(need, []).append(lane)
                    break
                if end + lag > start:
                    start = end + lag
            else:
                starts[task] = start
                ends[task] = now = start + durations[task]
                at += 1
                if task in waiting:
                    runnable += waiting.pop(task)
                continue
            break
        position[lane], free[lane] = at, now
    return starts, ends
