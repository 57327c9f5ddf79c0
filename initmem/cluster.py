"""A Dask cluster as the executor of a sweep: the same runs, on workers elsewhere, with every epoch reported."""

import contextlib
import gc
import sys
from collections.abc import Iterator
from concurrent.futures import Executor
from pathlib import Path

from initmem.config import InitmemError

CONNECT_SECONDS = 5  # to find the scheduler, at the start and again when it is lost
TOPIC = "initmem-epoch"


@contextlib.contextmanager
def dask(address: str, threads: int | None = None) -> Iterator[tuple[Executor, int]]:
    """An executor on the scheduler at `address`, and how many tasks its workers take at once.

    Workers that declare a resource `GPU` give one to each task; those that declare `threads` give as many as a task uses.
    Raises InitmemError if distributed is not installed, no scheduler answers, or it has no workers.
    """
    try:
        from distributed import Client
    except ImportError:
        raise InitmemError("Dask is not installed here: install it with `pip install 'initmem[cluster]'`") from None
    client = None
    with contextlib.suppress(OSError, ValueError):  # nobody there, or no address
        client = Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
    if client is None:
        gc.collect()  # what is left of it closes now; at some later moment it could do so while another starts, and block both
        raise InitmemError(
            f"no Dask scheduler answers at {address!r}: give the address that it prints when it starts, such as tcp://HOST:8786"
        )
    with client:
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        if not workers:
            raise InitmemError(f"the scheduler at {address} has no workers yet: start one with `dask worker {address}`")
        declared = {name for worker in workers for name in worker["resources"]}
        needs = {"GPU": 1} if "GPU" in declared else {"threads": threads or 1} if "threads" in declared else {}
        at_once = sum(min(w["nthreads"], *(int(w["resources"].get(n, 0) // k) for n, k in needs.items()), 10**6) for w in workers)
        if not at_once:
            raise InitmemError(f"no worker of {address} has {threads} threads for a task: lower --threads, or raise its resources")
        client.subscribe_topic(TOPIC, lambda event: add_mark(*event[1]))
        yield client.get_executor(retries=1, resources=needs), at_once


def add_mark(mark: str, done: int) -> None:
    """Say how many epochs are done: a line in the file `mark` of the process that sweeps, which a Dask worker asks to write it."""
    if distributed := sys.modules.get("distributed"):
        with contextlib.suppress(ValueError):  # not on a worker
            return distributed.get_worker().log_event(TOPIC, (mark, done))
    if Path(mark).parent.exists():
        with open(mark, "a", encoding="ascii") as file:
            file.write(f"{done}\n")
