"""What comes out of a sandbox is plain data, whatever was put in; and its doors are shut."""

import json
import os
import struct
import time
from fractions import Fraction

import numpy as np
import pytest
import torch

from pp_lab import Op
from pp_lab.grade.sandbox import without_magics
from pp_lab.grade.wire import LONGEST, Closed, Opaque, Wire, WireError


@pytest.fixture
def ends():
    down, up = os.pipe(), os.pipe()
    yield Wire(down[0], up[1]), Wire(up[0], down[1])
    for number in (*down, *up):
        try:
            os.close(number)
        except OSError:
            continue


def carried(ends, value, keep=False):
    ends[0].send({"value": value}, keep)
    return ends[1].receive(time.monotonic() + 5, keep)["value"]


@pytest.mark.parametrize(
    "value",
    [None, True, 3, -(10**30), 0.1, float("inf"), "a", [1, [2]], (1, (2,)), {1: "a", (2, 3): []},
     Fraction(2, 7), Op("F", 0, 1), [[Op("B", 1, 0)]]],
)  # fmt: skip
def test_plain_data_arrives_as_it_was(ends, value):
    got = carried(ends, value)
    assert got == value and type(got) is type(value)


def test_numbers_of_numpy_arrive_as_numbers(ends):
    assert carried(ends, [np.float64(0.5), np.int32(3)]) == [0.5, 3]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64, torch.bool])
def test_tensors_arrive_to_the_last_bit(ends, dtype):
    tensor = torch.randn(3, 4, dtype=torch.float64).to(dtype)
    got = carried(ends, tensor)
    assert got.dtype == dtype and torch.equal(got, tensor)


def test_a_tensor_that_is_not_contiguous_arrives_as_one(ends):
    tensor = torch.randn(3, 4).t()
    got = carried(ends, tensor)
    assert torch.equal(got, tensor) and not got.is_contiguous()


def test_a_kept_tensor_is_the_same_object_when_it_is_named_again(ends):
    tensor = torch.randn(2)
    first = carried(ends, tensor, keep=True)
    assert carried(ends, tensor, keep=True) is first
    ends[1].send({"value": first}, keep=True)
    assert ends[0].receive(keep=True)["value"] is tensor


def test_a_kept_tensor_that_was_changed_in_place_comes_back_changed_and_leaves_the_first_alone(
    ends,
):
    tensor = torch.zeros(2)
    theirs = carried(ends, tensor, keep=True)
    theirs += 1
    ends[1].send({"value": theirs}, keep=True)
    assert ends[0].receive(keep=True)["value"].tolist() == [1, 1]
    assert tensor.tolist() == [0, 0]
    tensor += 2
    assert carried(ends, tensor, keep=True).tolist() == [2, 2]


class Everything(float):
    """Says that it is equal to all, and would run code when unpickled."""

    def __eq__(self, other):
        return True

    __hash__ = float.__hash__

    def __reduce__(self):
        return eval, ("1/0",)


def test_a_number_with_a_mind_of_its_own_arrives_as_a_number(ends):
    got = carried(ends, Everything(7))
    assert type(got) is float and got == 7.0 and got != 8.0


def test_what_is_not_plain_data_is_only_shown(ends):
    got = carried(ends, print)
    assert isinstance(got, Opaque) and repr(got) == "<built-in function print>"


@pytest.mark.parametrize(
    "data",
    [b"", b"not json", b'{"a": 1}', b"[" * 100_000, b'{"fraction": ["x", 1]}',
     b'{"tensor": "AAAA", "dtype": "float64", "shape": [9], "stride": null, "token": null}',
     b'{"tensor": "", "dtype": "exec", "shape": [], "stride": null, "token": null}',
     b'{"same": "1.1"}', b'{"__class__": []}', json.dumps({"Op": [1, 2, 3, 4]}).encode()],
)  # fmt: skip
def test_bytes_that_say_nothing_are_refused(ends, data):
    os.write(ends[0].write, struct.pack("!I", len(data)))
    # More than a pipe holds would wait for a reader.
    os.set_blocking(ends[0].write, False)
    os.write(ends[0].write, data)
    with pytest.raises((WireError, TimeoutError)):
        ends[1].receive(time.monotonic() + 0.5)


def test_a_message_that_is_too_long_is_refused_before_it_is_read(ends):
    os.write(ends[0].write, struct.pack("!I", LONGEST + 1))
    with pytest.raises(WireError, match="is the most"):
        ends[1].receive(time.monotonic() + 5)


def test_silence_ends_at_the_deadline_and_a_closed_line_at_once(ends):
    with pytest.raises(TimeoutError):
        ends[1].receive(time.monotonic() + 0.1)
    os.close(ends[0].write)
    with pytest.raises(Closed):
        ends[1].receive(time.monotonic() + 5)


def test_magics_do_nothing_and_keep_the_lines_where_they_are():
    source = "%load_ext x\nif 1:\n    !ls\na = 5 % 3\n"
    assert without_magics(source) == "pass\nif 1:\n    pass\na = 5 % 3\n"


def test_a_stand_in_for_a_rank_is_at_the_micro_batch_that_the_rank_is_at():
    """What is random in a stage depends on it."""
    from types import SimpleNamespace

    from pp_lab.grade.remote import RemoteRank
    from pp_lab.run.problem import Stage

    stage = Stage([torch.nn.Dropout(0.5)], [7])
    proxy = RemoteRank(SimpleNamespace(modules={(0, 0): stage}), None)
    drawn = []
    for microbatch in (1, 2, 1):
        proxy.at(0, 0, microbatch)
        drawn.append(proxy.module(torch.ones(64)))
    assert torch.equal(drawn[0], drawn[2]) and not torch.equal(drawn[0], drawn[1])
