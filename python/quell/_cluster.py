"""Work on a cluster of Ray, cut into parts of which each may be run anywhere, and again.

A part is one of those that `quell sweep --shard` runs: what comes out of it depends on it alone. So a part whose worker
is lost is run once more on another, and all parts together are what one machine gives, in the same order.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Optional

from . import _native

PARTS_FOR_EACH_CPU = 16
"""So many that no CPU waits long for another's last one, and that little is lost with a worker."""

RETRIES = 10
"""A part that has lost so many workers is what kills them."""

CANCELS = 100
"""How often a part that goes on is cancelled, once a second."""

INTERRUPTS = 30
"""How often it is only interrupted. After that its worker is ended."""


def part_of(function: str, asked: dict[str, Any], arguments: tuple[Any, ...], part: str) -> list[Any]:
    """One part, on one thread: what a worker does."""
    return getattr(_native, function)(native(asked), *arguments, part, 1, None, None)


def native(asked: dict[str, Any]) -> dict[str, Any]:
    """The same with machines as the native part has them; they do not travel."""
    return {**asked, "machines": [getattr(machine, "_native", machine) for machine in asked["machines"]]}


def work(
    function: str,
    asked: dict[str, Any],
    arguments: Callable[[int], tuple[Any, ...]],
    size: int,
    address: Optional[str],
    tell: Optional[Callable[[int, int], object]],
    found: Callable[[Any], object],
) -> list[Any]:
    """The rows of all parts, in the order of one machine. `arguments` is told how many CPUs there are; `found` is told
    of each row when its part has arrived."""
    try:
        import ray
    except ImportError as missing:
        raise ImportError('on="ray" needs it: pip install ray, or quell with [ray]') from missing
    ours = not ray.is_initialized()
    if ours:
        ray.init(address=address or os.environ.get("RAY_ADDRESS") or "local", log_to_driver=False)
    elif address is not None:
        raise ValueError(f"address {address}: this process is connected to a cluster already; leave address out")
    waiting: dict[Any, int] = {}
    try:
        cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))
        of = min(size, PARTS_FOR_EACH_CPU * cpus)
        task = ray.remote(num_cpus=1, max_retries=RETRIES)(part_of)
        # Sent once, not with each part.
        sent, given = ray.put(asked), arguments(cpus)
        for part in range(of):
            waiting[task.remote(function, sent, given, f"{part + 1}/{of}")] = part
        rows: list[Any] = [None] * size
        done = 0
        while waiting:
            ready, _ = ray.wait(list(waiting))
            part, arrived = waiting[ready[0]], ray.get(ready[0])
            del waiting[ready[0]]
            rows[part::of] = arrived
            for row in arrived:
                found(row)
            done += len(arrived)
            if tell is not None:
                tell(done, size)
        return rows
    finally:
        end(ray, list(waiting))
        if ours:
            ray.shutdown()


def end(ray: Any, parts: list[Any]) -> None:
    """Ends parts that are under way. Ray interrupts the Python that a worker runs at that moment, which need not be in
    the part yet, and on a busy host is not for a long time: so the parts that go on are told again, for a while. One that
    goes on after that would keep its CPU from all others for good: its worker is ended."""
    for told in range(CANCELS):
        for part in parts:
            ray.cancel(part, force=told >= INTERRUPTS)
        if not parts:
            return
        _, parts = ray.wait(parts, num_returns=len(parts), timeout=1)
