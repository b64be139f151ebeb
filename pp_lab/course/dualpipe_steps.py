"""The eight steps of a rank in DualPipe's code: how often each is repeated, and what that makes.

0 and 1 are the directions that a rank sees: 0 comes in at its own half of the ranks. The forward
and the backward of a direction are on the same stage. half: ranks in half of the pipeline; depth:
the rank's distance from its end; n: micro-batches in each direction.
"""

from ..schedule import Op, Pair

STEPS = ("F0", "F0 F1", "I1 W F1", "F0&B1 F1&B0", "B1 F1&B0", "B1 B0", "W I0", "W")


def counts(half, depth, n):
    """How often a rank repeats each of the eight steps in DualPipe."""
    rest = half - depth - 1
    return [2 * rest, depth + 1, rest, n - 2 * half + depth + 1, rest, depth + 1, rest, depth + 1]


def unbalanced(counts, n):
    """Which ops are too many, or too few, if the eight steps are repeated so often."""
    for name in ("F0", "F1", "backwards of direction 0", "backwards of direction 1"):
        way = name[-1]
        kinds = ("F" + way,) if name[0] == "F" else ("B" + way, "I" + way)
        per = [sum(word in kinds for word in step.replace("&", " ").split()) for step in STEPS]
        total = sum(c * k for c, k in zip(counts, per, strict=True))
        if total != n:
            what = f"forwards of direction {way}" if name[0] == "F" else name
            used = [f"step {k + 1}: {c * per[k]}" for k, c in enumerate(counts) if c * per[k]]
            return f"that makes {total} {what} ({', '.join(used)}), and there are {n}"
    split = counts[2] + counts[5] + counts[6]  # the second half of step 6 leaves its W
    late = counts[2] + counts[6] + counts[7]
    if split != late:
        return (
            f"that makes {split} input gradients (steps 3, 6 and 7) whose weight gradients are "
            f"left, but {late} W (steps 3, 7 and 8)"
        )
    return None


def ops(half, depth, n, counts):
    """One rank's ops, on a V of `half` ranks, from the counts of its eight steps."""
    stages = (depth, 2 * half - 1 - depth)
    made = {kind + str(way): iter([Op(kind, stage, i) for i in range(n)])
            for kind in "FB" for way, stage in enumerate(stages)}  # fmt: skip
    waiting = []
    for number, (step, count) in enumerate(zip(STEPS, counts, strict=True), 1):
        for k in range(count):
            for j, word in enumerate(step.split()):
                if word == "W":
                    yield from waiting[:1]
                    del waiting[:1]
                elif "&" in word:
                    f, b = (next(made[part]) for part in word.split("&"))
                    yield Pair(f, b)
                elif word[0] == "I" or (number == 6 and 2 * k + j >= count):
                    b = next(made["B" + word[1]])
                    waiting.append(b._replace(kind="W"))
                    yield b._replace(kind="I")
                else:
                    yield next(made[word])
