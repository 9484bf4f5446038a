"""Metal source as declarations: functions, structs, kernels, templates and what instantiates them."""

from __future__ import annotations

from dataclasses import dataclass, field

from .tokens import Token, closing, closing_angle, refuse, split

_SPECIFIERS = frozenset({"inline", "static", "constexpr", "METAL_FUNC", "kernel", "extern", "METAL_INTERNAL"})


@dataclass
class Function:
    """A function with a body; a kernel where `is_kernel`."""

    name: Token
    result: list[Token]
    parameters: list[list[Token]]
    body: list[Token]  # braces included
    is_kernel: bool = False
    template: list[list[Token]] | None = None
    special: list[list[Token]] | None = None  # template arguments that this is the specialization for


@dataclass
class Struct:
    """A struct with members."""

    name: Token
    body: list[Token]  # without braces
    template: list[list[Token]] | None = None
    special: list[list[Token]] | None = None  # template arguments that this is the specialization for


@dataclass
class Source:
    """What a source declares."""

    functions: list[Function] = field(default_factory=list)
    structs: list[Struct] = field(default_factory=list)
    others: list[list[Token]] = field(default_factory=list)  # variables, enums, typedefs
    instances: list[tuple[str, Token, list[list[Token]]]] = field(default_factory=list)  # host name, kernel, arguments
    namespaces: set[str] = field(default_factory=lambda: {"metal", "precise", "fast", "std", "c10"})


def parse(tokens: list[Token]) -> Source:
    """The declarations of preprocessed tokens. Raises SyntaxError for what the subset lacks."""
    source = Source()
    _parse(tokens, source)
    return source


def _parse(tokens: list[Token], source: Source) -> None:
    i = 0
    while i < len(tokens):
        i = _item(tokens, i, source)


def _item(tokens: list[Token], i: int, source: Source) -> int:
    """Reads one declaration; the index behind it."""
    token = tokens[i]
    if token == ";":
        return i + 1
    if token == "namespace":
        at = i + 1
        while at < len(tokens) and tokens[at] != "{":
            if tokens[at].kind == "name":
                source.namespaces.add(tokens[at].text)
            at += 1
        end = closing(tokens, at)
        _parse(tokens[at + 1 : end], source)
        return end + 1
    if token == "using":
        end = _semicolon(tokens, i)
        if tokens[i + 1] != "namespace" and end > i + 3 and tokens[i + 2] == "=":
            source.others.append([token.as_("typealias"), *tokens[i + 1 : end]])
        return end + 1
    template = None
    if token == "template":
        if tokens[i + 1] != "<":
            end = _semicolon(tokens, i)
            _instance(tokens[i:end], source)
            return end + 1
        end = closing_angle(tokens, i + 1, is_head=True)
        if end is None:
            raise refuse("this template", token)
        template = [part for part in split(tokens[i + 2 : end]) if part]
        i = end + 1
    return _declaration(tokens, i, source, template)


