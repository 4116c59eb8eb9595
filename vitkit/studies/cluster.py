"""`vit study run --on ray`: workers on the machines of a Ray cluster, each an actor that keeps a worker process as this machine does."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import Any, Self

from vitkit.errors import InputError
from vitkit.studies.jobs import Job
from vitkit.studies.workers import ENDS, LocalWorker, Place, Report, Reports, Worker, threads

ENDED = "ended"
"Kind of an actor's report that its worker process has ended."
REACHED = 10.0
"Seconds in which the head of a cluster answers."
STORE = 100_000_000
"Bytes of shared memory for the objects of a cluster of this machine alone, which has none of ours."


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Yield the module `ray`, connected to a cluster: the one at this address, else of this machine, else a new one."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        import ray
    except ImportError:
        raise InputError('--on ray needs ray: pip install "vitkit[cluster]"') from None
    if ray.is_initialized():
        yield ray
        return
    old = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        _connect(ray, address)
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in old.items():
                signal.signal(number, handler)
    try:
        yield ray
    finally:
        ray.shutdown()


def _connect(ray: Any, address: str | None) -> None:
    options: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    if address is not None:
        host, _, port = address.rpartition(":")
        if not (host and port.isdecimal() and "/" not in host):
            raise InputError(f"--on is 'ray={address}'; expected HOST:PORT, such as ray=10.0.0.1:6379")
        try:  # Ray itself would try for many minutes
            socket.create_connection((host.strip("[]"), int(port)), REACHED).close()
        except OSError as error:
            words = error.strerror or error
            raise InputError(f"no Ray cluster answers at {address}: {words}") from None
    try:
        try:
            ray.init(address or "auto", **options)
        except ConnectionError:
            if address is not None:
                raise
            ray.init("local", include_dashboard=False, object_store_memory=STORE, **options)
    except Exception as error:
        words = str(error).strip().split("\n")[0]
        raise InputError(f"no Ray cluster answers at {address or 'this machine'}: {words}") from None


class Cluster:
    """A Ray cluster: as many workers as its machines have room for, now and when machines come and go."""

    tries = 4  # a machine that is lost says nothing about the run

    def __init__(self, ray: Any, device: str, folder: Path) -> None:
        """device: auto is a GPU if the cluster has any. folder: of the study, which all machines share."""
        self.ray = ray
        self.device = device_of(machines(ray), device)
        self.device_name = accelerators(ray) if self.device == "cuda" else self.device
        self.mark = folder.absolute() / f".cluster-{secrets.token_hex(8)}"
        self.workers: list[ClusterWorker] = []

    def divide(self, workers: int) -> None:
        """workers: on each GPU, or on the CPU of the smallest machine."""
        self.per_device = workers
        self.gpus, self.cores = shares(machines(self.ray), self.device, workers)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        gpus = 1 if self.device == "cuda" else 0
        remote = self.ray.remote(num_gpus=gpus, num_cpus=1, max_retries=2)(function)
        found = remote.remote(*arguments)
        try:
            return self.ray.get(found)
        except KeyboardInterrupt:
            self.ray.cancel(found)
            raise

    def start(self, reports: Reports) -> ClusterWorker | None:
        room = sum(
            int(each["GPU"] + 1e-6) * self.per_device if self.gpus else int(each["CPU"] / self.cores + 1e-6)
            for each in machines(self.ray)
        )
        if len(self.workers) >= room:
            return None
        options = {"num_gpus": self.gpus, "num_cpus": self.cores, "max_concurrency": 2}
        actor = self.ray.remote(**options)(RemoteWorker).remote()
        place = Place(threads(self.cores), self.per_device)
        self.workers.append(ClusterWorker(self.ray, actor, str(self.mark), place, reports))
        return self.workers[-1]

    def end(self, worker: Worker) -> None:
        assert isinstance(worker, ClusterWorker)
        worker.close()
        self.workers.remove(worker)

    def __enter__(self) -> Self:
        self.mark.parent.mkdir(parents=True, exist_ok=True)
        self.mark.touch()
        return self

    def __exit__(self, *_: object) -> None:
        self.mark.unlink(missing_ok=True)


def machines(ray: Any) -> list[dict[str, float]]:
    """Return how many cores and GPUs each machine of the cluster has for us."""
    found = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [{name: float(each.get(name, 0)) for name in ("CPU", "GPU")} for each in found]


def accelerators(ray: Any) -> str:
    """Return the names of the cluster's GPUs, as Ray has them."""
    names = {name for name in ray.cluster_resources() if name.startswith("accelerator_type:")}
    return ", ".join(sorted(name.partition(":")[2] for name in names)) or "GPU"


