"""`vit cost`: what a model costs, and the published figures next to ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from vitkit.cli.options import ImageSize, Json, parse_size
from vitkit.cli.output import print_json, print_table
from vitkit.errors import InputError
from vitkit.models.configs import AttentionKind

if TYPE_CHECKING:
    from vitkit.costs import CostReport
    from vitkit.published import Scaling, Sizes


def cost(
    models: Annotated[list[str] | None, typer.Argument(metavar="MODEL", help="Names of models.")] = None,
    image_size: ImageSize = None,
    num_classes: Annotated[int | None, typer.Option(help="Number of classes; 0 drops the head.")] = None,
    attention: Annotated[
        AttentionKind | None, typer.Option(help="Kind of attention, with its default settings.")
    ] = None,
    images: Annotated[
        int | None, typer.Option(help="Also count training on this many images, over all epochs.")
    ] = None,
    table: Annotated[
        Literal["sizes", "scaling"] | None, typer.Option(help="Compare published figures with ours instead.")
    ] = None,
    json: Json = False,
) -> None:
    """Count parameters, multiply-adds, FLOPs and training memory: vit cost B/16 --image-size 384"""
    from vitkit.costs import cost as count
    from vitkit.published import Sizes
    from vitkit.published import table as published

    if table:
        if models or (image_size, num_classes, attention, images) != (None,) * 4:
            raise InputError(f"--table {table} can't be combined with models or other flags")
        result = published(table)
        if json:
            print_json(result)
        elif isinstance(result, Sizes):
            print_sizes(result)
        else:
            print_scaling(result)
        return
    if not models:
        raise InputError("no model named; try: vit cost B/16, or: vit cost --table sizes")
    size = parse_size(image_size)
    reports = [
        count(name, image_size=size, num_classes=num_classes, attention=attention, images=images)
        for name in models
    ]
    if json:
        print_json(reports if len(reports) > 1 else reports[0])
    else:
        print_reports(reports)


def print_reports(reports: list[CostReport]) -> None:
    parts = {part: None for report in reports for part, row in report.parts.items() if row.macs}
    rows = [
        ["image", *("x".join(map(str, report.image_size)) for report in reports)],
        ["classes", *(f"{report.num_classes:,}" for report in reports)],
        ["parameters", *(f"{report.parameters:,}" for report in reports)],
        ["tokens", *(number(report.tokens) for report in reports)],
        ["MACs", *(f"{report.macs:,}" for report in reports)],
    ]
    for part in parts:
        macs = (report.parts[part].macs or None if part in report.parts else None for report in reports)
        rows.append([f"  {part.replace('_', ' ').replace('mlp', 'MLP')}", *map(number, macs)])
    for label, key in (("GFLOPs", "flops"), ("  with element-wise", "flops_with_elementwise")):
        rows.append([label, *(f"{getattr(report, key) / 1e9:,.3f}" for report in reports)])
    for label, key in (
        ("activations", "activation_bytes"),
        ("checkpointed", "activation_bytes_checkpointed"),
    ):
        for precision in ("float32", "bfloat16"):
            sizes = (f"{getattr(report, key)[precision] / 2**20:,.1f} MiB" for report in reports)
            rows.append([f"{label}, {precision}", *sizes])
    if reports[0].images is not None:
        rows.append(
            [
                f"exaFLOPs, {reports[0].images:,} images",
                *(f"{report.exaflops:,.4g}" for report in reports),
            ]
        )
    names = [report.model for report in reports]
    caption = (
        "For one image. MACs: multiply-adds of matrix products and convolutions. GFLOPs: 2 per MAC, and with "
        "1 per element-wise operation. Activations: what training keeps for the backward pass; "
        "checkpointed: block inputs and one whole block."
    )
    if reports[0].images is not None:
        caption += " exaFLOPs of training: 3 (forward and backward) x 2 per MAC x images."
    print_table(None, ["", *names], rows, caption=caption, right=names)


def print_sizes(result: Sizes) -> None:
    numbers = ["image", "parameters", "published", "GMACs", "GFLOPs", "with element-wise", "published GFLOPs"]
    rows = [
        [
            row.model,
            str(row.image_size[0]),
            f"{row.parameters / 1e6:.1f}M",
            row.published_parameters,
            f"{row.macs / 1e9:.{1 if row.macs > 1e9 else 2}f}",
            f"{row.flops / 1e9:.{1 if row.flops > 1e9 else 2}f}",
            "" if row.flops_with_elementwise is None else f"{row.flops_with_elementwise / 1e9:.1f}",
            f"{row.published_gflops:g}",
            row.note,
        ]
        for row in result.rows
    ]
    print_table(None, ["model", *numbers, "note"], rows, caption=result.convention, right=numbers)


def print_scaling(result: Scaling) -> None:
    numbers = ["epochs", "GMACs", "exaFLOPs", "published", "difference"]
    rows = [
        [
            row.model,
            str(row.epochs),
            f"{row.macs / 1e9:.2f}",
            f"{row.exaflops:,.1f}",
            f"{row.published_exaflops:,}",
            f"{row.difference:+.1%}",
        ]
        for row in result.rows
    ]
    print_table(None, ["model", *numbers], rows, caption=result.convention, right=numbers)


def number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"
