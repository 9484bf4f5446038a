"""Kernels of Metal as entry points of Slang: their buffers, their attributes, their threadgroup memory."""

from __future__ import annotations

from . import vocabulary
from .declarations import Function, is_attribute
from .names import Scope, renamed
from .predication import predicate
from .threadgroup import hoist
from .tokens import Token, closing, refuse, split, text_of
from .translate import Buffer, KernelText, _Translator
from .uniformity import PER_THREAD

_EXACT = vocabulary.BARRIERS | vocabulary.EXCHANGES
_IDENTITY = "position_in_grid_"


def write_kernel(translator: _Translator, function: Function, name: str) -> None:
    """Adds a kernel under a name, with what it needs."""
    scope = Scope()
    prologue: list[str] = []
    buffers: dict[int, Buffer] = {}
    for parameter in function.parameters:
        attribute, plain = _attribute_of(parameter)
        if attribute and attribute[0].text not in ("buffer",):
            prologue.append(_built_in(translator, attribute, plain))
            continue
        place = int(attribute[2].text) if attribute else max(buffers, default=-1) + 1
        buffers[place] = _buffer(translator, plain, place, scope, prologue)
    slang_name = renamed(name)
    body = hoist(translator, function.body, slang_name, scope)
    exchanges = translator.uses(body, vocabulary.EXCHANGES | {"simdgroup_barrier"})
    is_exact = bool(scope.shared) or translator.uses(body, _EXACT) or _asks_for_simd(function)
    if exchanges and not translator.native_simd:
        body = predicate(translator, body, _per_thread(function))
    text = text_of(translator.code.rewrite(body, scope)).strip()
    lines = [
        "let launch_ = arguments_.launch;",
        f"let {_IDENTITY} = (launch_.first_group + group_) * launch_.group + thread_;",
    ]
    if is_exact:
        lines.append("simd_begin(index_, launch_.group_here.x * launch_.group_here.y * launch_.group_here.z);")
    else:
        lines.append(f"if (any({_IDENTITY} >= launch_.threads)) return;")
    lines += prologue
    translator.write(
        '[shader("compute")] [numthreads(1, 1, 1)]\n'
        f"void {slang_name}(uniform MetalArguments* arguments_, uint3 group_ : SV_GroupID, "
        "uint3 thread_ : SV_GroupThreadID, uint index_ : SV_GroupIndex)\n{\n    "
        + "\n    ".join(lines)
        + "\n"
        + text
        + "\n}"
    )
    count = max(buffers, default=-1) + 1
    rows = [buffers.get(i, Buffer()) for i in range(count)]
    translator.add_kernel(KernelText(name, slang_name, rows, is_exact))


def _attribute_of(parameter: list[Token]) -> tuple[list[Token], list[Token]]:
    """The attribute of a parameter, and the parameter without any."""
    for i in range(len(parameter)):
        if is_attribute(parameter, i):
            end = closing(parameter, i)
            found = split(parameter[i + 2 : end - 1])
            named = next((a for a in found if a), [])
            rest = parameter[:i] + parameter[end + 1 :]
            more, rest = _attribute_of(rest)
            return named or more, rest
    return [], parameter


def _asks_for_simd(function: Function) -> bool:
    names = {t.text for p in function.parameters for t in _attribute_of(p)[0]}
    return any("simdgroup" in n or "threadgroup" in n and n != "threadgroup_position_in_grid" for n in names)


def _per_thread(function: Function) -> set[str]:
    """Names of the parameters that differ between the threads of a threadgroup."""
    pairs = map(_attribute_of, function.parameters)
    return {plain[-1].text for attribute, plain in pairs if attribute and attribute[0].text in PER_THREAD}


def _built_in(translator: _Translator, attribute: list[Token], plain: list[Token]) -> str:
    """The line that declares a parameter like `uint i [[thread_position_in_grid]]`."""
    what = attribute[0].text
    kind = text_of(translator.code.type_of(plain[:-1])).strip()
    name = renamed(plain[-1].text)
    if what in vocabulary.SCALAR_ATTRIBUTES:
        return f"{kind} {name} = {kind}({vocabulary.SCALAR_ATTRIBUTES[what]});"
    if what not in vocabulary.ATTRIBUTES:
        raise refuse(f"[[{what}]]", attribute[0])
    swizzle = {"3": ".xyz", "2": ".xy"}.get(kind[-1], ".x")
    return f"{kind} {name} = {kind}(({vocabulary.ATTRIBUTES[what]}){swizzle});"


