"""Progress on standard error: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from vitkit.cli.output import note
from vitkit.figures.numbers import clock, is_share, metric
from vitkit.notes import visible

if TYPE_CHECKING:
    from vitkit.training.log import Listener

LINE_EVERY = 10.0
"Seconds from one line to the next."


@contextmanager
def progress_bar(words: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that takes how many are done, and of how many; the bar disappears at the end."""
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
    """Return a function that takes how many are done and prints a line every few seconds; short work prints none."""
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


@contextmanager
def follow() -> Iterator[Listener]:
    """Yield a listener that shows a training run here."""
    from rich.console import Console

    console = Console(stderr=True)
    follower: Lines | Bar = Bar(console) if console.is_terminal else Lines()
    try:
        yield follower
    finally:
        follower.stop()


class Lines:
    """One line for each line of metrics."""

    def __init__(self) -> None:
        self.total = 0

    def note(self, line: str) -> None:
        note(line)

    def start(self, step: int, total: int) -> None:
        self.total = total
        if step:
            self.note(
                f"resumes at step {step:,} of {total:,}" if step < total else "the run is already finished"
            )

    def stepped(self, step: int) -> None:
        pass

    def metrics(self, line: Mapping[str, Any]) -> None:
        words = metrics_text(line)
        left = self.total - line["step"]
        if "learning_rate" in line and left:
            pace = line["seconds"] / line["step"]  # without compilation
            words += f", {clock(left * pace)} left"
        self.note(f"step {line['step']:,}/{self.total:,}: {words}")

    def stop(self) -> None:
        pass


class Bar(Lines):
    """A bar with the newest numbers next to it; measurements stay above it."""

    def __init__(self, console: Any) -> None:
        from rich.progress import BarColumn, Progress, ProgressColumn, Task
        from rich.table import Column
        from rich.text import Text

        class Numbers(ProgressColumn):
            """All numbers as one text, of which a narrow terminal cuts off the end."""

            def render(self, task: Task) -> Text:
                left = "-:--" if task.time_remaining is None else clock(task.time_remaining)
                return Text(f"{task.completed:,.0f}/{task.total or 0:,.0f}, {left} left  {task.description}")

        super().__init__()
        columns = (BarColumn(20), Numbers(Column(no_wrap=True, overflow="ellipsis")))
        self.bar = Progress(*columns, console=console, transient=True)
        self.task: Any = None

    def note(self, line: str) -> None:
        self.bar.console.print(visible(line), markup=False, highlight=False, emoji=False, soft_wrap=True)

    def start(self, step: int, total: int) -> None:
        super().start(step, total)
        self.bar.start()
        self.task = self.bar.add_task("", total=total, completed=step)

    def stepped(self, step: int) -> None:
        self.bar.update(self.task, completed=step)

    def metrics(self, line: Mapping[str, Any]) -> None:
        if "learning_rate" in line:
            self.bar.update(self.task, description=metrics_text(line))
        else:
            self.note(f"step {line['step']:,}: {metrics_text(line)}")

    def stop(self) -> None:
        self.bar.stop()


def metrics_text(line: Mapping[str, Any]) -> str:
    """Return a line of metrics as people read it."""
    return ", ".join(
        filter(None, (_metric_text(name, value) for name, value in line.items() if value is not None))
    )


def _metric_text(name: str, value: Any) -> str:
    if is_share(name) or name.endswith("loss"):
        return f"{name} {metric(name, value)}"
    forms = {
        "learning_rate": f"lr {value:.3g}",
        "images_per_second": f"{value:,.0f} images/s",
        "waiting": f"{value:.0%} waiting for data",
        "peak_share": f"{value:.0%} of peak",
    }
    return forms.get(name, "")
