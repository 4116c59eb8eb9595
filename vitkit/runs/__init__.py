"""Run folders: `records` is what each kind holds, `folder` how a command fills one, resumes and starts over, `reading` what they say."""

from vitkit.runs.folder import RunFolder, named_path, run_name
from vitkit.runs.reading import Evaluated, cut_metrics, list_runs, read_metrics, speed
from vitkit.runs.records import CONFIG, FREE, RECORD, ROOT, read_config, read_record

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
