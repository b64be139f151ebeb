"""Messages between ranks: a thin layer over torch.distributed that cannot be misused silently.

Raw point-to-point on gloo aborts the process when a message is longer than the receiver's
buffer, accepts another shape or dtype without a word, hangs on a second wait, and loses what
nobody waited for. Here every message starts with a header that says what it is, and every
request knows its tensor, its peer and whether it is done.

As on gloo and NCCL, a send is a rendezvous: it ends when the other side has posted the
receive.
"""

import ctypes
import mmap
import pickle
import threading
import time
from collections import defaultdict

import torch
import torch.distributed as dist

from .failures import TransportError

HEADER = 256  # bytes in front of every message
STATUS = 256  # bytes of the file that says where a rank is


class Request:
    """A send or a receive under way. `wait()` may be called any number of times."""

    __slots__ = ("transport", "verb", "tensor", "peer", "tag", "what", "done", "work", "buffer",
                 "version", "thread", "failure")  # fmt: skip

    def __init__(self, transport, verb, tensor, peer, tag, what):
        self.transport, self.verb, self.tensor = transport, verb, tensor
        self.peer, self.tag, self.what = peer, tag, what
        self.version, self.done = tensor._version, False
        self.buffer = self.thread = self.failure = None

    def __repr__(self):
        return f"<{self.verb} of {self.what} {'to' if self.sends else 'from'} rank {self.peer}>"

    @property
    def sends(self):
        return self.verb == "isend"

    def wait(self):
        """Return when the transfer is complete; a received tensor is filled from then on."""
        if self.done:
            return True
        transport = self.transport
        if transport.place.startswith("after"):  # the learner's own wait
            transport.at(f"in wait() of {self.verb}")
        if transport.watched:  # so that who waits for whom can be told
            transport.waiting = self, time.monotonic()
        (self.work.wait if self.thread is None else self.thread.join)()
        transport.waiting = None
        if self.failure:
            raise self.failure
        self.done = True
        del transport.outstanding[self]
        if not self.sends:
            transport.unpack(self)
        elif self.tensor._version != self.version:
            raise TransportError(
                f"the tensor of {self!r} was changed before its wait(): what arrives is then "
                "undefined. Wait first, or send a clone"
            )
        return True

    def is_completed(self):
        """True once the transfer is complete, without waiting for it."""
        if not self.done and self.thread is None:
            # gloo only knows inside wait(), so something has to wait.
            self.thread = threading.Thread(target=self._wait_aside, daemon=True)
            self.thread.start()
        return self.done or not self.thread.is_alive()

    def _wait_aside(self):
        try:
            self.work.wait()
        except Exception as error:
            self.failure = error


class Collective:
    """A collective that a rank is in: the `number`-th that it called among these ranks."""

    def __init__(self, verb, number, members):
        self.verb, self.number, self.members = verb, number, members

    def __repr__(self):
        return f"<{self.verb}, collective {self.number}>"


