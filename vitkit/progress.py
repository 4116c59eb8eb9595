"""Progress on standard error: a bar in a terminal or a notebook, plain lines elsewhere; the same for commands and Python."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec
from typing import Any, Protocol

from vitkit.figures.numbers import clock, is_share, metric
from vitkit.notes import Kind, Note, is_shown, kind_of, say, visible, worded

Progress = Callable[[int, int], None]
"Called with the number of images done, and with their total."
Tell = Callable[[str], None]
"Called with each note."
WARNINGS: frozenset[Kind] = frozenset({"warning", "untrained"})
"Kinds of notes that a function prints of itself."
LINE_EVERY = 10.0
"Seconds from one line to the next."
BAR = 20
"Characters of a run's bar."
_is_inside = ContextVar("is_inside", default=False)
"Whether this is work inside other work, which shows no progress of its own."


class Listener(Protocol):
    """Receives the events of a run, for example to show a progress bar."""

    def note(self, line: Note) -> None:
        """Called with each note."""

    def start(self, step: int, total: int) -> None:
        """Called when training starts or resumes at a step."""

    def stepped(self, step: int) -> None:
        """Called after each step."""

    def metrics(self, line: Mapping[str, Any]) -> None:
        """Called with each line of metrics.jsonl."""

    def stop(self) -> None:
        """Called when training is over."""


class Silent:
    """A listener that does nothing."""

    def note(self, line: Note) -> None: ...
    def start(self, step: int, total: int) -> None: ...
    def stepped(self, step: int) -> None: ...
    def metrics(self, line: Mapping[str, Any]) -> None: ...
    def stop(self) -> None: ...


@contextmanager
def showing(progress: bool | Progress | None, words: str) -> Iterator[Progress | None]:
    """Yield the function that takes progress: of a bar or lines for True, the one that was given, or None."""
    if progress is True and not _is_inside.get():
        with progress_bar(words) as tell:
            yield tell
    else:
        with _alone():
            yield progress if callable(progress) else None


def telling(progress: bool | Progress | None, announce: Callable[[str], None] | None = None) -> Tell:
    """Return what takes notes: `announce` if there is one; else warnings are printed where progress is shown."""
    if announce is not None:
        return announce
    if progress is True and not _is_inside.get():
        return lambda line: say(line) if kind_of(line) in WARNINGS else None
    return lambda line: None


@contextmanager
def following(progress: bool, listener: Listener | None) -> Iterator[Listener]:
    """Yield the listener of a run: the one that was given, else a bar or lines if progress is to be shown."""
    if listener is None and progress and not _is_inside.get():
        with follow() as follower:
            yield follower
    else:
        with _alone():
            yield listener or Silent()


@contextmanager
def _alone() -> Iterator[None]:
    """Let nothing inside show progress of its own."""
    before = _is_inside.set(True)
    try:
        yield
    finally:
        _is_inside.reset(before)


def screen() -> tuple[Any, bool]:
    """Return standard error for rich, and whether it can draw a bar there; in a notebook it needs ipywidgets."""
    from rich.console import Console

    console = Console(stderr=True)
    return console, console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)


@contextmanager
def progress_bar(words: str) -> Iterator[Progress]:
    """Yield a function that takes how many are done, and of how many; the bar disappears at the end.

    Work that is done at the first call shows none.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console, can_draw = screen()
    with _alone():
        if not can_draw:
            yield progress_lines(words)
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        bar = Progress(*columns, console=console, transient=True)
        task = bar.add_task(words, total=None)

        def tell(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)
            if done < total:
                bar.start()

        try:
            yield tell
        finally:
            bar.stop()


def progress_lines(words: str) -> Progress:
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
            say(f"{words}: {done:,} of {total:,}{left}")

    return tell


@contextmanager
def follow(note: Callable[[str], None] = say, verbose: bool = False) -> Iterator[Listener]:
    """Yield a listener that shows a training run here; `note` prints its lines where there is no bar.

    verbose: show all notes, details too.
    """
    console, can_draw = screen()
    follower: Lines | Bar = Bar(console, verbose) if can_draw else Lines(note, verbose)
    with _alone():
        try:
            yield follower
        finally:
            follower.stop()


class Lines:
    """One line for each line of metrics."""

    def __init__(self, note: Callable[[str], None] = say, verbose: bool = False) -> None:
        self.total, self.say, self.verbose = 0, note, verbose

    def note(self, line: str) -> None:
        if is_shown(line, self.verbose):
            self.say(line)

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

    def __init__(self, console: Any, verbose: bool = False) -> None:
        from rich.progress import BarColumn, Progress, ProgressColumn, Task
        from rich.table import Column
        from rich.text import Text

        class Numbers(ProgressColumn):
            """Steps, time left, and as many of the newest numbers as a terminal has room for."""

            def render(self, task: Task) -> Text:
                left = "-:--" if task.time_remaining is None else clock(task.time_remaining)
                words = f"{task.completed:,.0f}/{task.total or 0:,.0f}, {left} left"
                for number in task.fields["numbers"]:
                    if BAR + len(f" {words}, {number}") > console.width:
                        break
                    words += f", {number}"
                return Text(words)

        super().__init__(self._print_above, verbose)
        columns = (BarColumn(BAR), Numbers(Column(no_wrap=True)))
        self.bar = Progress(*columns, console=console, transient=True)
        self.task: Any = None

    def _print_above(self, line: str) -> None:
        self.bar.console.print(
            visible(worded(line)), markup=False, highlight=False, emoji=False, soft_wrap=True
        )

    def start(self, step: int, total: int) -> None:
        super().start(step, total)
        self.bar.start()
        self.task = self.bar.add_task("", total=total, completed=step, numbers=())

    def stepped(self, step: int) -> None:
        self.bar.update(self.task, completed=step)

    def metrics(self, line: Mapping[str, Any]) -> None:
        if "learning_rate" in line:
            self.bar.update(self.task, numbers=metric_words(line))
        else:
            self.note(f"step {line['step']:,}: {metrics_text(line)}")

    def stop(self) -> None:
        self.bar.stop()


def metrics_text(line: Mapping[str, Any]) -> str:
    """Return a line of metrics as people read it."""
    return ", ".join(metric_words(line))


def metric_words(line: Mapping[str, Any]) -> list[str]:
    """Return each metric of a line as people read it."""
    words = (_metric_text(name, value) for name, value in line.items() if value is not None)
    return [word for word in words if word]


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
