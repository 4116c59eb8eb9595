"""`vit recipes`: what can be trained, and what came of it."""

from __future__ import annotations

from vitkit.cli.options import Json, Pattern
from vitkit.cli.output import print_json, print_table


def recipes(
    pattern: Pattern = "*",
    json: Json = False,
) -> None:
    """List the recipes that `vit train` knows, with their published result: vit recipes 'cifar*'"""
    from vitkit.training.recipes import list_recipes

    found = list_recipes(pattern)
    if json:
        print_json(found)
        return
    rows = [[row["name"], row["about"], row.get("cost", ""), row.get("result", "")] for row in found]
    print_table(None, ["recipe", "about", "cost", "result"], rows, "vit train RECIPE [KEY=VALUE]...")
