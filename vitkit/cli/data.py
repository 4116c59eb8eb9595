"""`vit data`: what is in a data set, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitkit.cli.options import Json, Overwrite
from vitkit.cli.output import note, print_json, print_line, print_table
from vitkit.progress import progress_bar

if TYPE_CHECKING:
    from vitkit.data.report import Comparison, DataReport, Duplicates, Match, NamedImage, SplitReport

MOST_LINES = 5


def data(
    spec: Annotated[str, typer.Argument(metavar="DATA", help="SOURCE[:SPLIT]; the default is every split.")],
    against: Annotated[
        str | None,
        typer.Option(
            metavar="DATA", help="Look for images that are also in this set; its default split is test."
        ),
    ] = None,
    images: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Read only this many images of each split, evenly spaced."),
    ] = None,
    out: Annotated[str | None, typer.Option(metavar="FILE.png", help="Draw a contact sheet.")] = None,
    force: Overwrite = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also print every class and every copy.")
    ] = False,
    json: Json = False,
) -> None:
    """Report splits, classes, sizes, unreadable images and copies: vit data ./photos --out sheet.png

    Every image is decoded. Images with the same pixels are copies, whatever their files.
    Copies in two splits are found even if DATA names one split.
    The exit status is 1 when a split can't be opened, else 0.
    """
    from vitkit.data.report import describe_data as examine
    from vitkit.data.splits import counted

    with progress_bar("reading") as progress:
        report = examine(spec, against=against, images=images, out=out, force=force, progress=progress)
    for line in report.notes:
        note(line)
    if json:
        print_json(report)
    else:
        print_report(report, verbose)
        note(f"contact sheet: {report.sheet}" if out else "--out FILE.png draws a contact sheet")
    for fault in report.faults:
        note(f"can't be opened: {fault}")
    if report.refused:
        note(f"{'; '.join(report.refused)}: other commands stop; --bad-images any continues")
    elif count := report.num_unreadable:
        note(f"{counted(count, 'image')} can't be read; other commands skip such images")
    if report.faults:
        raise typer.Exit(1)


def print_report(report: DataReport, verbose: bool = False) -> None:
    splits = report.splits
    print_table(
        report.data,
        ["split", "images", "classes", "smallest class", "largest class", "balance"],
        [
            [
                part.split,
                f"{part.images:,}",
                f"{sum(count > 0 for count in part.classes.values()):,}",
                *(f"{end.name}: {end.images:,}" for end in (part.smallest, part.largest)),
                f"{part.balance:.3f}",
            ]
            for part in splits
        ],
        right=["images", "classes", "balance"],
    )
    if verbose:
        print_table(
            None,
            ["class", *(part.split for part in splits)],
            [[name, *(f"{part.classes[name]:,}" for part in splits)] for name in splits[0].classes],
            right=[part.split for part in splits],
        )
    print_table(
        None,
        ["split", "read", "unreadable", "min", "median", "max", "modes", "formats"],
        [
            [
                part.split,
                f"{part.read:,}",
                f"{len(part.unreadable):,}",
                *(size(part, end) for end in ("min", "median", "max")),
                *(
                    ", ".join(f"{name} {count:,}" for name, count in counts.items())
                    for counts in (part.modes, part.formats)
                ),
            ]
            for part in splits
        ],
        caption="Balance is 1 if all classes have one size, 0 if there is one class only. Sizes are height x width, "
        "each on its own.",
        right=["read", "unreadable", "min", "median", "max"],
    )
    for part in splits:
        if part.multi_label:
            print_line(
                f"{part.split}: multi-label, {part.labels / part.images:.2f} labels per image on average; "
                f"images without any: {part.unlabelled:,}"
            )
    compared = report.against.unreadable if report.against else []
    for entry in (*(entry for part in splits for entry in part.unreadable), *compared):
        print_line(f"can't be read: {entry.image}: {entry.reason}")
    print_duplicates(report.duplicates, verbose)
    if report.against:
        print_matches(report.against, verbose)


def print_duplicates(found: Duplicates, verbose: bool) -> None:
    lines = [(f"images of {pair.split} that are also in {pair.other}", pair.images) for pair in found.across]
    lines += [
        (f"images of {split} that repeat another one there", count) for split, count in found.within.items()
    ]
    lines.append(("pictures that are in several classes", found.with_different_classes))
    if not found.groups:
        print_line("copies: none")
    for words, count in lines:
        if count:
            print_line(f"{words}: {count:,}")
    leaks_first = sorted(found.groups, key=lambda group: len({member.split for member in group}) == 1)
    print_some(leaks_first, lambda group: "  " + same(group, verbose), verbose)


def print_matches(found: Comparison, verbose: bool) -> None:
    print_line(f"images of {found.data} that are also here: {found.found:,} of {found.read:,}")
    print_some(found.matches, lambda match: "  " + same([match, *match.found], verbose), verbose)


def print_some(entries: list[Any], say: Callable[[Any], str], verbose: bool) -> None:
    shown = entries if verbose else entries[:MOST_LINES]
    for entry in shown:
        print_line(say(entry))
    if more := len(entries) - len(shown):
        print_line(f"  and {more:,} more; --verbose names all")


def same(images: Sequence[NamedImage | Match], verbose: bool) -> str:
    shown = images if verbose else images[:MOST_LINES]
    more = f" and {len(images) - len(shown):,} more" if len(images) > len(shown) else ""
    return " = ".join(entry.image for entry in shown) + more


def size(part: SplitReport, end: str) -> str:
    return f"{getattr(part.height, end)}x{getattr(part.width, end)}" if part.height else ""
