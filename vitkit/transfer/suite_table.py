"""The suite's table: a row for each data set, ours first, then the paper's, and beneath it what makes ours another."""

from __future__ import annotations

from typing import Any

CAPTION = (
    "Top-1 accuracy in percent, mean and sample standard deviation of seeds. The paper's are ViT's tables 2 and 5; "
    "ImageNet in table 2 was fine-tuned at 512 px (H/14: 518) with averaged weights. * see below."
)


def cells(document: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows; a number with a remark has a star."""
    published = document["published"]
    names = list(dict.fromkeys(row for values in published.values() for row in values))
    rows = []
    for name in names:
        row = document["results"].get(name)
        theirs = [number(values[name]) if name in values else "-" for values in published.values()]
        short = "" if row is None else row["protocol"].partition(":")[0]
        rows.append([name, "-" if row is None else number(row), short, *theirs])
    return ["data", document["model"], "protocol", *published], rows


def number(row: dict[str, Any]) -> str:
    """Return a mean with its deviation, and a star where something must be said of it."""
    spread = "" if row["std"] is None else f" ± {row['std'] * 100:.2f}"
    return f"{row['accuracy'] * 100:.2f}{spread}" + ("*" if row.get("remarks") else "")


def remarks(document: dict[str, Any]) -> list[str]:
    """Return a line for each data set of which something must be said."""
    lines = [
        f"* {name}: {'; '.join(row['remarks'])}"
        for name, row in document["results"].items()
        if row["remarks"]
    ]
    lines += [f"{name} failed: {why}" for name, why in document["failures"].items()]
    return lines + [f"left out {name}: {why}" for name, why in document["absent"].items()]


def title(document: dict[str, Any]) -> str:
    seeds = f"{document['seeds']} seed{'' if document['seeds'] == 1 else 's'}"
    return f"{document['run']}: {document['status']}, {seeds}, {document['device_hours']:.2f} device-hours"


def as_markdown(document: dict[str, Any]) -> str:
    """Return the table as a file."""
    columns, rows = cells(document)
    lines = [columns, ["---"] * len(columns), *rows]
    table = "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
    notes = "".join(f"\n- {line.replace('*', chr(92) + '*', 1)}" for line in remarks(document))
    return f"# {title(document)}\n\n{table}\n\n{CAPTION.replace('* see', chr(92) + '* see')}\n{notes}\n"
