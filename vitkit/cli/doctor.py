"""`vit doctor`: what this machine offers, and what is wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from vitkit.cli.options import Json
from vitkit.cli.output import note, print_json, print_line, print_table

if TYPE_CHECKING:
    from vitkit.doctor import MachineFacts
    from vitkit.timing.advice import MeasuredWays


def doctor(
    measure: Annotated[
        bool, typer.Option("--measure", help="Time the ways to run a small model here, and recommend one.")
    ] = False,
    json: Json = False,
) -> None:
    """Show versions, devices, extras, the cache folder and the offline setting."""
    from vitkit.doctor import doctor as examine

    findings = examine()
    if json and not measure:
        print_json(findings)
    elif not json:
        print_facts(findings)
    if measure:
        from vitkit.timing.advice import measure_ways

        ways = measure_ways()
        if json:
            print_json({**findings.to_json(), "measured": ways.to_json()})
        else:
            print_ways(ways)
        for line in ways.notes:
            note(line)
    for problem in findings.problems:
        note(f"problem: {problem}")
    if findings.problems:
        raise typer.Exit(1)


def print_facts(findings: MachineFacts) -> None:
    gibibyte = 2**30
    devices, cpu, cache = findings.devices, findings.devices.cpu, findings.cache
    facts = [["vitkit", findings.vitkit], ["python", findings.python], ["platform", findings.platform]]
    facts += [[name, found or "missing"] for name, found in findings.packages.items()]
    facts.append(
        [
            "cpu",
            f"{cpu.name}, {cpu.cores} cores, torch uses {cpu.threads or 0} thread{'' if cpu.threads == 1 else 's'}",
        ]
    )
    facts += [
        [f"cuda:{index}", f"{gpu.name}, {gpu.memory_bytes / gibibyte:.0f} GiB, capability {gpu.capability}"]
        for index, gpu in enumerate(devices.cuda)
    ] or [["cuda", "none"]]
    facts.append(["mps", "available" if devices.mps else "none"])
    if cache.folder is not None and cache.free_bytes is not None:
        facts.append(["cache folder", f"{cache.folder}, {cache.free_bytes / gibibyte:.0f} GiB free"])
        facts.append(["offline", "yes" if cache.offline else "no; HF_HUB_OFFLINE=1 switches downloads off"])
    print_table(None, ["what", "found"], facts)
    print_table(
        None,
        ["extra", "missing", "to install"],
        [
            [extra, " ".join(state.missing) or "nothing", state.install if state.missing else ""]
            for extra, state in findings.extras.items()
        ],
    )


def print_ways(ways: MeasuredWays) -> None:
    """Print each way with its time, then the fastest."""
    from vitkit.timing.results import SPEEDS, speed_cells

    right = [name for name, is_right in SPEEDS.items() if is_right]
    first = ways.rows[0]
    print_table(
        f"Ways to run {ways.model}, with random weights; {first.precision}, {first.threads} threads unless named (x1: 1 thread)",
        list(SPEEDS),
        speed_cells(ways.rows),
        right=right,
    )
    print_line("Fastest here:")
    for advice in ways.fastest:
        print_line(f"  {advice.words}")
