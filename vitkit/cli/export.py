"""`vit export`: a model as a graph for ONNX Runtime or OpenVINO."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from vitkit.cli.options import ImageSize, Json, Model, Overwrite, Verbose, parse_size
from vitkit.cli.output import announcer, note, print_json, print_table
from vitkit.notes import Note
from vitkit.runtimes import Precision, Runtime

if TYPE_CHECKING:
    from vitkit.exports.run import Exported


def export(
    model: Model,
    out: Annotated[str, typer.Option(metavar="DIR", help="Folder to write.")],
    to: Annotated[Runtime, typer.Option(help="Runtime of the graph.")] = "onnx",
    precision: Annotated[
        Precision, typer.Option(help="Precision of the graph; bfloat16 needs openvino.")
    ] = "float32",
    calibrate: Annotated[
        str | None,
        typer.Option(metavar="DATA", help="Images that int8 is calibrated on; labels are not needed."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(metavar="DATA", help="Labelled images to measure accuracy on, before and after."),
    ] = None,
    image_size: ImageSize = None,
    accept: Annotated[
        list[str] | None,
        typer.Option(metavar="loss", help="Write the graph even if it loses more than the tolerance."),
    ] = None,
    force: Overwrite = False,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Write a model for ONNX Runtime or OpenVINO: vit export runs/photos --to openvino --out photos-openvino/

    The graph is compared with the model on real images, and is not written if it loses too much. The folder works
    wherever a model does: vit predict photos-openvino/ photo.jpg
    """
    size = parse_size(image_size)

    from vitkit.exports.run import export as run

    announce = announcer(verbose)
    result = run(
        model,
        out,
        to,
        precision,
        calibrate=calibrate,
        data=data,
        image_size=size,
        accept=accept or (),
        force=force,
        announce=lambda line: announce(Note(line, "protocol")),
    )
    for line in result.notes:
        note(line)
    if json:
        print_json(result)
    else:
        print_result(result)


def print_result(result: Exported) -> None:
    """Print what was written and how it compares with its source."""
    check = result.check
    rows = [
        ["size", f"{result.bytes / 1e6:,.1f} MB"],
        ["compared on", f"{check.what} ({check.images} images)"],
        ["largest difference of an output", f"{check.largest_difference:.2g}"],
        ["relative error", f"{check.relative_error:.3%}"],
    ]
    if check.agreement is not None:
        rows.append(["same likeliest class", f"{check.agreement:.1%}"])
    if check.before is not None and check.after is not None:
        metric = str(check.metric).replace("_", " ")
        words = f"{check.before:.2%} before, {check.after:.2%} after"
        rows.append([f"{metric} on {check.data}", words])
    if calibration := result.calibration:
        rows.append(["calibrated on", f"{calibration.data} ({calibration.images} images)"])
        units = sum(calibration.split.values())
        rows.append(["outliers", f"{calibration.smoothed} layers smoothed, {units} hidden units in float"])
        rows.append(["layers kept in float", ", ".join(calibration.kept_float) or "none"])
    print_table(f"{result.out}: {result.model} for {result.to}, {result.precision}", ["", "value"], rows)
