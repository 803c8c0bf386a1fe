"""What has to be known of all rows, where the rows lie in parts in several places.

An inquiry is a generator. It yields questions, is sent the answer of all parts together, and
returns what it found:

    question = next(inquiry)
    while True:                                  # until StopIteration, whose value is the result
        answers = [question.answer(part) for part in parts]           # where each part is
        question = inquiry.send(reduce(question.merge, answers))      # in any order, in any tree

Questions and answers are small and can be pickled, so an engine may send them to other machines.
Merging is exact, commutative and associative: what is found is what one machine would find in all
rows together, to the last bit, whatever the parts are. What a part is, the question says.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Any, Protocol, TypeVar

Found = TypeVar("Found")


class PartQuestion(Protocol):
    """What every part is asked."""

    def answer(self, part: Any) -> Any:
        """What one part says."""

    def merge(self, one: Any, other: Any) -> Any:
        """What two parts say together."""


Inquiry = Generator[PartQuestion, Any, Found]
"""Questions, one after the other, and what was found in the end."""


def conduct(inquiry: Inquiry[Found], ask: Callable[[PartQuestion], Any]) -> Found:
    """Ask until there is nothing left to ask; ``ask`` returns what all parts say together."""
    try:
        question = next(inquiry)
        while True:
            question = inquiry.send(ask(question))
    except StopIteration as end:
        return end.value


def ask_here(parts: Iterable[Any]) -> Callable[[PartQuestion], Any]:
    """A way to ask parts that are all here."""
    kept = list(parts)
    return lambda question: reduce(question.merge, map(question.answer, kept))


@dataclass(frozen=True)
class ViewQuestion:
    """A question about what ``view`` makes of a part; it is pickled with the question."""

    question: PartQuestion
    view: Callable[[Any], Any]

    def answer(self, part: Any) -> Any:
        return self.question.answer(self.view(part))

    def merge(self, one: Any, other: Any) -> Any:
        return self.question.merge(one, other)


def seen_as(view: Callable[[Any], Any], inquiry: Inquiry[Found]) -> Inquiry[Found]:
    """The same inquiry about what ``view`` makes of each part."""
    try:
        question = next(inquiry)
        while True:
            answer = yield ViewQuestion(question, view)
            question = inquiry.send(answer)
    except StopIteration as end:
        return end.value
