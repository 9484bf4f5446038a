"""Names and literals of a source in Slang."""

from __future__ import annotations

from dataclasses import dataclass, field

from . import vocabulary


@dataclass
class Scope:
    """What names mean in one function.

    shared: threadgroup memory, by its name in the function, and its name in the module. references: names that stand
    for what a pointer points to. offsets: where in its memory a name of `shared` begins, if not at its first element.
    """

    shared: dict[str, str] = field(default_factory=dict)
    references: set[str] = field(default_factory=set)
    offsets: dict[str, str] = field(default_factory=dict)


def renamed(name: str) -> str:
    """A name of the source that is no word of Slang."""
    return name + "_" if name in vocabulary.KEYWORDS else name


def number(text: str) -> str:
    """A literal of Metal as one of Slang."""
    text = text.replace("'", "")
    if text[-1:] in "lL" and text[:2].lower() != "0x":
        return text.rstrip("uUlL") + ("ull" if text[-2:-1] in ("u", "U") or "u" in text.lower() else "ll")
    if text[-1:] == "h" or text[-1:] == "H":
        return f"half({text[:-1]}f)" if "." in text else f"half({text[:-1]})"
    return text.replace(".f", ".0f") if text.endswith(".f") else text + "0" if text.endswith(".") else text
