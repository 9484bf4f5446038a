"""Metal source to Slang: what a source declares is rewritten as it is needed, templates once an instance."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from . import vocabulary
from .code import Code
from .declarations import Function, Struct, is_attribute, parse
from .names import Scope, renamed
from .tokens import Preprocessor, Token, closing, refuse, split, text_of

_MAX_DECLARATIONS = 2000  # templates may ask for ever more of themselves
_QUALIFIERS = frozenset({"const", "constant", "constexpr", "static", "extern", "inline"})


@dataclass
class Buffer:
    """What an argument of a kernel is: numbers are passed as `count` of `kind` where that is not empty."""

    kind: str = ""
    count: int = 0  # 0: any number
    is_read_only: bool = False


@dataclass
class KernelText:
    """A kernel of the source; `slang_name`: its entry point. is_exact: no thread beyond those asked for may run."""

    name: str
    slang_name: str
    buffers: list[Buffer]
    is_exact: bool


@dataclass
class Translation:
    """Slang source, and the kernels in it."""

    source: str
    kernels: list[KernelText] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)  # of the errors that kernels report, by number


def translate(source: str, native_simd: bool) -> Translation:
    """Rewrites Metal source for a device whose subgroups have 32 threads, or any. Raises SyntaxError."""
    try:
        return _Translator(source, native_simd).run()
    except (IndexError, StopIteration):  # of a look ahead
        raise SyntaxError("The source breaks off inside of a declaration.") from None
    except RecursionError:
        raise refuse("expressions nested so deeply") from None


class _Translator:
    def __init__(self, source: str, native_simd: bool) -> None:
        preprocessor = Preprocessor()
        self._source = parse(preprocessor.run(source))
        self.native_simd = native_simd
        simd = "lib.metal_simd" if native_simd else "lib.metal_simd_exchange"
        self._imports = {"lib.metal": None, "lib.metal_matrix": None, simd: None}
        for name, line in preprocessor.includes:
            if name not in vocabulary.HEADERS:
                raise refuse(f'#include "{name}"', Token(name, "text", "", line))
            if vocabulary.HEADERS[name]:
                self._imports[vocabulary.HEADERS[name]] = None
        self._functions: dict[str, Function] = {}
        self._templates: dict[str, list[Function]] = {}
        self.structs: dict[str, Struct] = {}
        self._struct_templates: dict[str, list[Struct]] = {}
        for s in self._source.structs:
            if s.template is None and s.special is None:
                self.structs[s.name.text] = s
            else:
                self._struct_templates.setdefault(s.name.text, []).append(s)
        for f in self._source.functions:
            if f.template is None and f.special is None and not f.is_kernel:
                self._functions[f.name.text] = f
            elif f.template is not None or f.special is not None:
                self._templates.setdefault(f.name.text, []).append(f)
        self.defined = {f.name.text for f in self._source.functions if not f.is_kernel}
        self.code = Code(self, self._source.namespaces, self.defined)
        self.shared: dict[str, str] = {}  # declarations by their names in the module
        self._made: dict[str, Function] = {}  # instances of function templates by their names
        self._bound: set[str] = set()
        self._deduced: set[str] = set()
        self._waiting: list = []  # what is to be written
        self._lines: list[str] = []
        self._names = 0
        self._result = Translation("")

    def run(self) -> Translation:
        from .entry import write_kernel

        waiting = self._waiting
        waiting += [lambda other=other: self._other(other) for other in self._source.others]
        waiting += [lambda s=s: self._struct(s, s.name.text) for s in self.structs.values()]
        for f in self._source.functions:
            if f.is_kernel and f.template is None:
                waiting.append(lambda f=f: write_kernel(self, f, f.name.text))
            elif not f.is_kernel and f.template is None and f.special is None and not shared_places(f):
                waiting.append(lambda f=f: self._function(f, renamed(f.name.text), {}))
        for host, name, given in self._source.instances:
            found = next((f for f in self._templates.get(name.text, []) if f.is_kernel and f.template), None)
            if found is None:
                raise refuse(f"an instantiation of {name.text}, which is no template of a kernel", name)
            waiting.append(lambda f=found, h=host, g=given: write_kernel(self, self._substituted(f, g), h))
        written = 0
        while waiting:
            written += 1
            if written > _MAX_DECLARATIONS:
                raise refuse(f"more than {_MAX_DECLARATIONS} functions and instances of templates")
            waiting.pop(0)()
        imports = [f"import {name};" for name in self._imports]
        self._result.source = "\n".join([*imports, *self.shared.values(), *self._lines]) + "\n"
        return self._result

    # What the writer of kernels uses.

    def write(self, text: str) -> None:
        self._lines.append(text)

    def add_kernel(self, kernel: KernelText) -> None:
        if any(k.slang_name == kernel.slang_name for k in self._result.kernels):
            raise refuse(f"two kernels with the name {kernel.name}")
        self._result.kernels.append(kernel)

    def new_name(self, stem: str) -> str:
        """A name that nothing else has."""
        self._names += 1
        return f"{stem}_{self._names}_"

    def uses(self, body: list[Token], words: frozenset[str], seen: frozenset[str] = frozenset()) -> bool:
        """Whether code calls one of the functions, by itself or by functions of the source."""
        names = {t.text for t in body if t.kind == "name"}
        if names & words:
            return True
        called = {n for n in names - seen if n in self._functions or n in self._templates}
        return any(
            self.uses(f.body, words, seen | called)
            for n in called
            for f in [*self._templates.get(n, []), *([self._functions[n]] if n in self._functions else [])]
        )

    # What the rewriter of code asks.

    def knows(self, name: str) -> bool:
        return name in self._templates or name in self._struct_templates

    def is_struct(self, name: str) -> bool:
        return name in self.structs

    def instance(self, name: Token, given: list[list[Token]]) -> str:
        """The name of a template with these arguments, which is written once."""
        if name.text in self._struct_templates:
            values, body = self._struct_instance(name, given)
            mangled = _mangled(name.text, values)
            if mangled not in self.structs:
                instance = Struct(name.as_(mangled), body)
                self.structs[mangled] = instance
                self._waiting.append(lambda: self._struct(instance, mangled))
            return mangled
        candidates = self._templates[name.text]
        generic = next((f for f in candidates if f.template), None)
        values = self._values(generic.template, given, name) if generic else {}
        mangled = _mangled(name.text, values)
        if mangled not in self._made:
            special = next((f for f in candidates if f.special is not None and self._same(f.special, values)), None)
            self._made[mangled] = special or self._substituted(generic, given)
            if not shared_places(self._made[mangled]):
                self._waiting.append(lambda: self._function(self._made[mangled], mangled, {}))
        return mangled

    def member_type(self, name: Token, given: list[list[Token]], member: str) -> list[Token] | None:
        """The type that a struct template calls `member`: Vec4<float>::type. None where it has none."""
        if name.text not in self._struct_templates:
            return None
        _, body = self._struct_instance(name, given)
        for part in split(body, ";"):
            if len(part) > 3 and part[0] == "using" and part[1] == member and part[2] == "=":
                return self.code.type_of(part[3:])
            if len(part) > 2 and part[0] == "typedef" and part[-1] == member:
                return self.code.type_of(part[1:-1])
        return None

    def _struct_instance(self, name: Token, given: list[list[Token]]) -> tuple[dict, list[Token]]:
        """The arguments of a struct template and its body with them."""
        candidates = self._struct_templates[name.text]
        generic = next((s for s in candidates if s.template), None)
        if generic is None:
            raise refuse(f"the template {name.text} without its general form", name)
        values = self._values(generic.template, given, name)
        special = next((s for s in candidates if s.special is not None and self._same(s.special, values)), None)
        return values, special.body if special else _substitute(generic.body, values)

    def _same(self, special: list[list[Token]], values: dict[str, list[Token]]) -> bool:
        wanted = [[t.text for t in self.code.type_of(part)] for part in special]
        return wanted == [[t.text for t in part] for part in values.values()]

    def message(self, text: str) -> int:
        """The number of an error."""
        messages = self._result.messages
        if text not in messages:
            messages.append(text)
        return messages.index(text)

    def bind_shared(self, name: Token, given: list[list[Token]], scope: Scope) -> tuple[Token, list[list[Token]]]:
        """The function and the arguments of a call, threadgroup memory taken out of them into the function."""
        function = self._made.get(name.text) or self._functions.get(name.text)
        if function is None:
            if name.text in self._templates:
                self._deduce(name)
            return name, given
        places = shared_places(function)
        if not places:
            return name, given
        bindings = {}
        for place in places:
            part = given[place] if place < len(given) else []
            part = part[1:] if len(part) == 2 and part[0] == "&" else part
            if len(part) != 1 or part[0].text not in scope.shared or part[0].text in scope.offsets:
                raise refuse("an argument that is a part of threadgroup memory, and not a whole array", name)
            bindings[_name_of(function.parameters[place]).text] = scope.shared[part[0].text]
        bound = "__".join([renamed(name.text), *bindings.values()])
        if bound not in self._bound:
            self._bound.add(bound)
            self._waiting.append(lambda: self._function(function, bound, bindings))
        return name.as_(bound), [part for i, part in enumerate(given) if i not in places]

    def _deduce(self, name: Token) -> None:
        """Writes a function template whose arguments are left to the compiler, for the types that the source names."""
        function = next((f for f in self._templates[name.text] if f.template), None)
        if function is None or name.text in self._deduced:
            return
        self._deduced.add(name.text)
        kinds = [p for p in function.template if p[0].text in ("typename", "class")]
        if len(function.template) != 1 or not kinds or shared_places(function):
            raise refuse(f"a call of the template {name.text} without its arguments", name)
        for kind in self._types_in_use():
            instance = self._substituted(function, [[name.as_(kind)]])
            self._waiting.append(lambda f=instance: self._function(f, renamed(name.text), {}))

    def _types_in_use(self) -> list[str]:
        """Types that templates are instantiated with; where there are none, those of the kernels' parameters."""
        known = vocabulary.SCALAR_TYPES | vocabulary.VECTOR_TYPES | set(vocabulary.TYPES)
        found = [part[0].text for _, _, given in self._source.instances for part in given if len(part) == 1]
        if not any(f in known for f in found):
            parameters = [p for f in self._source.functions if f.is_kernel for p in f.parameters]
            found = [t.text for p in parameters if not any(is_attribute(p, i) for i in range(len(p))) for t in p]
        names = [vocabulary.TYPES.get(n, n) for n in found]
        return list(dict.fromkeys(["float", *(n for n in names if n in known)]))

    def _values(self, parameters: list[list[Token]], given: list[list[Token]], name: Token) -> dict[str, list[Token]]:
        values = {}
        for i, parameter in enumerate(parameters):
            head, *default = split(parameter, "=")
            if any(t == "..." for t in head):
                raise refuse("templates of any number of arguments", name)
            value = given[i] if i < len(given) else default[0] if default else None
            if value is None:
                raise refuse(f"{name.text} with {len(given)} template arguments", name)
            values[head[-1].text] = _computed(self.code.type_of(_substitute(value, values)))
        return values

    def _substituted(self, function: Function, given: list[list[Token]]) -> Function:
        values = self._values(function.template, given, function.name)
        return Function(
            function.name,
            _substitute(function.result, values),
            [_substitute(p, values) for p in function.parameters],
            _substitute(function.body, values),
            function.is_kernel,
        )

    # Writing.

    def _function(self, function: Function, name: str, bindings: dict[str, str], prefix: str = "") -> None:
        self.write(self._function_text(function, name, bindings, prefix))

    def _function_text(self, function: Function, name: str, bindings: dict[str, str], prefix: str = "") -> str:
        places = shared_places(function)
        parameters = [parameter_text(self, p) for i, p in enumerate(function.parameters) if i not in places]
        result = text_of(self.code.type_of(function.result)).strip()
        body = text_of(self.code.rewrite(function.body, Scope(shared=dict(bindings)))).strip()
        return f"{prefix}{result} {name}({', '.join(parameters)})\n{body}"

    def _struct(self, struct: Struct, name: str) -> None:
        members = []
        body, i = struct.body, 0
        while i < len(body):
            at = i
            while at < len(body) and body[at].text not in (";", "(", "="):
                at = closing(body, at) + 1 if body[at].text in ("[", "{") else at + 1
            if at < len(body) and body[at] == "(":
                i = self._method(struct, body, i, at, members)
                continue
            end = next((k for k in range(at, len(body)) if body[k] == ";"), len(body))
            member = body[i:end]
            if member and member[0].text not in ("using", "typedef", "static_assert"):
                fixed = any(t == "static" for t in member)
                member = [t for t in member if t.text not in _QUALIFIERS] if fixed else member
                members.append(
                    ("static const " if fixed else "") + text_of(self.code.rewrite(member, Scope())).strip() + ";"
                )
            i = end + 1
        self.write(f"struct {name}\n{{\n    " + "\n    ".join(members) + "\n}")

    def _method(self, struct: Struct, body: list[Token], i: int, at: int, members: list[str]) -> int:
        end = closing(body, at)
        brace = next((k for k in range(end, len(body)) if body[k].text in ("{", ";", ":")), len(body))
        if brace == len(body) or body[brace] != "{":
            raise refuse("constructors with initializers, and methods without a body", body[at])
        stop = closing(body, brace)
        head = [t for t in body[i:at] if t.text not in ("inline", "constexpr", "METAL_FUNC", "explicit")]
        is_static = any(t == "static" for t in head)
        head = [t for t in head if t != "static"]
        is_const = any(t == "const" for t in body[end:brace])
        parameters = [p for p in split(body[at + 1 : end]) if p]
        function = Function(head[-1], head[:-1], parameters, body[brace : stop + 1])
        if len(head) == 1:
            members.append(self._function_text(function, "__init", {}).strip())
        else:
            prefix = "static " if is_static else "" if is_const else "[mutating] "
            members.append(self._function_text(function, renamed(head[-1].text), {}, prefix))
        return stop + 1

    def _other(self, tokens: list[Token]) -> None:
        first = tokens[0].text
        if first in ("typedef", "typealias"):
            self.write(text_of([tokens[0], *self.code.rewrite(tokens[1:], Scope())]).strip() + ";")
            return
        if first == "enum":
            head = [t for t in tokens[1:] if t != "class"]
            self.write("[UnscopedEnum] enum " + text_of(self.code.rewrite(head, Scope())).strip() + ";")
            return
        if any(t == "threadgroup" for t in tokens):
            raise refuse("threadgroup memory outside of kernels", tokens[0])
        if any(t == "auto" for t in tokens[:6]):
            rest = self.code.rewrite([t for t in tokens if t.text not in ("constant", "static", "const")], Scope())
        else:
            rest = self.code.rewrite([t for t in tokens if t.text not in _QUALIFIERS], Scope())
            rest = [Token("static const ", "mark", "", tokens[0].line), *rest]
        self.write(text_of(rest).strip() + ";")


