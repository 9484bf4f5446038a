"""Metal source as tokens, and what the C preprocessor does with them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

_TOKEN = re.compile(
    r"""(?P<name>[A-Za-z_]\w*)
      | (?P<number>(?:0[xX][\da-fA-F']+|\d[\d']*\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)[uUlLfFhH]*)
      | (?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
      | (?P<mark>\#\#|->\*?|<<=|>>=|<<|\+\+|--|&&|\|\||::|\.\.\.|[-+*/%&|^=!<>]=|[^\s\w])""",
    re.VERBOSE,
)
_COMMENTS = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
_CONTINUED = re.compile(r"\\\n")


@dataclass(frozen=True)
class Token:
    """A word, number, literal or mark; `space` is what stands before it: line breaks keep their number."""

    text: str
    kind: str
    space: str
    line: int

    def __eq__(self, other) -> bool:
        return self.text == (other.text if isinstance(other, Token) else other)

    def __hash__(self) -> int:
        return hash(self.text)

    def as_(self, text: str) -> Token:
        """The token with another text."""
        return replace(self, text=text)


def refuse(what: str, token: Token | None = None) -> SyntaxError:
    """The error for a construct of Metal that is not understood."""
    where = f" (line {token.line})" if token is not None else ""
    return SyntaxError(
        f"Metal source with {what}{where} cannot be rewritten for Vulkan: docs/user_kernels.md lists what can. "
        'Kernels in Slang, with [shader("compute")], can do all that the device can.'
    )


def tokenize(source: str, line: int = 1) -> list[Token]:
    """The tokens of a text without comments and preprocessor lines. `>>` is two tokens."""
    result, at = [], 0
    for match in _TOKEN.finditer(source):
        space = source[at : match.start()]
        line += space.count("\n")
        result.append(Token(match.group(), match.lastgroup, space, line))
        at = match.end()
    return result


def text_of(tokens) -> str:
    """The text of tokens, those that would run together set apart."""
    parts, last = [], ""
    for token in tokens:
        if not token.space and last and (last[-1].isalnum() or last[-1] == "_") and (token.text[:1].isalnum()):
            parts.append(" ")
        parts.append(token.space + token.text)
        last = token.text
    return "".join(parts)


def without_comments(source: str) -> str:
    """The source with a space, and its line breaks, for each comment."""

    def blank(match: re.Match) -> str:
        return match.group() if match.group()[0] == '"' else " " + "\n" * match.group().count("\n")

    return _COMMENTS.sub(blank, source)


@dataclass
class _Macro:
    parameters: list[str] | None  # None: not like a function
    body: list[Token]
    variadic: bool = False


class Preprocessor:
    """#define, #undef, #if and relatives, #include by name; results in one list of tokens."""

    def __init__(self) -> None:
        self.includes: list[tuple[str, int]] = []  # what was included, and in which line
        one = Token("1", "number", "", 0)
        self._macros = {name: _Macro(None, [one]) for name in ("__METAL__", "__HAVE_BFLOAT__")}
        self._macros["__METAL_VERSION__"] = _Macro(None, [one.as_("310")])

    def run(self, source: str) -> list[Token]:
        """The tokens that are left, macros expanded."""
        lines = _CONTINUED.sub(" \x00", without_comments(source)).split("\n")
        result: list[Token] = []
        pending: list[str] = []
        active, taken = [True], [True]
        number = first = 1
        for line in lines:
            height = 1 + line.count("\x00")
            directive = re.match(r"\s*#\s*(\w+)(.*)", line.replace("\x00", ""), re.DOTALL)
            if directive:
                if pending:
                    result += self._expand(tokenize("\n" + "\n".join(pending), first - 1))
                    pending = []
                self._directive(directive.group(1), directive.group(2).strip(), number, active, taken)
                first = number + height
                result.append(Token("", "mark", "\n" * height, number))
            elif all(active):
                pending += [line.replace("\x00", "")] + [""] * (height - 1)
            else:
                pending += [""] * height
            number += height
        result += self._expand(tokenize("\n" + "\n".join(pending), first - 1))
        return [token for token in result if token.text]

    def _directive(self, name: str, rest: str, line: int, active: list[bool], taken: list[bool]) -> None:
        if name in ("if", "ifdef", "ifndef"):
            value = all(active) and self._holds(name, rest, line)
            active.append(value)
            taken.append(value)
        elif name in ("elif", "else") and len(active) > 1:
            value = not taken[-1] and all(active[:-1]) and (name == "else" or self._holds("if", rest, line))
            active[-1] = value
            taken[-1] |= value
        elif name == "endif" and len(active) > 1:
            active.pop()
            taken.pop()
        elif not all(active):
            return
        elif name == "define":
            self._define(rest, line)
        elif name == "undef":
            self._macros.pop(rest, None)
        elif name == "include":
            self.includes.append((rest.strip('<>"'), line))
        elif name not in ("pragma", "line"):
            raise SyntaxError(f"line {line}: #{name} {rest}")

    def _define(self, rest: str, line: int) -> None:
        match = re.match(r"(\w+)(\(([^)]*)\))?", rest)
        if not match:
            raise SyntaxError(f"line {line}: #define {rest}")
        names = None
        if match.group(2) is not None:
            names = [n.strip() for n in match.group(3).split(",") if n.strip()]
        variadic = bool(names) and names[-1] == "..."
        if variadic:
            names[-1] = "__VA_ARGS__"
        self._macros[match.group(1)] = _Macro(names, tokenize(rest[match.end() :], line), variadic)

    def _holds(self, name: str, rest: str, line: int) -> bool:
        if name != "if":
            return (rest in self._macros) == (name == "ifdef")
        rest = re.sub(r"\bdefined\s*\(?\s*(\w+)\s*\)?", lambda m: str(int(m.group(1) in self._macros)), rest)
        text = text_of(self._expand(tokenize(rest, line)))
        text = re.sub(r"\b[A-Za-z_]\w*\b", "0", re.sub(r"(?<=\d)[uUlL]+", "", text))
        text = re.sub(r"!(?!=)", " not ", text.replace("&&", " and ").replace("||", " or "))
        if not re.fullmatch(r"(?:[\s\d()+\-*/%<>=!&|^~]|0x[\da-fA-F]+|not|and|or)+", text):
            raise SyntaxError(f"line {line}: #if {rest}")
        try:
            return bool(eval(text, {"__builtins__": {}}))  # numbers and operators alone
        except Exception:
            raise SyntaxError(f"line {line}: #if {rest}") from None

    def _expand(self, tokens: list[Token], hidden: frozenset[str] = frozenset()) -> list[Token]:
        result: list[Token] = []
        i = 0
        while i < len(tokens):
            token = tokens[i]
            macro = self._macros.get(token.text) if token.kind == "name" and token.text not in hidden else None
            if macro is None:
                result.append(token)
                i += 1
                continue
            end, values = i + 1, {}
            if macro.parameters is not None:
                if end >= len(tokens) or tokens[end] != "(":
                    result.append(token)
                    i += 1
                    continue
                end, given = arguments(tokens, end)
                values = self._values(macro, given, token)
            body = self._substitute(macro.body, values, hidden)
            line = [replace(t, line=token.line) for t in self._expand(body, hidden | {token.text})]
            if line:
                line[0] = replace(line[0], space=token.space)
            # line breaks inside of the arguments come after
            breaks = sum(t.space.count("\n") for t in tokens[i + 1 : end])
            result += [*line, Token("", "mark", "\n" * breaks, token.line)] if breaks or not line else line
            i = end
        return result

    @staticmethod
    def _values(macro: _Macro, given: list[list[Token]], token: Token) -> dict[str, list[Token]]:
        if macro.variadic:
            fixed = len(macro.parameters) - 1
            rest: list[Token] = []
            for k, part in enumerate(given[fixed:]):
                rest += ([Token(",", "mark", "", token.line)] if k else []) + part
            given = [*given[:fixed], rest]
        if len(given) != len(macro.parameters) and not (not macro.parameters and given == [[]]):
            raise SyntaxError(f"line {token.line}: macro {token.text} takes {len(macro.parameters)} arguments")
        return dict(zip(macro.parameters, given))

    def _substitute(self, body: list[Token], values: dict[str, list[Token]], hidden) -> list[Token]:
        result: list[Token] = []
        i = 0
        while i < len(body):
            token = body[i]
            following = body[i + 1] if i + 1 < len(body) else None
            if token == "#" and following is not None and following.text in values:
                inner = text_of(values[following.text]).strip()
                result.append(Token(f'"{inner}"', "text", token.space, token.line))
                i += 2
            elif token == "##" and result and following is not None:
                right = values.get(following.text, [following])
                joined = result[-1].text + (right[0].text if right else "")
                result[-1] = replace(tokenize(joined)[0], space=result[-1].space, line=token.line)
                result += right[1:]
                i += 2
            elif token.text in values and token.kind == "name":
                pasted = following is not None and following == "##"
                value = values[token.text] if pasted else self._expand(values[token.text], hidden)
                result += [replace(value[0], space=token.space), *value[1:]] if value else []
                i += 1
            else:
                result.append(token)
                i += 1
        return result


_PAIRS = {"(": ")", "[": "]", "{": "}"}


def closing(tokens: list[Token], at: int) -> int:
    """The index of the mark that closes the one at `at`."""
    depth = 0
    for i in range(at, len(tokens)):
        if tokens[i].text in _PAIRS:
            depth += 1
        elif tokens[i].text in _PAIRS.values():
            depth -= 1
            if depth == 0:
                return i
    raise SyntaxError(f"line {tokens[at].line}: '{tokens[at].text}' is not closed")


def closing_angle(tokens: list[Token], at: int, is_head: bool = False) -> int | None:
    """The index of the `>` that closes the `<` at `at`; None where it is no list of template arguments, or, is_head,
    of template parameters."""
    depth, i = 0, at
    while i < len(tokens):
        text = tokens[i].text
        if text == "<":
            depth += 1
        elif text == ">":
            depth -= 1
            if depth == 0:
                return i
        elif text in ("(", "["):
            i = closing(tokens, i)
        elif text in (";", "{", "}", ")", "]", "&&", "||", "?") or (text == "=" and not is_head):
            return None
        i += 1
    return None


def split(tokens: list[Token], mark: str = ",") -> list[list[Token]]:
    """The parts between marks that are outside of brackets; angle brackets that close count as such."""
    parts: list[list[Token]] = [[]]
    i = 0
    while i < len(tokens):
        end = i
        if tokens[i].text in _PAIRS:
            end = closing(tokens, i)
        elif tokens[i] == "<" and i > 0 and tokens[i - 1].kind == "name":
            found = closing_angle(tokens, i)
            end = i if found is None else found
        if tokens[i] == mark:
            parts.append([])
        else:
            parts[-1] += tokens[i : end + 1]
        i = end + 1
    return parts


def arguments(tokens: list[Token], at: int) -> tuple[int, list[list[Token]]]:
    """The arguments of the call whose `(` is at `at`, and the index behind its `)`."""
    end = closing(tokens, at)
    inner, parts = tokens[at + 1 : end], [[]]
    i = 0
    while i < len(inner):
        stop = closing(inner, i) if inner[i].text in _PAIRS else i
        if inner[i] == ",":
            parts.append([])
        else:
            parts[-1] += inner[i : stop + 1]
        i = stop + 1
    return end + 1, parts
