"""Splits work into parts for the workers of a Ray cluster.

A part is a shard of `quell sweep --shard`: its result depends on it alone. So a part whose worker is lost is run again
on another, and all parts together equal the result of one machine, in the same order.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Optional

from . import _native

PARTS_FOR_EACH_CPU = 16
"""Enough that no CPU waits long for another's last part, and that little is lost with a worker."""

RETRIES = 10
"""A part that has lost this many workers must be killing them."""

CANCELS = 100
"""The most cancellations of a part, once a second."""

INTERRUPTS = 30
"""The first ones only interrupt it. Later ones end its worker."""


def part_of(function: str, asked: dict[str, Any], arguments: tuple[Any, ...], part: str) -> list[Any]:
    """Performs one part on one thread of a worker."""
    return getattr(_native, function)(native(asked), *arguments, part, 1, None, None)


def native(asked: dict[str, Any]) -> dict[str, Any]:
    """Replaces machines by the native ones, which cannot be sent to a worker."""
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
    """Returns the rows of all parts, in the order of one machine. `arguments` gets the number of CPUs; `found` gets each
    row when its part has arrived."""
    try:
        import ray
    except ImportError as missing:
        raise ImportError('on="ray" needs ray: pip install ray, or quell with [ray]') from missing
    ours = not ray.is_initialized()
    if ours:
        ray.init(address=address or os.environ.get("RAY_ADDRESS") or "local", log_to_driver=False)
    elif address is not None:
        raise ValueError(f"address {address}: this process is already connected to a cluster; leave out address")
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
    """Ends parts that are under way. Ray interrupts the Python code that a worker runs at that moment, which may not be
    the part yet, for a long time on a busy host. So the remaining parts are interrupted again for a while. After that,
    the workers of those that still run are ended, to release their CPUs."""
    for told in range(CANCELS):
        for part in parts:
            ray.cancel(part, force=told >= INTERRUPTS)
        if not parts:
            return
        _, parts = ray.wait(parts, num_returns=len(parts), timeout=1)
