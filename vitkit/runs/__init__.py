"""Run folders: `records` lists the files of each kind, `folder` fills, resumes and starts over, `reading` reads results."""

from vitkit.runs.folder import FREE, RunFolder, accepts_data, binding, data_facts, named_path, run_name
from vitkit.runs.reading import cut_metrics, list_runs, read_metrics, speed
from vitkit.runs.records import CONFIG, RECORD, ROOT, Evaluated, KeptModel, read_config, read_record

__all__ = [
    "CONFIG",
    "FREE",
    "RECORD",
    "ROOT",
    "Evaluated",
    "KeptModel",
    "RunFolder",
    "accepts_data",
    "binding",
    "cut_metrics",
    "data_facts",
    "list_runs",
    "named_path",
    "read_config",
    "read_metrics",
    "read_record",
    "run_name",
    "speed",
]