class Transport:
    """Point-to-point messages of one rank.

    capacity: bytes of the longest message that can be received. tags=False matches messages
    in the order in which they were sent, as NCCL does, whatever their tags. The clock's stamp
    travels with each message. status: a file that says which call the rank is in. bare:
    messages go without a header and without a copy; both sides must know what comes.
    """

    def __init__(self, rank, size, capacity, device, tags, clock, status, bare=False):
        self.rank, self.size, self.device, self.tags = rank, size, device, tags
        self.capacity, self.on_cpu = capacity, device.type == "cpu"
        self.clock, self.bare = clock, bare
        # Straight to gloo or NCCL: c10d's dispatcher takes as long as they do.
        self.backend = dist.group.WORLD and dist.group.WORLD._get_backend(device)
        self._heads, self._places = {}, {}
        self._free = []  # buffers of messages that have been unpacked
        self.outstanding = {}  # requests that are not done, oldest first; the values mean nothing
        self.waiting = None  # the request in whose wait() the rank is, and since when
        self.watched = True  # not so where several threads wait
        with open(status, "wb") as file:
            file.write(bytes(STATUS))
        with open(status, "r+b") as file:
            self._status = mmap.mmap(file.fileno(), STATUS)
        self.at("at its start")
        self.sent = self.sent_bytes = 0
        self.collectives = {}  # members -> how many were called
        self.reductions = []  # sums that were started
        self.over = defaultdict(list)  # peer -> the tags of the messages sent, in order

    def make_room(self, size):
        """From now on, allow messages of `size` bytes at least."""
        if size > self.capacity:
            self.capacity, self._free = size, []

    def at(self, place):
        """Note the call that the rank is in, where the parent can read it whatever happens."""
        self.place = place
        text = self._places.get(place)
        if text is None:
            text = self._places[place] = place.encode()[: STATUS - 1] + b"\0"
        self._status[: len(text)] = text

    def isend(self, tensor, dst, tag=0, what="a tensor"):
        if not self.bare:
            self._check(tensor, dst, "dst", "isend")
        request = Request(self, "isend", tensor, dst, tag, what)
        self.sent += 1
        self.sent_bytes += tensor.nbytes
        request.buffer = tensor if self.bare else self._packed(tensor, tag, what, dst)
        request.work = self.backend.send([request.buffer], dst, tag if self.tags else 0)
        self.outstanding[request] = None
        return request

    def _packed(self, tensor, tag, what, dst):
        """One buffer, so that header and payload are one message and need one receive."""
        stamp = self.clock.stamp(dst)
        self.over[dst].append(tag)
        head = self._head(tag, tensor, what)
        head += b"\0" if stamp is None else pickle.dumps(stamp)
        if len(head) > HEADER:
            raise TransportError(
                f"a tensor with {tensor.dim()} dimensions is too much for one "
                "message: reshape it first"
            )
        size = tensor.nbytes
        sent = 0 if size > self.capacity else size  # the header alone tells what was sent
        message = torch.empty(HEADER + sent, dtype=torch.uint8, device=self.device)
        if self.on_cpu:
            start = message.data_ptr()
            ctypes.memmove(start, head, len(head))
            ctypes.memmove(start + HEADER, tensor.data_ptr(), sent)
        else:
            message[: len(head)] = torch.frombuffer(bytearray(head), dtype=torch.uint8)
            if sent:
                message[HEADER:] = tensor.detach().view(-1).view(torch.uint8)
        return message

    def irecv(self, tensor, src, tag=0, what="a tensor"):
        if not self.bare:
            self._check(tensor, src, "src", "irecv")
        request = Request(self, "irecv", tensor, src, tag, what)
        request.buffer = tensor if self.bare else self._room(tensor)
        request.work = self.backend.recv([request.buffer], src, tag if self.tags else 0)
        self.outstanding[request] = None
        return request

    def next_collective(self, verb, members):
        """The next collective among these ranks, which all of them must call in the same order."""
        number = self.collectives.get(members, 0)
        self.collectives[members] = number + 1
        return Collective(verb, number, members)

    def collective(self, verb, members, start):
        """Carry out a collective; returns when `start` has done it."""
        self.waiting = self.next_collective(verb, members), time.monotonic()
        start()
        self.waiting = None

    def unpack(self, request):
        """Check a received message against what its receiver declared, and hand it over."""
        if self.bare:
            return
        message, tensor = request.buffer, request.tensor
        at = message.data_ptr()
        if self.on_cpu:
            start = ctypes.string_at(at, HEADER)
        else:
            start = message[:HEADER].cpu().numpy().tobytes()
        expected = self._head(request.tag, tensor, request.what)
        if not start.startswith(expected):
            self._explain(request, start)
        stamp = start[int.from_bytes(start[:2], "big") :]
        if self.on_cpu:
            ctypes.memmove(tensor.data_ptr(), at + HEADER, tensor.nbytes)
            torch.autograd.graph.increment_version(tensor)  # as any other change would
        else:
            with torch.no_grad():
                payload = message[HEADER : HEADER + tensor.nbytes]
                tensor.view(-1).view(torch.uint8).copy_(payload)
        self._free.append(request.buffer)
        request.buffer = None
        self.clock.arrived(pickle.loads(stamp) if stamp[0] else None)

    def _room(self, tensor):
        """A buffer to receive into: with room for the longest message there is, for gloo would
        abort on one that does not fit. NCCL moves just as many bytes as the receiver asks for."""
        if self.on_cpu and self._free:
            return self._free.pop()
        room = self.capacity if self.on_cpu else tensor.nbytes
        return torch.empty(HEADER + room, dtype=torch.uint8, device=self.device)

    def _head(self, tag, tensor, what):
        """The part of a header that is known beforehand: how long it is, then what comes."""
        key = (tag, what, tensor.dtype, tensor.shape)
        if key not in self._heads:
            text = pickle.dumps((tag, what, str(tensor.dtype), tuple(tensor.shape)))
            self._heads[key] = (2 + len(text)).to_bytes(2, "big") + text
        return self._heads[key]

    def _explain(self, request, start):
        """Raise if a received header is not what the receiver declared, and say how."""
        _, what, dtype, shape = pickle.loads(start[2 : int.from_bytes(start[:2], "big")])
        tensor, peer = request.tensor, request.peer
        here = f"rank {self.rank} receives {request.what} from rank {peer}"
        if "a tensor" not in (what, request.what) and what != request.what:
            raise TransportError(
                f"{here}, but the next message that rank {peer} sent is {what}. Messages "
                "arrive in the order in which they were sent: receive them in that order"
            )
        if shape != tuple(tensor.shape) or dtype != str(tensor.dtype):
            raise TransportError(
                f"{here} into a tensor of shape {list(tensor.shape)}, {tensor.dtype}, but rank "
                f"{peer} sent shape {list(shape)}, {dtype}"
            )

    def _check(self, tensor, peer, name, verb):
        if not isinstance(tensor, torch.Tensor):
            raise TransportError(
                f"{verb} takes a tensor, not {type(tensor).__name__}"
                + (": is a return missing where it was made?" if tensor is None else "")
            )
        if not isinstance(peer, int) or not 0 <= peer < self.size:
            raise TransportError(
                f"{verb}: {name}={peer!r} is no rank; ranks are 0 to "
                f"{self.size - 1}"
                + (" (the last has no next, the first no previous)" if peer is None else "")
            )
        if peer == self.rank:
            raise TransportError(f"{verb}: rank {peer} cannot exchange messages with itself")
        if not tensor.is_contiguous():
            raise TransportError(
                f"{verb} of a tensor that is not contiguous (shape {list(tensor.shape)}, strides "
                f"{list(tensor.stride())}): call .contiguous() first"
            )
        if tensor.device.type != self.device.type:
            raise TransportError(
                f"{verb} of a tensor on {tensor.device}, but this run's ranks "
                f"exchange tensors on {self.device}"
            )
