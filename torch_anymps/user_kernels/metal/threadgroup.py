"""Threadgroup memory of a kernel: in Slang it is declared in the module, and has no address."""

from __future__ import annotations

from .names import Scope
from .tokens import Token, closing, refuse, split, text_of, tokenize


def hoist(translator, body: list[Token], kernel: str, scope: Scope) -> list[Token]:
    """The body without its declarations of threadgroup memory, which go to the module."""
    result: list[Token] = []
    i = 0
    while i < len(body):
        if body[i] != "threadgroup" or (i + 1 < len(body) and body[i - 1].text in ("(", "<", ",")):
            result.append(body[i])
            i += 1
            continue
        end = next(k for k in range(i, len(body)) if body[k] == ";")
        declared = split(body[i + 1 : end])
        if any(t == "*" for t in declared[0][: declared[0].index("=") if "=" in declared[0] else None]):
            result += _alias(translator, body[i : end + 1], scope)
            i = end + 1
            continue
        if any(t == "&" for t in body[i:end]):
            raise refuse("a reference to threadgroup memory", body[i])
        at = next((k for k in range(1, len(declared[0])) if declared[0][k] == "["), len(declared[0]))
        names = [(declared[0][at - 1], declared[0][at:])] + [(part[0], part[1:]) for part in declared[1:]]
        kind = text_of(translator.code.type_of(declared[0][: at - 1])).strip()
        for name, size in names:
            if any(t == "=" for t in size):
                raise refuse("threadgroup memory with a value", name)
            shared = f"{kernel}__{name.text}"
            while shared in translator.shared:
                shared += "_"
            scope.shared[name.text] = shared
            sizes = text_of(translator.code.rewrite(_constants(size, body), Scope())).strip()
            translator.shared[shared] = f"groupshared {kind} {shared}{sizes};"
        i = end + 1
    return result


def _alias(translator, tokens: list[Token], scope: Scope) -> list[Token]:
    """threadgroup float* b = a + n; the name stands for the array, which begins elsewhere."""
    at = next((k for k in range(len(tokens)) if tokens[k] == "="), None)
    value = tokens[at + 1 : -1] if at is not None else []
    by_address = bool(value) and value[0] == "&"
    value = value[1:] if by_address else value
    source = value[0].text if value else ""
    if source not in scope.shared or translator.shared[scope.shared[source]].count("[") != 1:
        raise refuse("a pointer to threadgroup memory that is more than an array and a distance", tokens[0])
    offset = value[1:]
    if by_address and offset and offset[0] == "[" and closing(offset, 0) == len(offset) - 1:
        offset = offset[1:-1]
    elif not by_address and offset and offset[0] == "+":
        offset = offset[1:]
    elif offset or by_address:
        raise refuse("a pointer to threadgroup memory that is more than an array and a distance", tokens[0])
    name = tokens[at - 1].text
    scope.shared[name] = scope.shared[source]
    before = scope.offsets.get(source)
    if not offset:
        scope.offsets.update({name: before} if before else {})
        return []
    scope.offsets[name] = translator.new_name(name)
    start = f"auto {scope.offsets[name]} = int({before} + (" if before else f"auto {scope.offsets[name]} = int(("
    return tokenize(start, tokens[0].line) + offset + tokenize("));", tokens[0].line)


def _constants(size: list[Token], body: list[Token]) -> list[Token]:
    """The size of an array with the constants of the kernel's body by their values."""
    values = {}
    for k in range(len(body) - 2):
        if (
            body[k].kind == "name"
            and body[k + 1] == "="
            and any(t == "constexpr" or t == "const" for t in body[max(0, k - 4) : k])
        ):
            end = next(j for j in range(k, len(body)) if body[j] == ";")
            values.setdefault(body[k].text, body[k + 2 : end])
    result: list[Token] = []
    for token in size:
        value = values.get(token.text)
        mark = token.as_
        result += [token] if value is None else [mark("("), *_constants(value, body), mark(")")]
    return result
