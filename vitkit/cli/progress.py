"""Progress on standard error: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LINE_EVERY = 10.0
"Seconds from one line to the next."


@contextmanager
def progress_bar(words: str) -> Iterator[Callable[[int, int], None]]:
    """Yield what to tell how many are done, and of how many; the bar goes away at the end."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield progress_lines(words)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(words, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def progress_lines(words: str) -> Callable[[int, int], None]:
    """Return what to tell how many are done; it says so every few seconds, and of short work nothing."""
    from vitkit.cli.following import clock
    from vitkit.cli.output import note

    began = last = time.monotonic()
    before, has_spoken = 0, False

    def tell(done: int, total: int) -> None:
        nonlocal began, last, before, has_spoken
        now = time.monotonic()
        if done < before:  # the next part of the work
            began = now
        before = done
        if now - last >= LINE_EVERY or (has_spoken and done == total):
            last, has_spoken = now, True
            left = f", {clock((total - done) * (now - began) / done)} left" if 0 < done < total else ""
            note(f"{words}: {done:,} of {total:,}{left}")

    return tell
