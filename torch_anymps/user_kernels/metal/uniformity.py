"""Which values of a kernel are the same in all threads of a threadgroup, by what they are computed from."""

from __future__ import annotations

from . import vocabulary
from .tokens import Token, closing, split

PER_THREAD = frozenset(
    {
        "thread_position_in_grid",
        "thread_position_in_threadgroup",
        "thread_index_in_threadgroup",
        "thread_index_in_simdgroup",
        "simdgroup_index_in_threadgroup",
    }
)
_ASSIGNMENTS = frozenset({"=", "+=", "-=", "*=", "/=", "%=", "|=", "&=", "^=", "<<=", ">>=", "++", "--"})
_SOURCES = vocabulary.EXCHANGES | frozenset(vocabulary.ATOMICS)


def statement_end(tokens: list[Token], i: int) -> int:
    """The index behind the statement at i."""
    if tokens[i] == "{":
        return closing(tokens, i) + 1
    if tokens[i].text in ("if", "for", "while", "switch"):
        at = i + 1
        while tokens[at] != "(":
            at += 1
        end = statement_end(tokens, closing(tokens, at) + 1)
        if tokens[i] == "if" and end < len(tokens) and tokens[end] == "else":
            end = statement_end(tokens, end + 1)
        return end
    if tokens[i] == "do":
        return statement_end(tokens, statement_end(tokens, i + 1))
    while tokens[i] != ";":
        i = closing(tokens, i) + 1 if tokens[i].text in ("(", "[", "{") else i + 1
    return i + 1


def statements(tokens: list[Token]) -> list[list[Token]]:
    """The statements of a block without its braces."""
    found, i = [], 0
    while i < len(tokens):
        end = statement_end(tokens, i)
        found.append(tokens[i:end])
        i = end
    return found


def head_and_bodies(tokens: list[Token]) -> tuple[list[Token], list[list[Token]]]:
    """What an if, for, while or switch has in parentheses, and the statements that it controls."""
    at = next(k for k in range(len(tokens)) if tokens[k] == "(")
    end = closing(tokens, at)
    stop = statement_end(tokens, end + 1)
    bodies = [tokens[end + 1 : stop]]
    if stop < len(tokens):
        bodies.append(tokens[stop + 1 :])  # behind else
    return tokens[at + 1 : end], bodies


class Uniformity:
    """Of the body of one kernel. per_thread: names of its parameters that differ between threads."""

    def __init__(self, body: list[Token], per_thread: set[str], defined: set[str]) -> None:
        self._varying = set(per_thread)
        self._defined = defined
        before = -1
        while before != len(self._varying):
            before = len(self._varying)
            self._walk(body[1:-1], False)

    def varies(self, tokens: list[Token]) -> bool:
        """Whether an expression may differ between threads."""
        return any(t.kind == "name" and (t.text in self._varying or t.text in _SOURCES) for t in tokens)

    def leaves(self, tokens: list[Token], words: tuple[str, ...], varying: bool = False) -> bool:
        """Whether some threads, and not all, may go on behind code by one of the words, such as return."""
        for statement in statements(tokens):
            first = statement[0].text
            if first == "{":
                found = self.leaves(statement[1:-1], words, varying)
            elif first in ("if", "for", "while", "switch"):
                head, bodies = head_and_bodies(statement)
                inner = varying or self.varies(head)
                mine = words if first == "if" else tuple(w for w in words if w == "return")
                found = any(self.leaves(body, mine, inner) for body in bodies)
            else:
                found = varying and first in words
            if found:
                return True
        return False

    def _walk(self, tokens: list[Token], varying: bool) -> None:
        for statement in statements(tokens):
            first = statement[0].text
            if first == "{":
                self._walk(statement[1:-1], varying)
            elif first in ("if", "for", "while", "switch"):
                head, bodies = head_and_bodies(statement)
                for part in split(head, ";") if first == "for" else []:
                    self._assign(part, varying)
                inner = varying or self.varies(head)
                for part in split(head, ";") if first == "for" else []:
                    self._assign(part, inner)
                for body in bodies:
                    self._walk(body, inner)
            elif first == "do":
                end = statement_end(statement, 1)
                self._walk(statement[1:end], varying or self.varies(statement[end:]))
            elif first not in ("return", "break", "continue"):
                self._assign(statement, varying)

    def _assign(self, statement: list[Token], varying: bool) -> None:
        """Notes what a statement changes: the name before the mark, or the one that a place of it begins with."""
        places = [k for k, t in enumerate(statement) if t.text in _ASSIGNMENTS]
        if not places:
            called = statement[0].text in self._defined
            if called and (varying or self.varies(statement)):  # what it gets by reference may change
                self._varying |= {t.text for t in statement[1:] if t.kind == "name"}
            return
        if not varying and not self.varies(statement):
            return
        for place in places:
            target = statement[place + 1 :] if place == 0 else statement[:place]
            start = max([k + 1 for k, t in enumerate(target) if t.text in (",", ";")], default=0) if place else 0
            names = [t.text for t in target[start:] if t.kind == "name" and t.text not in _types()]
            if names:  # of a place such as a[i].b, what it begins with
                is_place = any(t.text in (".", "->", "[", "*") for t in target[start:])
                pairs = zip(target[start:], target[start + 1 :])
                declared = next((b.text for a, b in pairs if a.kind == b.kind == "name" and b.text in names), None)
                self._varying.add(declared or (names[0] if is_place else names[-1]))


def _types() -> frozenset[str]:
    return (
        frozenset({"const", "device", "constant", "thread", "auto"})
        | vocabulary.SCALAR_TYPES
        | vocabulary.VECTOR_TYPES
        | frozenset(vocabulary.TYPES)
    )
