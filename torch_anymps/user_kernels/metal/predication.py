"""Simd functions in branches, for devices whose subgroups have other than 32 threads: there they need a whole
threadgroup, so a branch that not all threads take becomes a condition of its statements."""

from __future__ import annotations

from . import vocabulary
from .tokens import Token, closing, closing_angle, refuse, split, tokenize
from .uniformity import Uniformity, head_and_bodies, statements

_LOOPS = frozenset({"for", "while"})
_QUALIFIERS = frozenset({"const", "device", "constant", "thread", "constexpr"})
_WORDS = vocabulary.EXCHANGES | {"simdgroup_barrier"}


def predicate(translator, body: list[Token], per_thread: set[str]) -> list[Token]:
    """The body of a kernel with no simd function where only some threads come to it. per_thread: names of parameters
    that differ between threads. Raises SyntaxError where one is left."""
    uniformity = Uniformity(body, per_thread, translator.defined)
    return [body[0], *_Predication(translator, uniformity).block(body[1:-1], "", is_whole=True), body[-1]]


class _Predication:
    def __init__(self, translator, uniformity: Uniformity) -> None:
        self._translator = translator
        self._uniformity = uniformity

    def block(self, tokens: list[Token], condition: str, in_loop: bool = False, is_whole: bool = False) -> list[Token]:
        """Statements, of which the threads where the condition is false must see nothing. is_whole: of a kernel."""
        found = statements(tokens)
        exchanging = [k for k, s in enumerate(found) if self._exchanges(s)]
        last = len(found) if in_loop and exchanging else max(exchanging, default=-1)
        words = ("return", "break", "continue") if in_loop else ("return",)
        result: list[Token] = []
        for k, statement in enumerate(found):
            if k < last and not condition and not in_loop and _returns(statement):
                test, _ = head_and_bodies(statement)
                if is_whole and self._uniformity.varies(test):  # what follows is for the others
                    rest = [token for s in found[k + 1 :] for token in s]
                    mark = statement[0].as_
                    others = [mark("if"), mark("("), mark("!"), mark("("), *test, mark(")"), mark(")")]
                    return result + self._branch([*others, mark("{"), *rest, mark("}")], condition)
            if k <= last and self._uniformity.leaves(statement, words, bool(condition)):
                raise refuse("a simd function behind a return of some threads, on this device", statement[0])
            result += self._statement(statement, condition)
        return result

    def _exchanges(self, tokens: list[Token]) -> bool:
        return self._translator.uses(tokens, _WORDS)

    def _statement(self, tokens: list[Token], condition: str) -> list[Token]:
        first = tokens[0]
        if not self._exchanges(tokens):
            return _guarded(tokens, condition)
        if first == "{":
            return [first, *self.block(tokens[1:-1], condition), tokens[-1]]
        if first == "if":
            return self._branch(tokens, condition)
        if first.text in _LOOPS:
            head, [body] = head_and_bodies(tokens)
            if self._uniformity.varies(head) or self._exchanges(head):
                raise refuse(
                    "a simd function in a loop that threads may leave at different times, on this device", first
                )
            inner = body[1:-1] if body[0] == "{" else body
            mark = first.as_
            start = tokens[: len(tokens) - len(body)]
            return [*start, mark("{"), *self.block(inner, condition, in_loop=True), mark("}")]
        if first.text in ("switch", "do", "return"):
            raise refuse(f"a simd function in {first.text}, on this device", first)
        return _exchange(tokens, condition)

    def _branch(self, tokens: list[Token], condition: str) -> list[Token]:
        """if (test) ...: as it is where all threads agree, else its statements guarded one by one."""
        first = tokens[0]
        test, bodies = head_and_bodies(tokens)
        if self._exchanges(test):
            raise refuse("a simd function in the condition of an if, on this device", first)
        if not self._uniformity.varies(test):
            end = closing(tokens, next(k for k in range(len(tokens)) if tokens[k] == "("))
            result = tokens[: end + 1]
            for k, body in enumerate(bodies):
                inner = body[1:-1] if body[0] == "{" else body
                word = [first.as_("else")] if k else []
                result = [*result, *word, first.as_("{"), *self.block(inner, condition), first.as_("}")]
            return result
        name = self._translator.new_name("if")
        both = f"{condition} && (" if condition else "("
        result = tokenize(f"{{ bool {name} = {both}", first.line) + test + tokenize(");", first.line)
        for k, body in enumerate(bodies):
            inner = body[1:-1] if body[0] == "{" else body
            chosen = name
            if k:
                chosen = self._translator.new_name("else")
                most = f"{condition} && !{name}" if condition else f"!{name}"
                result += tokenize(f"bool {chosen} = {most};", first.line)
            result += [first.as_("{"), *self.block(inner, chosen), first.as_("}")]
        return [*result, first.as_("}")]


def _returns(statement: list[Token]) -> bool:
    """Whether a statement is if (...) return;"""
    if statement[0] != "if" or statement[1] != "(":
        return False
    _, bodies = head_and_bodies(statement)
    return len(bodies) == 1 and [t.text for t in bodies[0] if t.text not in ("{", "}")] == ["return", ";"]


def _declared(tokens: list[Token]) -> int | None:
    """The index of the name that a statement declares; None where it declares none."""
    at = 0
    while tokens[at].text in _QUALIFIERS:
        at += 1
    if tokens[at].kind != "name" or tokens[at] == "return":
        return None
    at += 1
    if tokens[at] == "<":
        at = (closing_angle(tokens, at) or at) + 1
    while tokens[at].text in ("*", "const"):
        at += 1
    is_name = tokens[at].kind == "name" and tokens[at + 1].text in ("=", ";", "[", ",", "{", "(")
    return at if is_name else None


def _guarded(tokens: list[Token], condition: str) -> list[Token]:
    """A statement without simd functions, under the condition; what it declares is declared outside of it."""
    if not condition or tokens[0].text in vocabulary.BARRIERS:
        return tokens
    guard = tokenize(f"if ({condition})", tokens[0].line)
    at = _declared(tokens)
    if at is None:
        return [*guard, tokens[0].as_("{"), *tokens, tokens[0].as_("}")]
    value = tokens[at + 1 :]
    if not any(t.text in ("[", "->", "(") for t in value[1:]) or tokens[at + 1] == "[":
        return tokens  # it reads no memory
    if tokens[at + 1] != "=" or any(t == "auto" for t in tokens[:at]) or len(split(value)) > 1:
        raise refuse("this declaration beside a simd function in a branch, on this device", tokens[0])
    plain = [t for t in tokens[:at] if t != "const"]
    return [*plain, tokens[at], tokens[at].as_(";"), *guard, *tokens[at:]]


def _exchange(tokens: list[Token], condition: str) -> list[Token]:
    """A statement with a simd function: it runs in all threads, and what it changes changes under the condition."""
    if not condition or _declared(tokens) is not None:
        return tokens
    at = next((k for k in range(len(tokens)) if tokens[k].text in ("=", "+=", "*=", "-=")), None)
    if at is None:
        raise refuse("a simd function in this statement of a branch, on this device", tokens[0])
    first = tokens[0]
    value = tokenize("{ auto value_ =", first.line) + tokens[at + 1 : -1] + tokenize(f"; if ({condition}) ", first.line)
    return [*value, *tokens[:at], tokens[at], *tokenize(" value_; }", first.line)]
