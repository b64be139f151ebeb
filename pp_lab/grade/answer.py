"""The judge's side: stand-ins for a learner's functions, which run in a sandbox."""

import inspect
import os

import torch

from ..run.failures import StepError
from ..run.rank import Rank
from .remote import ASKED, THE_RANK
from .sandbox import AnswerError, Sandbox

_sandboxes = {}  # (process, sources) -> the one sandbox of this process


class Answer:
    """A learner's function, called from where the verdict is made: it runs in a sandbox.

    Each process that calls one has a sandbox of its own: the judge one, and every rank one.
    """

    def __init__(self, name, sources, parameters):
        self.__name__, self.sources = name, sources
        if parameters is not None:
            P = inspect.Parameter
            self.__signature__ = inspect.Signature(
                [P(n, kind, default=None if has else P.empty) for n, kind, has in parameters],
                __validate_parameters__=False,
            )

    def __call__(self, *arguments):
        rank = next((a for a in arguments if isinstance(a, Rank)), None)
        try:
            return self._call(rank, arguments)
        except AnswerError as error:
            if rank is None:
                raise
            raise StepError(str(error)) from None  # a rank reports these without its own frames

    def _call(self, rank, arguments):
        sandbox = sandbox_for(self.sources, rank)
        failures, requests = [], []
        sandbox.wire.send(
            {
                "call": self.__name__,
                "arguments": [THE_RANK if isinstance(a, Rank) else a for a in arguments],
                "at": rank and [rank.copy, rank._stage, rank.module.microbatch],
            },
            keep=True,
        )
        while True:
            message = sandbox.receive(keep=True)
            if "returned" in message:
                if rank is not None and self in (rank.forward_step, rank.backward_step):
                    _take(rank, message.get("grads"))
                return message["returned"]
            if "raised" in message:
                raise _raised(message, failures)
            sandbox.wire.send(_do(rank, message, requests, failures))


def sandbox_for(sources, rank=None):
    """This process's sandbox; it is started when it is first asked for."""
    key = os.getpid(), sources
    if key not in _sandboxes:
        torch.set_num_threads(1)  # a pool of threads does not live on in a fork
        _sandboxes[key] = Sandbox(sources, rank)
    return _sandboxes[key]


def _do(rank, message, requests, failures):
    """Carry out what a program asks of its rank; the reply."""
    try:
        what, arguments = message["ask"], message["arguments"]
        named = {str(k): v for k, v in message.get("named", {}).items()}
        if rank is None:
            raise StepError("there is no rank here")
        if what in ASKED:
            value = getattr(rank, what)(*arguments, **named)
        elif what == "recv":
            rank.recv(*arguments, **named)
            value = arguments[0]
        elif what in ("isend", "irecv", "all_reduce"):
            request = getattr(rank, what)(*arguments, **named)
            requests.append(request)
            value = arguments[0] if request is None else len(requests) - 1
        elif what == "wait":
            request = requests[arguments[0]]
            request.wait()
            value = None if request.sends else request.tensor
        elif what == "is_completed":
            value = requests[arguments[0]].is_completed()
        elif what == "all_to_all_single":
            rank.all_to_all_single(*arguments, **named)
            value = arguments[0]
        elif what == "now":
            value = rank.now
        else:
            raise StepError(f"a rank does not {what}")
        return {"value": value}
    except Exception as error:
        failures.append(error)
        return {
            "failed": [type(error).__name__, str(error)],
            "request": len(failures) - 1,
        }


def _take(rank, grads):
    """The gradients that a step of the learner's left at the stage's weights."""
    parameters = list(rank.module.parameters())
    if not isinstance(grads, list) or len(grads) != len(parameters):
        raise AnswerError("the stage has lost its parameters")
    for parameter, grad in zip(parameters, grads, strict=True):
        if grad is not None and (
            not isinstance(grad, torch.Tensor) or grad.shape != parameter.shape
        ):
            raise AnswerError("a gradient does not have the shape of its parameter")
        parameter.grad = None if grad is None else grad.to(parameter.dtype)


def _raised(message, failures):
    """What the learner's function raised, as an exception on this side."""
    request, told = message.get("request"), message["raised"]
    if isinstance(request, int) and 0 <= request < len(failures):
        return failures[request]
    return exception(told)


def exception(told):
    """An exception from its description (see `sandbox.describe`)."""
    if told["unsolved"]:
        return NotImplementedError(str(told["text"]))
    text = f"{told['type']}: {told['text']}"
    return AnswerError(f"{text}\n{told['line']}" if told["line"] else text)
