"""Statements and expressions of Metal as Slang's: token by token, with calls and casts as a whole."""

from __future__ import annotations

from . import vocabulary
from .declarations import is_attribute
from .names import Scope, number, renamed
from .tokens import Token, arguments, closing, closing_angle, refuse, split, text_of

_SPACES = frozenset({"device", "constant", "thread", "threadgroup", "volatile", "coherent"})
_DROPPED = frozenset(
    {"typename", "restrict", "__restrict", "__restrict__", "inline", "METAL_FUNC", "static", "extern", "mutable"}
)
_CASTS = frozenset({"static_cast", "reinterpret_cast", "const_cast", "as_type"})
_WHOLE = frozenset({"char", "short", "int", "long"})


class Code:
    """Rewrites tokens. `templates` is asked for instances of templates as they are met."""

    def __init__(self, templates, namespaces: set[str], defined: set[str]) -> None:
        self._templates = templates
        self._namespaces = namespaces
        self._defined = defined  # functions of the source
        self._rules = {
            "[": self._bracket,
            "const": self._const,
            "constexpr": self._constexpr,
            "auto": lambda t, i, s: ([t[i].as_("var")], i + 1),
            "using": self._using,
            "unsigned": self._whole_type,
            "signed": self._whole_type,
            "long": self._whole_type,
            "vec": self._generic_type,
            "array": self._generic_type,
            "atomic": self._generic_type,
            "numeric_limits": self._limit,
            "is_same_v": self._same,
            "static_assert": self._assert,
            "threadgroup_barrier": self._barrier,
            "simdgroup_barrier": self._barrier,
            "AtomicType": self._c10_atomic,
            "TORCH_REPORT_ERROR": self._report,
            "&": self._and,
            **{name: self._cast for name in _CASTS},
            **{name: self._atomic for name in vocabulary.ATOMICS},
        }

    def rewrite(self, tokens: list[Token], scope: Scope) -> list[Token]:
        """The tokens in Slang. Raises SyntaxError with a construct that the subset lacks."""
        result: list[Token] = []
        i = 0
        while i < len(tokens):
            token = tokens[i]
            after = tokens[i + 1] if i + 1 < len(tokens) else None
            member = bool(result) and i > 0 and tokens[i - 1].text in (".", "->")
            rule = None if member else self._rules.get(token.text)
            if token.kind == "name" and not member:
                _check(token, after)
            if rule is not None:
                found = rule(tokens, i, scope)
                if found is not None:
                    new, i = found
                    if new:
                        result += [Token(new[0].text, new[0].kind, token.space or new[0].space, token.line), *new[1:]]
                    continue
            if token.kind == "name" and after is not None and after == "::" and token.text in self._namespaces:
                i += 2
                if token.text == "c10" and tokens[i] == "metal":
                    i += 2
                if i < len(tokens) and not member:
                    tokens = [
                        *tokens[:i],
                        Token(tokens[i].text, tokens[i].kind, token.space, token.line),
                        *tokens[i + 1 :],
                    ]
                continue
            if token.text in _SPACES and token.kind == "name":
                if token == "threadgroup":
                    raise refuse("a pointer to threadgroup memory", token)
            elif token.text in _DROPPED:
                pass
            elif token.kind == "name" and not member:
                new, i = self._name(tokens, i, scope, result)
                result += new
                continue
            elif token.kind == "number":
                result.append(token.as_(number(token.text)))
            elif member and token.text in vocabulary.KEYWORDS:
                result.append(token.as_(token.text + "_"))
            else:
                result.append(token)
            i += 1
        return result

    def type_of(self, tokens: list[Token]) -> list[Token]:
        """A type in Slang, without qualifiers."""
        return self.rewrite([t for t in tokens if t.text not in ("const", "constexpr")], Scope())

    def _name(self, tokens: list[Token], i: int, scope: Scope, result) -> tuple[list[Token], int]:
        token, text = tokens[i], tokens[i].text
        after = tokens[i + 1].text if i + 1 < len(tokens) else ""
        if text in scope.offsets:
            if after != "[":
                raise refuse("a pointer into threadgroup memory", token)
            end = closing(tokens, i + 1)
            inner = self.rewrite(tokens[i + 2 : end], scope)
            return [token.as_(f"{scope.shared[text]}[{scope.offsets[text]} + ("), *inner, token.as_(")]")], end + 1
        if text in scope.shared:
            return [token.as_(scope.shared[text])], i + 1
        if text in scope.references:
            return [token.as_(f"(*{renamed(text)})")], i + 1
        if after == "<" and self._templates.knows(text):
            end = closing_angle(tokens, i + 1)
            if end is not None:
                given = split(tokens[i + 2 : end])
                if end + 2 < len(tokens) and tokens[end + 1] == "::":
                    kind = self._templates.member_type(token, given, tokens[end + 2].text)
                    if kind is not None:
                        return [Token(kind[0].text, kind[0].kind, token.space, token.line), *kind[1:]], end + 3
                calls = end + 1 < len(tokens) and tokens[end + 1] == "("
                name = self._templates.instance(token, given)
                if calls:
                    return self._call(token.as_(name), tokens, end + 1, scope)
                return [token.as_(name)], end + 1
        if after == "(":
            if text in self._defined:
                return self._call(token.as_(renamed(text)), tokens, i + 1, scope)
            if text in vocabulary.FUNCTIONS:
                return [token.as_(vocabulary.FUNCTIONS[text])], i + 1
        if text in vocabulary.CONSTANTS:
            return [token.as_(vocabulary.CONSTANTS[text])], i + 1
        text = vocabulary.TYPES.get(text, text)
        if text in vocabulary.MATRIX_TYPES and after in ("(", "{"):
            return self._matrix(token.as_(text), tokens, i + 1, scope)
        is_type = self._is_type(text)
        if after in ("{", "(") and not is_type and result and self._is_type(result[-1].text):
            if result[-1].text in vocabulary.MATRIX_TYPES:
                made, end = self._matrix(token.as_(result[-1].text), tokens, i + 1, scope)
                return [token.as_(f"{renamed(text)} ="), *made], end
            end = closing(tokens, i + 1)  # float4 v{x, 0, 0, 1};
            inner = self.rewrite(tokens[i + 2 : end], scope)
            made = [token.as_(f"{renamed(text)} = {result[-1].text}("), *inner, Token(")", "mark", "", token.line)]
            return made, end + 1
        if after == "{" and is_type and not (result and result[-1] == "struct"):
            end = closing(tokens, i + 1)
            inner = self.rewrite(tokens[i + 2 : end], scope)
            if not inner and not self._templates.is_struct(text):
                inner = [token.as_("0")]
            return [token.as_(text), token.as_("("), *inner, token.as_(")")], end + 1
        return [token.as_(renamed(text))], i + 1

    def _is_type(self, name: str) -> bool:
        known = vocabulary.SCALAR_TYPES | vocabulary.VECTOR_TYPES | vocabulary.STRUCT_TYPES | vocabulary.MATRIX_TYPES
        return name in known or self._templates.is_struct(name)

    def _matrix(self, name: Token, tokens: list[Token], at: int, scope: Scope) -> tuple[list[Token], int]:
        """float4x4(a, b, c, d) of its columns, float4x4(x) of its diagonal."""
        end, given = arguments(tokens, at)
        element, columns, rows = name.text[6:-3], int(name.text[-3]), name.text[-1]
        if len(given) not in (1, columns):
            raise refuse(f"a matrix of {len(given)} numbers", name)
        made = "metal_matrix" if len(given) > 1 else f"metal_diagonal<{element}, {columns}, {rows}>"
        return [name.as_(made), name.as_("("), *self.rewrite(tokens[at + 1 : end - 1], scope), name.as_(")")], end

    def _call(self, name: Token, tokens: list[Token], at: int, scope: Scope) -> tuple[list[Token], int]:
        """A call of a function of the source: threadgroup memory among its arguments becomes part of its name."""
        end, given = arguments(tokens, at)
        given = [part for part in given if part]
        name, given = self._templates.bind_shared(name, given, scope)
        inner: list[Token] = []
        for k, part in enumerate(given):
            inner += ([Token(",", "mark", "", name.line)] if k else []) + self.rewrite(part, scope)
        return [name, Token("(", "mark", "", name.line), *inner, Token(")", "mark", "", name.line)], end

    def _bracket(self, tokens, i, scope):
        if is_attribute(tokens, i):
            end = closing(tokens, i)
            if any(t == "function_constant" for t in tokens[i:end]):
                raise refuse("function constants", tokens[i])
            return [], end + 1
        previous = tokens[i - 1] if i else None
        if previous is not None and (previous.kind == "name" and previous != "return" or previous.text in ("]", ")")):
            return None
        end = closing(tokens, i)
        if end + 1 >= len(tokens) or tokens[end + 1] != "(":
            return None
        if any(t == "&" for t in tokens[i + 1 : end]):
            raise refuse("a lambda that captures by reference", tokens[i])
        stop, parameters = arguments(tokens, end + 1)
        inner: list[Token] = []
        for k, parameter in enumerate(p for p in parameters if p):
            if any(t == "auto" for t in parameter):
                raise refuse("a lambda with auto parameters", tokens[i])
            plain = [t for t in parameter if t.text not in ("const", "&")]
            inner += ([Token(",", "mark", "", tokens[i].line)] if k else []) + self.rewrite(plain, scope)
        while stop < len(tokens) and tokens[stop] != "{":
            stop += 1
        last = closing(tokens, stop)
        body = self.rewrite(tokens[stop : last + 1], scope)
        mark = tokens[i].as_
        return [mark("("), *inner, mark(")"), mark(" => "), *body], last + 1

    def _const(self, tokens, i, scope):
        at = i + 1
        while at < len(tokens) and tokens[at].text in _SPACES | {"const"}:
            at += 1
        if tokens[at] == "auto":
            return [tokens[i].as_("let")], at + 1
        if tokens[i - 1].text in ("*", "&") if i else False:
            return [], i + 1  # float* const p
        kind = at + 1
        if kind < len(tokens) and tokens[kind] == "<":
            kind = (closing_angle(tokens, kind) or kind) + 1
        if kind < len(tokens) and tokens[kind].text in ("*", "&"):
            return [], i + 1
        if self._is_constant(tokens, at):
            return [tokens[i].as_("static"), Token("const", "name", " ", tokens[i].line)], at
        return None

    @staticmethod
    def _is_constant(tokens, at) -> bool:
        """Whether the variable declared at `at` is an integer with a value of numbers alone: the size of an array."""
        if tokens[at].text not in ("int", "uint", "size_t", "short", "ushort", "ulong", "long", "char", "uchar"):
            return False
        if at + 2 >= len(tokens) or tokens[at + 2] != "=":
            return False
        for token in tokens[at + 3 :]:
            if token == ";":
                return True
            if token.kind == "name" and not token.text.isupper():
                return False
            if token.kind == "mark" and token.text not in "()+-*/%":
                return False
        return False

    def _constexpr(self, tokens, i, scope):
        if i and tokens[i - 1] == "if":
            return [], i + 1
        at = i + 1
        while tokens[at].text in _SPACES | {"const", "static"}:
            at += 1
        words = [tokens[i].as_("static"), Token("const", "name", " ", tokens[i].line)]
        if tokens[at] == "auto":
            value = tokens[at + 3].text if at + 3 < len(tokens) else ""
            kind = "float" if "." in value else "uint" if value[-1:] in "uU" else "int"
            return [*words, Token(kind, "name", " ", tokens[i].line)], at + 1
        return words, at

    def _using(self, tokens, i, scope):
        """using name = type; in a function."""
        end = next(k for k in range(i, len(tokens)) if tokens[k] == ";")
        if tokens[i + 2] != "=":
            return [], end + 1
        kind = self.type_of(tokens[i + 3 : end])
        return [
            tokens[i].as_("typedef "),
            *kind,
            Token(f" {renamed(tokens[i + 1].text)}", "name", "", tokens[i].line),
        ], end

    def _whole_type(self, tokens, i, scope):
        at, words = i, []
        while at < len(tokens) and tokens[at].text in _WHOLE | {"unsigned", "signed"}:
            words.append(tokens[at].text)
            at += 1
        base = next((w for w in ("char", "short", "long") if w in words), "int")
        name = ("u" if "unsigned" in words else "") + base
        return [tokens[i].as_(vocabulary.TYPES.get(name, name))], at

    def _generic_type(self, tokens, i, scope):
        end = closing_angle(tokens, i + 1) if i + 1 < len(tokens) and tokens[i + 1] == "<" else None
        if end is None:
            return None
        parts = [self.type_of(part) for part in split(tokens[i + 2 : end])]
        texts = [text_of(part).strip() for part in parts]
        if tokens[i] == "atomic":
            return [tokens[i].as_(texts[0])], end + 1
        if len(texts) != 2:
            raise refuse(f"this {tokens[i].text}", tokens[i])
        if tokens[i] == "vec":
            if texts[0] == "bfloat":
                return [tokens[i].as_(f"bfloat{texts[1]}")], end + 1
            return [tokens[i].as_(f"vector<{texts[0]}, {texts[1]}>")], end + 1
        element = f"Ptr<{texts[0][:-1].strip()}>" if texts[0].endswith("*") else texts[0]
        return [tokens[i].as_(f"{element}[{texts[1]}]")], end + 1

    def _cast(self, tokens, i, scope):
        end = closing_angle(tokens, i + 1) if tokens[i + 1] == "<" else None
        if end is None or end + 1 >= len(tokens) or tokens[end + 1] != "(":
            return None
        kind = text_of(self.type_of(tokens[i + 2 : end])).strip()
        stop = closing(tokens, end + 1)
        inner = self.rewrite(tokens[end + 1 : stop + 1], scope)
        mark = tokens[i].as_
        if tokens[i] == "as_type":
            return [mark("bfloat_of_bits" if kind == "bfloat" else f"bit_cast<{kind}>"), *inner], stop + 1
        return [mark(f"(({kind})"), *inner, mark(")")], stop + 1

    def _limit(self, tokens, i, scope):
        end = closing_angle(tokens, i + 1) if tokens[i + 1] == "<" else None
        if end is None or end + 4 >= len(tokens) or tokens[end + 1] != "::":
            return None
        kind, name = text_of(self.type_of(tokens[i + 2 : end])).strip(), tokens[end + 2].text
        value = vocabulary.limit(kind, name)
        if value is None:
            raise refuse(f"numeric_limits<{kind}>::{name}", tokens[i])
        return [tokens[i].as_(value)], end + 5

    def _same(self, tokens, i, scope):
        end = closing_angle(tokens, i + 1) if tokens[i + 1] == "<" else None
        if end is None:
            return None
        texts = [text_of(self.type_of(part)).strip() for part in split(tokens[i + 2 : end])]
        return [tokens[i].as_("true" if texts[0] == texts[-1] else "false")], end + 1

    def _assert(self, tokens, i, scope):
        end = closing(tokens, i + 1) + 1
        return [], end + (end < len(tokens) and tokens[end] == ";")

    def _barrier(self, tokens, i, scope):
        if i + 1 >= len(tokens) or tokens[i + 1] != "(":
            return None
        end = closing(tokens, i + 1)
        if tokens[i] == "simdgroup_barrier":
            return [tokens[i].as_("simd_barrier()")], end + 1
        device = any(t.text in ("mem_device", "mem_device_and_threadgroup") for t in tokens[i:end])
        return [
            tokens[i].as_("AllMemoryBarrierWithGroupSync()" if device else "GroupMemoryBarrierWithGroupSync()")
        ], end + 1

    def _atomic(self, tokens, i, scope):
        """Threadgroup memory has no address in Slang: functions of it take the variable itself."""
        end, given = arguments(tokens, i + 1)
        name = vocabulary.ATOMICS[tokens[i].text]
        target = given[0]
        while target and target[0] == "(" and closing(target, 0) < len(target) - 1 and _is_cast(target):
            target = target[closing(target, 0) + 1 :]  # (threadgroup atomic_uint*)&x[i]
        names = [t.text for t in target if t.kind == "name"]
        if names and names[0] in scope.shared:
            name = "shared_" + name
            inner = self.rewrite(target[1:], scope) if target[0] == "&" else self.rewrite(target, scope)
            if target[0] != "&":
                inner.append(target[0].as_("[0]"))
        else:
            inner = self.rewrite(given[0], scope)
        for part in given[1:-1]:
            inner += [Token(",", "mark", "", tokens[i].line), *self.rewrite(part, scope)]
        mark = tokens[i].as_
        return [mark(name), mark("("), *inner, mark(")")], end

    def _c10_atomic(self, tokens, i, scope):
        """AtomicType<T>::type, and AtomicType<T>::atomic_add of c10/metal/atomic.h."""
        end = closing_angle(tokens, i + 1)
        if end is None or tokens[end + 1] != "::":
            return None
        if tokens[end + 2] == "type":
            return self.type_of(tokens[i + 2 : end]), end + 3
        if tokens[end + 2] == "atomic_add":
            return [tokens[i].as_("c10_atomic_add")], end + 3
        raise refuse(f"AtomicType<>::{tokens[end + 2].text}", tokens[i])

    def _report(self, tokens, i, scope):
        """The error's words are known to the host alone: what is computed is left out of them."""
        end, given = arguments(tokens, i + 1)
        message = "".join(part[0].text[1:-1] if part and part[0].kind == "text" else "?" for part in given[1:])
        number = self._templates.message(message)
        mark = tokens[i].as_
        return [mark("c10_report_error("), *self.rewrite(given[0], scope), mark(f", {number})")], end

    def _and(self, tokens, i, scope):
        """&x of a name that stands for what a pointer points to is the pointer."""
        unary = i == 0 or tokens[i - 1].text in ("(", ",", "=", "return")
        following = tokens[i + 1] if i + 1 < len(tokens) else None
        if unary and following is not None and following.text in scope.references:
            return [following.as_(renamed(following.text))], i + 2
        return None


def _check(token: Token, after: Token | None) -> None:
    """Raises SyntaxError for a word of what the subset lacks; some are names where they have no arguments."""
    what = vocabulary.REFUSED.get(token.text)
    if what is not None and (token.text not in vocabulary.REFUSED_TEMPLATES or after == "<"):
        raise refuse(what, token)


def _is_cast(tokens: list[Token]) -> bool:
    inner = tokens[1 : closing(tokens, 0)]
    return bool(inner) and inner[-1] == "*"
