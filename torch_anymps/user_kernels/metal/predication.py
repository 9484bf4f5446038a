"""Simd functions in branches, for devices whose subgroups have other than 32 threads: there they need a whole
threadgroup, so a branch becomes a condition of its statements."""

from __future__ import annotations

from . import vocabulary
from .tokens import Token, closing, refuse, tokenize

_LOOPS = frozenset({"for", "while"})


def predicate(translator, body: list[Token]) -> list[Token]:
    """The body of a kernel with no simd function in a branch. Raises SyntaxError where one is left."""
    return [body[0], *_statements(translator, body[1:-1]), body[-1]]


def _exchanges(translator, tokens: list[Token]) -> bool:
    return translator.uses(tokens, vocabulary.EXCHANGES | {"simdgroup_barrier"})


def _statement(tokens: list[Token], i: int) -> int:
    """The index behind the statement at i."""
    if tokens[i] == "{":
        return closing(tokens, i) + 1
    if tokens[i].text in ("if", "for", "while", "switch"):
        at = i + 1
        while tokens[at] != "(":
            at += 1
        end = _statement(tokens, closing(tokens, at) + 1)
        if tokens[i] == "if" and end < len(tokens) and tokens[end] == "else":
            end = _statement(tokens, end + 1)
        return end
    if tokens[i] == "do":
        end = _statement(tokens, i + 1)
        return _statement(tokens, end)
    while tokens[i] != ";":
        i = closing(tokens, i) + 1 if tokens[i].text in ("(", "[", "{") else i + 1
    return i + 1


def _statements(translator, tokens: list[Token], condition: str = "") -> list[Token]:
    result: list[Token] = []
    i = 0
    while i < len(tokens):
        end = _statement(tokens, i)
        result += _one(translator, tokens[i:end], condition)
        i = end
    return result


def _one(translator, tokens: list[Token], condition: str) -> list[Token]:
    first = tokens[0]
    if not _exchanges(translator, tokens):
        return _guarded(tokens, condition)
    if first == "{":
        return [first, *_statements(translator, tokens[1:-1], condition), tokens[-1]]
    if first == "if":
        end = closing(tokens, 1)
        stop = _statement(tokens, end + 1)
        if _exchanges(translator, tokens[1:end]) or stop < len(tokens):
            raise refuse("a simd function in the condition of an if, or in one with else, on this device", first)
        return _branch(translator, tokens[2:end], tokens[end + 1 : stop], condition, first)
    if first.text in _LOOPS:
        end = closing(tokens, 1)
        names = [t for t in tokens[2:end] if t.kind == "name" and not t.text.isupper()]
        counter = {tokens[k].text for k in range(2, end) if tokens[k].kind == "name" and tokens[k + 1] == "="}
        types = vocabulary.SCALAR_TYPES | {"ushort", "short", "const", "auto"}
        if any(t.text not in counter | types for t in names):
            raise refuse(
                "a simd function in a loop of which threads may leave at different times, on this device", first
            )
        inner = tokens[end + 1 :]
        return [*tokens[: end + 1], first.as_("{"), *_statements(translator, inner, condition), first.as_("}")]
    if first.text in ("switch", "do", "else", "return"):
        raise refuse(f"a simd function in {first.text}, on this device", first)
    return _exchange(tokens, condition)


def _branch(translator, test: list[Token], inner: list[Token], condition: str, at: Token) -> list[Token]:
    """if (test) inner, its statements guarded one by one; names that they declare stay among them."""
    name = translator.new_name("if")
    both = f"{condition} && (" if condition else "("
    head = tokenize(f"{{ bool {name} = {both}", at.line) + test + tokenize(");", at.line)
    inner = inner[1:-1] if inner[0] == "{" else inner
    return [*head, *_statements(translator, inner, name), at.as_("}")]


def _declared(tokens: list[Token]) -> int | None:
    """The index of the name that a statement declares; None where it declares none."""
    at = 1 if tokens[0] == "const" else 0
    if at + 1 >= len(tokens) or tokens[at].kind != "name" or tokens[at].text in ("return", "threadgroup_barrier"):
        return None
    if tokens[at] == "auto":
        return None
    return at + 1 if tokens[at + 1].kind == "name" else None


def _guarded(tokens: list[Token], condition: str) -> list[Token]:
    """A statement without simd functions, under the condition; what it declares is declared outside of it."""
    if not condition or tokens[0].text in vocabulary.BARRIERS:
        return tokens
    guard = tokenize(f"if ({condition})", tokens[0].line)
    at = _declared(tokens)
    if at is None:
        if tokens[0].text in ("auto", "const", "return", "break", "continue"):
            raise refuse(f"{tokens[0].text} beside a simd function in a branch, on this device", tokens[0])
        return [*guard, tokens[0].as_("{"), *tokens, tokens[0].as_("}")]
    if at + 1 < len(tokens) and tokens[at + 1] == "=":
        plain = [t for t in tokens[:at] if t != "const"]
        kind = Token("", "mark", "\n", tokens[0].line)
        return [kind, *plain, tokens[at], tokens[at].as_(";"), *guard, *tokens[at:]]
    return tokens


def _exchange(tokens: list[Token], condition: str) -> list[Token]:
    """A statement with a simd function: it runs in all threads, and what it changes changes under the condition."""
    if not condition or _declared(tokens) is not None or tokens[0] == "auto":
        return tokens
    at = next((k for k in range(len(tokens)) if tokens[k].text in ("=", "+=", "*=", "-=")), None)
    if at is None:
        raise refuse("a simd function in this statement of a branch, on this device", tokens[0])
    first = tokens[0]
    value = tokenize("{ auto value_ =", first.line) + tokens[at + 1 : -1] + tokenize(f"; if ({condition}) ", first.line)
    return [*value, *tokens[:at], tokens[at], *tokenize(" value_; }", first.line)]