def _declaration(tokens: list[Token], i: int, source: Source, template) -> int:
    attributes, i = _attributes(tokens, i)
    if tokens[i] == "struct":
        at = i + 1
        while tokens[at].text not in ("{", ";"):
            at += 1
        if tokens[at] == ";":
            return at + 1
        if any(t == ":" for t in tokens[i + 1 : at]):
            raise refuse("inheritance", tokens[i])
        special = None
        if template is not None and tokens[at - 1] == ">":
            if tokens[i + 2] != "<" or template:
                raise refuse("a partial specialization", tokens[i])
            special = split(tokens[i + 3 : at - 1])
        elif at != i + 2:
            raise refuse("this struct", tokens[i])
        end = closing(tokens, at)
        source.structs.append(Struct(tokens[i + 1], tokens[at + 1 : end], template or None, special))
        return _semicolon(tokens, end) + 1
    at = i
    while at < len(tokens) and tokens[at].text not in (";", "{", "=", "("):
        at = closing(tokens, at) + 1 if tokens[at] == "[" else at + 1
    if at >= len(tokens):
        raise SyntaxError(f"line {tokens[i].line}: a declaration was expected at '{tokens[i].text}'")
    if tokens[at] == "(":
        end = closing(tokens, at)
        after = end + 1
        while after < len(tokens) and tokens[after].text not in ("{", ";", "="):
            after += 1
        if after < len(tokens) and tokens[after] == "{":
            stop = closing(tokens, after)
            body = tokens[after : stop + 1]
            source.functions.append(_function(tokens[i:at], tokens[at + 1 : end], body, attributes, template))
            return stop + 1
        if after < len(tokens) and tokens[after] == ";" and at > i + 1:
            return after + 1  # a prototype: Slang needs none
        raise SyntaxError(f"line {tokens[at].line}: a declaration was expected at '{tokens[i].text}'")
    if template is not None:
        raise refuse("a template of something else than functions and structs", tokens[i])
    if at == i or (tokens[at] == ";" and at - i < 2):
        raise SyntaxError(f"line {tokens[i].line}: a declaration was expected at '{tokens[i].text}'")
    end = _semicolon(tokens, at if tokens[at] != "{" else closing(tokens, at))
    source.others.append(tokens[i:end])
    return end + 1


def _function(head: list[Token], parameters, body, attributes, template) -> Function:
    is_kernel = "kernel" in head or any("kernel" in a for a in attributes)
    special = None
    if head and head[-1] == ">":
        at = next((k for k in range(len(head)) if head[k] == "<" and closing_angle(head, k) == len(head) - 1), None)
        if at is None:
            raise refuse("this function's name", head[-1])
        special = split(head[at + 1 : -1])
        head = head[:at]
    for token in head:
        if token.text in ("vertex", "fragment", "operator"):
            raise refuse(f"{token.text} functions", token)
    words = [t for t in head if t.text not in _SPECIFIERS]
    if len(words) < 2 or words[-1].kind != "name":
        raise SyntaxError(f"line {body[0].line}: a function needs a type and a name")
    inner = [p for p in split(parameters) if p and p != ["void"]]
    if template == [] and special is None:
        raise refuse("this specialization", words[-1])
    return Function(words[-1], words[:-1], inner, body, is_kernel, template or None, special)


def _instance(tokens: list[Token], source: Source) -> None:
    """template [[host_name("add_float")]] kernel void add<float>(...); and the form with decltype."""
    attributes, at = _attributes(tokens, 1)
    host = next((a for a in attributes if a and a[0] == "host_name"), None)
    for k in range(at, len(tokens) - 1):
        if tokens[k].kind == "name" and tokens[k] != "decltype" and tokens[k + 1] == "<":
            end = closing_angle(tokens, k + 1)
            if end is not None:
                quoted = [t.text[1:-1] for t in host or [] if t.kind == "text"]  # "add_" "float" is one
                name = "".join(quoted) or tokens[k].text
                source.instances.append((name, tokens[k], split(tokens[k + 2 : end])))
                return
    raise refuse("this instantiation", tokens[0])


def _attributes(tokens: list[Token], i: int) -> tuple[list[list[Token]], int]:
    """The [[attributes]] from i on, each as its tokens, and the index behind them."""
    found = []
    while is_attribute(tokens, i):
        end = closing(tokens, i)
        found += split(tokens[i + 2 : end - 1])
        i = end + 1
    return found, i


def is_attribute(tokens: list[Token], i: int) -> bool:
    """Whether [[ begins at i."""
    return i + 1 < len(tokens) and tokens[i] == "[" and tokens[i + 1] == "[" and not tokens[i + 1].space


def _semicolon(tokens: list[Token], i: int) -> int:
    """The index of the next ; outside of brackets."""
    while i < len(tokens):
        if tokens[i] == ";":
            return i
        i = closing(tokens, i) + 1 if tokens[i].text in ("(", "[", "{") else i + 1
    raise SyntaxError(f"line {tokens[-1].line}: a ';' is missing")
