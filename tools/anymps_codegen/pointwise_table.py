"""The rows of pointwise.yaml as JSON, for the documentation and the tests."""

import json


def pointwise_table(rows: list, dtypes: dict) -> str:
    table = []
    for row in rows:
        for functor, choice in zip(row.functors, row.choices or [None] * len(row.functors), strict=False):
            table.append(
                {
                    "name": functor.name,
                    "ops": row.ops,
                    "rule": row.rule,
                    "inputs": row.inputs,
                    "scalars": row.scalars,
                    "expr": functor.exprs,
                    "dtypes": [dtype for kind in functor.exprs for dtype in dtypes[kind]],
                    "choice": {row.choice: choice} if row.choice else {},
                    "heavy": "kHeavy" in row.flags,
                }
            )
    return json.dumps(table, indent=1) + "\n"
