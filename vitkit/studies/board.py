"""What `vit study run` shows: each run that ends as a line, and below, on a terminal, those at work and the time left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from vitkit.figures.numbers import clock, percent
from vitkit.notes import Note, say, visible, worded
from vitkit.progress import screen
from vitkit.studies.records import RunState

LINE_EVERY = 30.0
"Seconds from one line to the next where there is no terminal."
MOST_SHOWN = 12
"Runs at work that a terminal shows."


@dataclass
class AtWork:
    """A run at work: where it is, and how much of its cost is spent."""

    name: str
    words: str = "starting"
    share: float = 0.0


class Board:
    """Counts what is done, and estimates when all will be."""

    def __init__(self, costs: dict[str, float], done: set[str], print_line: Callable[[str], None]) -> None:
        """costs: of each run, in any unit. done: those that were finished before."""
        self.costs, self.print_line = costs, print_line
        self.done, self.failed, self.elsewhere = set(done), set[str](), set[str]()
        self.at_work: dict[str, AtWork] = {}
        self.began = self.last = time.monotonic()
        self.spent = 0.0
        "Cost of what ended since the start; a run that resumes counts from where it stood."
        self._from: dict[str, float] = {}
        self._warned: set[str] = set()

    def start(self, name: str) -> None:
        self.elsewhere.discard(name)
        self.at_work[name] = AtWork(name)

    def hear(self, name: str, kind: str, values: dict[str, Any]) -> None:
        """Take what a worker reports of a run."""
        run = self.at_work[name]
        if kind == "step":
            run.words = f"step {values['step']:,} / {values['of']:,}"
            run.share = values["step"] / max(1, values["of"])
            self._from.setdefault(name, run.share)
        elif kind == "measuring":
            part = f", {values['done']:,} / {values['of']:,}" if "of" in values else ""
            run.words = f"measuring {values['name']}{part}"
        elif kind == "warning" and values["text"] not in self._warned:
            self._warned.add(values["text"])
            self.print_line(Note(f"{name}: {values['text']}", "warning"))

    def end(self, name: str, state: RunState | None, message: str = "") -> None:
        """Say how a run ended: with its results, or with the message of a failure."""
        run = self.at_work.pop(name)
        begun = self._from.pop(name, 0.0)
        if state is None:
            self.failed.add(name)
            self.spent += self.costs[name] * max(0.0, run.share - begun)
            self.print_line(f"{name}: failed: {message}")
            return
        self.done.add(name)
        self.spent += self.costs[name] * (1 - begun)
        found = ", ".join(f"{one.name} {percent(one.accuracy)}" for one in state.measured)
        if not found and state.best is not None:
            found = f"{state.best.metric} {percent(state.best.value)}"
        self.print_line(f"{name}: done{': ' if found else ''}{found} ({self.summary()})")

    def give_back(self, name: str, is_elsewhere: bool = False) -> None:
        """Take a run off the board that another process works on, or that was stopped."""
        run = self.at_work.pop(name)
        self.spent += self.costs[name] * max(0.0, run.share - self._from.pop(name, 0.0))
        if is_elsewhere:
            self.elsewhere.add(name)

    @property
    def left(self) -> float | None:
        """Seconds until all will be done, at the pace so far; None before there is one."""
        at_work = sum(
            self.costs[run.name] * max(0.0, run.share - self._from.get(run.name, run.share))
            for run in self.at_work.values()
        )
        spent = self.spent + at_work
        rest = sum(
            cost * (1 - (self.at_work[name].share if name in self.at_work else 0.0))
            for name, cost in self.costs.items()
            if name not in self.done | self.failed
        )
        return rest * (time.monotonic() - self.began) / spent if spent else None

    def summary(self) -> str:
        """Return how many runs are where, and the time left."""
        waiting = len(self.costs) - len(self.done | self.failed | self.elsewhere | self.at_work.keys())
        counts = {"at work": len(self.at_work), "in other processes": len(self.elsewhere)}
        counts |= {"failed": len(self.failed), "waiting": waiting}
        words = [f"{len(self.done):,} of {len(self.costs):,} done"]
        words += [f"{count:,} {what}" for what, count in counts.items() if count]
        if (left := self.left) and len(self.done | self.failed) < len(self.costs):
            words.append(f"{clock(left)} left")
        return ", ".join(words)

    def tick(self) -> None:
        """Print a line every now and then."""
        if (now := time.monotonic()) - self.last >= LINE_EVERY:
            self.last = now
            first = "; ".join(f"{run.name}: {run.words}" for run in list(self.at_work.values())[:3])
            self.print_line(Note(f"{self.summary()}{'; ' if first else ''}{first}", "progress"))


@contextmanager
def showing_board(
    costs: dict[str, float], done: set[str], progress: bool, note: Callable[[str], None] = say
) -> Iterator[Board]:
    """Yield a board that is shown here: live on a terminal, else line by line, or not at all."""
    console, can_draw = screen()
    if not progress or not can_draw:
        board = Board(costs, done, note if progress else lambda line: None)
        yield board
        return
    from rich.live import Live

    def above(line: str) -> None:
        console.print(visible(worded(line)), markup=False, highlight=False, emoji=False, soft_wrap=True)

    board = Board(costs, done, above)
    board.last = float("inf")  # the table says it
    with Live(get_renderable=lambda: drawn(board), console=console, refresh_per_second=2, transient=True):
        yield board


def drawn(board: Board) -> Any:
    """Return the runs at work as a table, for a terminal."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 1))
    for run in list(board.at_work.values())[:MOST_SHOWN]:
        bar = ProgressBar(total=1.0, completed=run.share, width=20)
        table.add_row(Text(run.name, overflow="fold"), bar, Text(run.words))
    whole = Table.grid()
    whole.add_row(table)
    whole.add_row(Text(board.summary()))
    return whole