def device_of(found: list[dict[str, float]], device: str) -> str:
    """Return the device of these machines that auto, cpu or cuda stands for."""
    has_gpus = any(each["GPU"] >= 1 for each in found)
    if device not in ("auto", "cpu", "cuda"):
        raise InputError(f"--device is {device!r}; on a Ray cluster, expected auto, cpu or cuda")
    if device == "cuda" and not has_gpus:
        raise InputError("--device is 'cuda', but no machine of the Ray cluster has a GPU")
    return "cuda" if has_gpus and device != "cpu" else "cpu"


def shares(found: list[dict[str, float]], device: str, workers: int) -> tuple[float, float]:
    """Return the share of a GPU and the cores of each worker: everywhere the same, so that results are too."""
    if device == "cuda":
        cores = min(each["CPU"] / each["GPU"] for each in found if each["GPU"] >= 1) / workers
        return 1 / workers, int(cores) if cores >= 1 else round(cores, 3)
    sizes = [each["CPU"] for each in found if each["CPU"] >= 1]
    if not sizes:
        raise InputError("no machine of the Ray cluster has a CPU for its tasks (num_cpus)")
    return 0, max(1, int(min(sizes) / workers))


class RemoteWorker:
    """The actor: a worker process on its machine, whose reports it passes on."""

    def __init__(self) -> None:
        self.reports = Queue[tuple[Worker, Report | None]]()
        self.worker: LocalWorker | None = None

    def begin(self, folder: str, mark: str, environment: dict[str, str], sharing: int) -> str:
        """Start the process in the folder of the command; return what is wrong with this machine, or ''."""
        if not (os.path.isdir(folder) and os.path.exists(mark)):
            place = Path(mark).parent if os.path.isdir(folder) else folder
            return (
                f"{place} isn't the same folder on {os.uname().nodename}: all machines of the cluster need the study's "
                "folder, and the one that the command is started in, on a file system that they share"
            )
        os.chdir(folder)
        self.worker = LocalWorker(Place(environment, sharing), self.reports)
        return ""

    def carry_out(self, job: dict[str, Any], command: list[str]) -> Iterator[Report]:
        """Yield the reports of a run; after the last one of a process that ended, why it did."""
        assert self.worker is not None
        self.worker.send(Job.from_json(job), command)
        while (report := self.reports.get()[1]) is not None:
            if report["kind"] in ENDS:
                self.worker.job = None
                yield {**report, "ends": not self.worker.is_ready}
                return
            yield report
        yield {"kind": ENDED, "message": f"{self.worker.how_it_ended()} on {os.uname().nodename}"}

    def stop(self) -> None:
        if self.worker is not None:
            self.worker.stop()


class ClusterWorker:
    """What the study knows of an actor; a thread puts its reports into a queue."""

    def __init__(self, ray: Any, actor: Any, mark: str, place: Place, reports: Reports) -> None:
        self.ray, self.actor, self.reports = ray, actor, reports
        self.job: str | None = None
        self.is_ready = False
        self.ending = "its worker was lost"
        self.jobs = Queue[tuple[dict[str, Any], list[str]] | None]()
        self.listener = threading.Thread(target=self._listen, args=[mark, place], daemon=True)
        self.listener.start()

    def send(self, job: Job, command: list[str]) -> None:
        self.job = job.name
        self.jobs.put((job.to_json(), command))

    def stop(self) -> None:
        self.actor.stop.remote()

    def how_it_ended(self) -> str:
        return self.ending

    def close(self) -> None:
        self.jobs.put(None)
        self.ray.kill(self.actor)
        self.listener.join()

    def _listen(self, mark: str, place: Place) -> None:
        try:
            environment = dict(place.environment)
            wrong = self.ray.get(self.actor.begin.remote(os.getcwd(), mark, environment, place.sharing))
            if wrong:
                self.reports.put((self, {"kind": "unable", "message": wrong}))
                return
            self.is_ready = True
            while self.is_ready and (work := self.jobs.get()) is not None:
                self._follow(work)
        except self.ray.exceptions.RayError as error:
            words = str(error).strip().rpartition("\n")[2]
            if getattr(error, "actor_init_failed", False):
                message = f"a worker can't start on the cluster: {words}"
                self.reports.put((self, {"kind": "unable", "message": message}))
                return
            if not isinstance(error, self.ray.exceptions.RayActorError):
                self.ending = words
        self.reports.put((self, None))

    def _follow(self, work: tuple[dict[str, Any], list[str]]) -> None:
        """Pass on the reports of a run."""
        for found in self.actor.carry_out.options(num_returns="streaming").remote(*work):
            report = self.ray.get(found)
            self.is_ready = not report.pop("ends", False)
            if report["kind"] == ENDED:
                self.ending, self.is_ready = report["message"], False
                return
            self.reports.put((self, report))
