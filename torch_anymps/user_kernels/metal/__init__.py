"""A subset of Metal's language, rewritten into Slang: docs/user_kernels.md says which.

tokens.py reads a source and expands its macros, declarations.py finds functions and structs, translate.py writes them
once an instance of a template, code.py turns statements into Slang's, entry.py does kernels, threadgroup.py their
memory, predication.py and uniformity.py simd functions in branches.
"""

from .translate import Translation, translate

__all__ = ["Translation", "translate"]
