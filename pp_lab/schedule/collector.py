"""Python's collector of reference cycles, paused while very many tuples are made."""

import gc
from contextlib import contextmanager


@contextmanager
def paused():
    """No search for cycles in here.

    A schedule of 100,000 ops is as many tuples and not one cycle; Python would search
    them again and again while they are made, which takes longer than making them.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
