"""What compiled functions run without a look inside: launches of torch.mps.compile_shader's kernels, and streams."""

import pathlib
import re

WHY = "Dynamo traces neither kernels of torch.mps.compile_shader, as on a Mac, nor streams: graphs end at them."
TARGETS = ("torch._dynamo.trace_rules",)


def apply(module, replace):
    package = pathlib.Path(__file__).parent.parent
    folders = [str(package / "user_kernels"), str(package / "compiler.py"), str(package / "streams.py")]
    replace(module, "SKIP_DIRS", [*module.SKIP_DIRS, *folders])
    ours = "|".join(map(re.escape, folders))
    replace(module, "SKIP_DIRS_RE", re.compile(f"{module.SKIP_DIRS_RE.pattern}|^(?:{ours})"))
