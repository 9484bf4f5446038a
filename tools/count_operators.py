"""Prints what the dispatcher says of the backend; README's numbers come from here."""

import torch


def main():
    names = [name for name in torch._C._dispatch_get_registrations_for_dispatch_key("MPS") if name.startswith("aten::")]
    operators = {name.removeprefix("aten::").split(".")[0].rstrip("_") for name in names}
    print(f"{len(operators)} operators, {len(names)} overloads native on mps")


if __name__ == "__main__":
    main()
