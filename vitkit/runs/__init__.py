"""Run folders: `folder` is how a command fills one, resumes and starts over; `reading` is what they hold."""

from vitkit.runs.folder import (
    CONFIG,
    FREE,
    RECORD,
    ROOT,
    RunFolder,
    named_path,
    read_config,
    read_record,
    run_name,
)
from vitkit.runs.reading import Evaluated, cut_metrics, list_runs, read_metrics, speed

__all__ = [
    "CONFIG",
    "FREE",
    "RECORD",
    "ROOT",
    "Evaluated",
    "RunFolder",
    "cut_metrics",
    "list_runs",
    "named_path",
    "read_config",
    "read_metrics",
    "read_record",
    "run_name",
    "speed",
]
