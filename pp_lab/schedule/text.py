"""The timeline as text: what `print(trace)` shows, a picture's alt text, what nbval compares."""

from fractions import Fraction
from math import gcd, lcm

WIDTH = 160  # columns for the time axis, at most


def number(x) -> str:
    """A time as people write it: 28.5, not 57/2; measured ones to four digits."""
    if isinstance(x, int):
        return str(x)
    if isinstance(x, Fraction):
        text = f"{float(x):.12g}"
        return text if Fraction(text) == x else f"{x.numerator}/{x.denominator}"
    return f"{x:.4g}"


def headline(trace) -> str:
    """Name, sizes, cost model or clock, and the figures, in one line."""
    s = trace.schedule
    times = f"cost {trace.cost}" if trace.cost else "measured, in seconds"
    if trace.clock != "simulated":
        times += f", {trace.clock} clock"
    peaks = " ".join(map(str, trace.peak_activations))
    return (
        f"{s.name} p={s.p} m={s.microbatches}, {times}: makespan {number(trace.makespan)}, "
        f"bubble {float(trace.bubble):.1%}, peak activations {peaks}"
        + (f", peak bytes {_peak_bytes(trace)}" if trace.held_bytes else "")
    )


def _peak_bytes(trace):
    return " ".join(str(max((n for _, n in steps), default=0)) for steps in trace.held_bytes)


def in_bytes(count) -> str:
    """Bytes as people write them: 6144 B, 408 KiB, 1632 KiB, 40 MiB."""
    units = ["B", "KiB", "MiB", "GiB"]
    while count >= 10_000 and len(units) > 1:
        count, units = count / 1024, units[1:]
    return f"{count} {units[0]}" if isinstance(count, int) else f"{count:.4g} {units[0]}"


def _below(lane):
    """Sorts lanes by rank, compute first."""
    rank, name = lane
    return rank, name != "compute", name


def timeline_text(trace) -> str:
    """One row per rank; every op starts in its column, idle time is dots, a message is ~."""
    label = trace.schedule.label
    events = trace.events
    if not events:
        return headline(trace) + "\n(nothing ran)"
    times = [t for e in events for t in (e.start, e.end)]
    lengths = [
        (len(label(e.op)) + 1, e.end - e.start) for e in events if e.end > e.start and e.op.parts
    ]
    if any(isinstance(t, float) for t in times) or not lengths:
        scale = Fraction(WIDTH) / Fraction(trace.makespan or 1)
    else:
        # Columns per smallest step of time, so that the shortest op still shows its name.
        parts = [Fraction(t) for t in times]
        base = lcm(*(t.denominator for t in parts))
        step = Fraction(gcd(*((t * base).numerator for t in parts)), base)
        wide = max(-(-Fraction(size) * step // duration) for size, duration in lengths)
        scale = min(wide / step, Fraction(WIDTH) / Fraction(trace.makespan))
    digits = len(str(trace.schedule.p - 1))
    lines = [headline(trace)]
    # Messages that hold a rank up stand in its row; another lane has a row of its own, below.
    lanes = {(rank, "compute"): [] for rank in range(len(trace.ranks))}
    lanes |= {(e.rank, e.lane): [] for e in events if e.lane != "comm"}
    rows = {lane: ["."] * round(trace.makespan * scale) for lane in sorted(lanes, key=_below)}
    for e in events:
        first, last = round(e.start * scale), round(e.end * scale)
        size, name = last - first, label(e.op)
        if e.lane == "comm":
            cells = "~" * size
        elif not e.op.parts:  # a message on a link
            name = f"{e.op.kind}{e.op.microbatch}"
            cells = name + "~" * (size - len(name) - 1) + " " if size > len(name) else "~" * size
        elif size > len(name):
            cells = name + "-" * (size - len(name) - 1) + " "
        else:
            cells = (e.op.parts[0].kind if len(e.op.parts) == 1 else "&") * size
        rows[e.rank, "compute" if e.lane == "comm" else e.lane][first:last] = cells
    names = {lane: f"rank {lane[0]:{digits}}" if lane[1] == "compute" else lane[1] for lane in rows}
    wide = max(map(len, names.values()))
    lines += [f"{names[lane]:>{wide}} |{''.join(row)}|" for lane, row in rows.items()]
    return "\n".join(lines)
