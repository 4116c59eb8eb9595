"""What `vit study run` starts: carries out runs that it is told on standard input, and reports on standard output.

    python -m vitkit.cli.worker

Each line is one JSON object. The process stops after the current step when it is asked to, or when whoever started it is
gone; it ends after an error that is none of the input, since such an error may leave a GPU unusable.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from pathlib import Path
from queue import Empty, Queue
from typing import Any, TextIO


def main() -> None:
    """Carry out runs until standard input ends."""
    reports = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints must not come among the reports
    jobs = os.fdopen(os.dup(0), encoding="utf-8")
    # A process that is forked closes its standard input, and would wait for ever for the thread that reads from it.
    sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115 (until the process ends)
    lines: Queue[str] = Queue()
    threading.Thread(target=_read, args=[jobs, lines], daemon=True).start()

    def tell(kind: str, **values: Any) -> None:
        try:
            reports.write(json.dumps({"kind": kind, **values}) + "\n")
            reports.flush()
        except BrokenPipeError:
            pass  # whoever started this is gone, and the run stops after this step

    from vitkit.training.stop import listening

    with listening() as stop:
        while not stop and (line := _next(lines, stop)):
            values = json.loads(line)
            sys.argv = values.pop("command")  # which the run records
            if not _carry_out(values, tell):
                return


def _next(lines: Queue[str], stop: object) -> str:
    """Return the next line; an empty one at the end, or after a stop request."""
    while not stop:
        try:
            return lines.get(timeout=0.2)
        except Empty:
            continue
    return ""


def _read(jobs: TextIO, lines: Queue[str]) -> None:
    for line in jobs:
        lines.put(line)
    lines.put("")
    os.kill(os.getpid(), signal.SIGTERM)


def _carry_out(values: dict[str, Any], tell: Any) -> bool:
    """Carry out one run, and say whether this process can go on."""
    from vitkit.errors import InputError
    from vitkit.studies.jobs import Busy, Job, carry_out
    from vitkit.studies.usage import Meter
    from vitkit.transfer.finetune import finetune

    sharing = values.pop("sharing", 1)
    job = Job.from_json(values)
    meter = Meter(job.path, tell, job.device, sharing)
    try:
        try:
            ending = carry_out(job, meter, finetune)
        finally:
            meter.close()
        tell(ending)
    except Busy as error:
        tell("busy", message=str(error))
    except InputError as error:
        tell("failed", message=str(error))
    except Exception as error:
        file = Path(job.path.parent, "failed", f"{job.name}.txt")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(traceback.format_exc(), encoding="utf-8")
        words = str(error).strip().split("\n")[0]
        tell("failed", message=f"{type(error).__name__}: {words}; traceback: {file}", ends=True)
        return False
    return True


if __name__ == "__main__":
    main()