def _buffer(translator, plain: list[Token], place: int, scope: Scope, prologue: list[str]) -> Buffer:
    """Declares a buffer's pointer, or the value that it holds."""
    words = [t.text for t in plain]
    name = plain[-1]
    if "threadgroup" in words:
        raise refuse("threadgroup memory as a parameter of a kernel", plain[0])
    if not {"device", "constant"} & set(words) or name.kind != "name":
        raise refuse(f"the parameter '{text_of(plain).strip()}'", plain[0])
    is_reference = "&" in words
    element = [t for t in plain[:-1] if t.text not in ("&", "const", "device", "constant", "restrict", "volatile")]
    if not is_reference:
        if "*" not in words or words.count("*") > 1:
            raise refuse(f"the parameter '{text_of(plain).strip()}'", plain[0])
        element = [t for t in element if t != "*"]
    is_packed = any(t.text.startswith("packed_") for t in element)
    kind = text_of(translator.code.type_of(element)).strip()
    scalar, width = (kind[:-1], int(kind[-1])) if kind in vocabulary.VECTOR_TYPES else (kind, 1)
    if width == 3 and not is_packed and not is_reference:
        raise refuse(f"a pointer to {kind}, of which one is as long as four numbers", plain[0])
    if kind in vocabulary.MATRIX_TYPES and kind[-1] == "3":
        raise refuse("a buffer of matrices whose columns have three numbers", plain[0])
    if kind in translator.structs:
        _check_layout(translator, kind, plain[0], is_reference)
    pointer = f"({kind}*)metal_buffer(arguments_, {place})"
    if is_reference and kind not in translator.structs and "constant" in words:
        stored = f"*({pointer})" if kind != "bool" else f"(*(uint8_t*)metal_buffer(arguments_, {place}) != 0)"
        prologue.append(f"let {renamed(name.text)} = {stored};")
    elif kind == "bool":
        prologue.append(f"let {renamed(name.text)} = (uint8_t*)metal_buffer(arguments_, {place});")
    else:
        prologue.append(f"{kind}* {renamed(name.text)} = {pointer};")
        if is_reference:
            scope.references.add(name.text)
    known = vocabulary.KINDS.get(scalar, ("", 0))[0]
    return Buffer(known, width if is_reference and known else 0, "constant" in words or "const" in words)


def _check_layout(translator: _Translator, name: str, token: Token, is_one: bool) -> None:
    """Raises where the members of a struct, of one or of many, lie elsewhere in Metal's memory than in Slang's."""
    here, there = (_layout(translator, name, of_metal) for of_metal in (False, True))
    last = -1 if is_one else None
    if here is not None and there is not None and here[0][:last] != there[0][:last]:
        raise refuse(f"a buffer of {name}, whose vectors are aligned in Metal", token)


def _layout(translator: _Translator, name: str, of_metal: bool) -> tuple[list[int], int] | None:
    """Offsets of the members and the size, and the alignment; None where a member is not known."""
    offset, most, places = 0, 1, []
    for member in split(translator.structs[name].body, ";"):
        if not member or any(t.text in ("(", "static", "{", "using") for t in member):
            continue
        at = next((k for k in range(len(member)) if member[k] == "["), len(member))
        if any(t == "," for t in member):
            return None
        packed = member[0].text.startswith("packed_")
        kind = text_of(translator.code.type_of(member[: at - 1])).strip()
        size, align = _size_of(translator, kind, of_metal and not packed)
        if size == 0:
            return None
        if at < len(member):
            count = member[at + 1].text
            if not count.isdigit() or closing(member, at) != len(member) - 1:
                return None
            size *= int(count)
        offset = -(-offset // align) * align
        places.append(offset)
        offset += size
        most = max(most, align)
    return [*places, -(-offset // most) * most], most


def _size_of(translator: _Translator, kind: str, of_metal: bool) -> tuple[int, int]:
    """Bytes and alignment; 0 where they are not known."""
    if kind in vocabulary.KINDS:
        return (vocabulary.KINDS[kind][1],) * 2
    if kind.endswith("*") or kind.startswith("Ptr<"):
        return (8, 8) if "[" not in kind else (0, 0)
    if kind in vocabulary.VECTOR_TYPES:
        size, width = vocabulary.KINDS[kind[:-1]][1], int(kind[-1])
        whole = size * (4 if width == 3 else width)
        return (whole, whole) if of_metal else (size * width, size)
    if kind in vocabulary.MATRIX_TYPES:
        size, align = _size_of(translator, kind[6:-3] + kind[-1], of_metal)
        return size * int(kind[-3]), align
    if kind in translator.structs:
        found = _layout(translator, kind, of_metal)
        return (found[0][-1], found[1]) if found else (0, 0)
    return 0, 0