def shared_places(function: Function) -> list[int]:
    """Which parameters are threadgroup memory."""
    return [i for i, p in enumerate(function.parameters) if any(t == "threadgroup" for t in p)]


def parameter_text(translator: _Translator, tokens: list[Token]) -> str:
    """A parameter of a function that is no kernel."""
    words = [t.text for t in tokens]
    if "=" in words:
        tokens = tokens[: words.index("=")]
    if "(" in words:
        raise refuse("this parameter", tokens[0])
    plain = [t for t in tokens if t.text not in ("const", "constexpr")]
    if "*" in words and "thread" in words:
        raise refuse("a pointer to thread memory as a parameter", tokens[0])
    if "&" not in words:
        return text_of(translator.code.rewrite(plain, Scope())).strip()
    if "device" in words and "const" not in words:
        raise refuse("a reference to device memory as a parameter", tokens[0])
    value = text_of(translator.code.rewrite([t for t in plain if t != "&"], Scope())).strip()
    return value if "const" in words or "constant" in words else "inout " + value


def _name_of(parameter: list[Token]) -> Token:
    return [t for t in parameter if t.kind == "name"][-1]


def _substitute(tokens: list[Token], values: dict[str, list[Token]]) -> list[Token]:
    result: list[Token] = []
    for token in tokens:
        value = values.get(token.text) if token.kind == "name" else None
        if value is None:
            result.append(token)
        elif value:
            first = value[0]
            result += [Token(first.text, first.kind, token.space, token.line), *value[1:]]
    return result


def _computed(value: list[Token]) -> list[Token]:
    """An integer expression of numbers alone as one number: f<3 - 1> is f<2>."""
    text = "".join(t.text for t in value)
    if len(value) < 2 or not re.fullmatch(r"[\d()+*/%-]{1,100}", text) or "**" in text:
        return value
    try:
        number = eval(text.replace("/", "//"), {"__builtins__": {}})  # digits and operators alone
    except Exception:
        return value
    return [value[0].as_(str(number))] if number >= 0 else value


def _mangled(name: str, values: dict[str, list[Token]]) -> str:
    parts = [re.sub(r"\W+", "_", text_of(v).strip().replace("-", "m").replace("*", "p")) for v in values.values()]
    return "__".join([name, *parts])
