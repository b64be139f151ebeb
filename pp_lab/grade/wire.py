"""What crosses the line between a sandbox and those who judge: plain data, never pickle.

`pack` and `unpack` turn values into bytes and back. What is not plain data arrives as an
`Opaque`, which shows what it was. Whatever the bytes say, unpacking makes only values of the
types below.
"""

import base64
import json
import math
import os
import select
import struct
import time
from fractions import Fraction
from numbers import Integral, Real

import torch

from ..schedule import LabError, Op, Pair

LONGEST = 1 << 26  # bytes of a message
SHOWN = 200  # characters of what is not plain data
DTYPES = {
    str(t).removeprefix("torch."): t
    for t in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64,
              torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
}  # fmt: skip


class WireError(LabError):
    """A message that says nothing, is too long, or comes too late."""


class Closed(WireError):
    """The other side is gone."""


class Opaque:
    """Something that is not plain data. It is shown as it was, and equal to nothing else."""

    def __init__(self, shown):
        self.shown = shown

    def __repr__(self):
        return self.shown


class Wire:
    """One end of a line: messages in order, each a dict."""

    def __init__(self, read, write):
        self.read, self.write = read, write
        self.tensors = {}  # token -> the tensor on this side
        self.versions = {}  # token -> which change of it the other side knows
        self._next = 0

    def send(self, message, keep=False):
        """keep: the other side may name the tensors in this message again."""
        data = json.dumps(self._plain(message, keep)).encode()
        data = struct.pack("!I", len(data)) + data
        try:
            while data:
                data = data[os.write(self.write, data) :]
        except OSError:
            raise Closed("the other side is gone") from None

    def receive(self, deadline=math.inf, keep=False):
        """The next message. deadline: by time.monotonic(). Raises WireError."""
        (length,) = struct.unpack("!I", self._bytes(4, deadline))
        if length > LONGEST:
            raise WireError(f"a message of {length} bytes; {LONGEST} is the most")
        try:
            return self._value(json.loads(self._bytes(length, deadline)), keep)
        except (ValueError, TypeError, KeyError, AttributeError, RuntimeError, RecursionError):
            raise WireError("a message that says nothing") from None

    def _bytes(self, count, deadline):
        parts = bytearray()
        while len(parts) < count:
            left = deadline - time.monotonic()
            ready = left > 0 and select.select([self.read], [], [], min(left, 3600))[0]
            if not ready:
                if left < 3600:
                    raise TimeoutError
                continue
            try:
                part = os.read(self.read, min(count - len(parts), 1 << 20))
            except OSError:
                part = b""
            if not part:
                raise Closed("the other side is gone")
            parts += part
        return bytes(parts)

    # ---- values to JSON

    def _plain(self, value, keep):
        def inside(values):
            return [self._plain(v, keep) for v in values]

        if value is None or isinstance(value, (bool, str)):
            return value
        if isinstance(value, Integral):
            return int(value)
        if isinstance(value, Fraction):
            return {"fraction": [value.numerator, value.denominator]}
        if isinstance(value, Real):
            return float(value)
        if type(value) in (Op, Pair):
            return {type(value).__name__: inside(value)}
        if isinstance(value, tuple):
            return {"tuple": inside(value)}
        if isinstance(value, list):
            return inside(value)
        if isinstance(value, dict):
            return {"dict": [inside(item) for item in value.items()]}
        if isinstance(value, torch.Tensor):
            return self._plain_tensor(value, keep)
        return {"opaque": repr(value)[:SHOWN]}

    def _plain_tensor(self, tensor, keep):
        token = getattr(tensor, "_token", None)
        if keep and self.tensors.get(token) is tensor and self.versions[token] == tensor._version:
            return {"same": token}  # one that was changed in place is another one
        values = tensor.detach().cpu()
        if keep:
            # Each side gives its own numbers: whoever receives one keeps it under that number.
            self._next += 1
            token = tensor._token = f"{os.getpid()}.{self._next}"
            self.tensors[token], self.versions[token] = tensor, tensor._version
        raw = values.contiguous().view(-1).view(torch.uint8) if values.numel() else None
        return {
            "tensor": base64.b64encode(b"" if raw is None else raw.numpy().tobytes()).decode(),
            "dtype": str(values.dtype).removeprefix("torch."),
            "shape": list(values.shape),
            "stride": None if values.is_contiguous() else list(values.stride()),
            "token": token if keep else None,
        }

    # ---- JSON to values

    def _value(self, plain, keep):
        if isinstance(plain, list):
            return [self._value(p, keep) for p in plain]
        if not isinstance(plain, dict):
            return plain
        if "tensor" in plain:
            return self._tensor(plain, keep)
        ((kind, content),) = plain.items()
        if kind == "same":
            return self.tensors[content]
        if kind == "opaque":
            return Opaque(str(content))
        values = [self._value(c, keep) for c in content]
        if kind == "dict":
            return {key if key.__hash__ else repr(key): value for key, value in values}
        makers = {
            "tuple": tuple,
            "fraction": lambda v: Fraction(int(v[0]), int(v[1]) or 1),
            "Op": lambda v: Op(*v),
            "Pair": lambda v: Pair(*v),
        }
        return makers[kind](values)

    def _tensor(self, plain, keep):
        dtype = DTYPES[plain["dtype"]]
        shape = [int(n) for n in plain["shape"]]
        raw = base64.b64decode(plain["tensor"])
        tensor = (
            torch.frombuffer(bytearray(raw), dtype=dtype) if raw else torch.empty(0, dtype=dtype)
        )
        tensor = tensor.reshape(shape)
        if plain["stride"]:
            stride = [int(n) for n in plain["stride"]]
            last = sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
            if min(stride) > 0 and last < LONGEST:
                tensor = torch.empty_strided(shape, stride, dtype=dtype).copy_(tensor)
        if keep and plain["token"]:
            tensor._token = str(plain["token"])
            self.tensors[tensor._token] = tensor
            self.versions[tensor._token] = tensor._version
        return tensor
