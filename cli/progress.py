"""A progress bar on standard error for work that takes longer than a moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

OnProgress = Callable[[str, float], None]


@contextmanager
def progress(title: str) -> Iterator[OnProgress]:
    """A callable that takes what is being done and the fraction that is behind; without a terminal it prints lines."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False, markup=False)
    if not console.is_terminal:
        yield _lines(console)
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    text = TextColumn("{task.description}", markup=False)
    with Progress(text, BarColumn(bar_width=24), TimeElapsedColumn(), TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task(title, total=1.0)
        yield lambda done, fraction: bar.update(task, description=done[:40], completed=fraction)


def _lines(console: Console) -> OnProgress:
    """Prints each new step once, on a line of its own."""
    last = ""

    def tell(done: str, fraction: float) -> None:
        nonlocal last
        if done != last:
            console.print(f"{fraction:4.0%} {done}", soft_wrap=True)
        last = done

    return tell
