"""quell from Python: what TLB shootdowns cost, on the machine in software.

`run` runs one workload on one machine, `sweep` a grid of runs as a table, and `explore` the adversary's search.
`Machine` is a machine with figures that can be changed; `read` reads a recording. All figures equal those of the command
`quell`.

Invalid arguments raise `ValueError`, a failed run `RuntimeError`. While a call works, other threads of Python run. Ctrl-C
raises `KeyboardInterrupt` as soon as the runs under way have ended; no further one begins.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

from . import _cluster, _native

if TYPE_CHECKING:
    import pandas
    import polars

__version__: str = _native.__version__

__all__ = ["Machine", "explore", "held_out", "machines", "read", "reproduce", "run", "sweep", "workloads"]

Value = Union[str, int, float, bool]
"""Formats a value for the command: ``"64M"``, ``512``; ``True`` is ``yes``."""

Progress = Union[bool, Callable[[int, int], object]]
"""``True`` shows a bar (with tqdm); a function gets the numbers of finished and of all runs, or cases of a search."""

Found = Optional[Callable[[dict[str, Any]], object]]
"""Gets each result as soon as it is available, in any order."""


class Machine:
    """A machine: a built-in one, or a machine file by its path.

    Raises `ValueError` if there is none, or if its file is invalid; the message lists every mistake.
    """

    def __init__(self, name: Union[str, os.PathLike[str]] = "haswell-server") -> None:
        self._native = _native.Machine(os.fspath(name))

    @property
    def name(self) -> str:
        """Its short name."""
        return self._native.name

    @property
    def title(self) -> str:
        """A description."""
        return self._native.title

    def set(self, key: str, value: Value) -> Machine:
        """Sets a figure, for example ``machine.set("interrupt.send", "900ns")``, and returns the machine.

        Raises `ValueError` if there is no such figure, or it cannot have that value; the machine is unchanged then.
        """
        self._native.set_text(f"{key}={_text(value)}")
        return self

    @classmethod
    def from_toml(cls, text: str) -> Machine:
        """Creates a machine from a machine file's text, which may be based on a built-in machine."""
        machine = cls.__new__(cls)
        machine._native = _native.Machine.from_toml("text", text)
        return machine

    def to_toml(self) -> str:
        """Returns the text of a machine file with all figures and their sources."""
        return self._native.to_toml()

    def __reduce__(self) -> tuple[Any, ...]:
        return Machine.from_toml, (self.to_toml(),)

    def copy(self) -> Machine:
        """Returns a copy."""
        other = Machine.__new__(Machine)
        other._native = self._native.copy()
        return other

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Machine) and self._native == other._native

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<quell.Machine {self.name}: {self.title}>"


AnyMachine = Union[str, "os.PathLike[str]", Machine]

# The most CPUs that a machine has, and the largest number that the native part takes.
_MOST_CPUS = 1024
_MOST = 2**64 - 1


def _text(value: Value) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _machine(machine: AnyMachine) -> Machine:
    return machine if isinstance(machine, Machine) else Machine(machine)


def _listed(values: Any) -> list[Any]:
    """Makes a list of one value or several."""
    if isinstance(values, (str, Machine, os.PathLike)) or not isinstance(values, Iterable):
        return [values]
    return list(values)


def _within(name: str, value: Optional[int], least: int, most: int) -> Optional[int]:
    """Checks a number for the native part; ``None`` is allowed."""
    if value is not None and (isinstance(value, bool) or not least <= value <= most):
        raise ValueError(f"{name} {value}: expected {least} to {most}")
    return value


def _axes(values: Optional[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    return [(name, [_text(value) for value in _listed(several)]) for name, several in (values or {}).items()]


class _Bar:
    """Reports a call's progress to a function or to a bar of tqdm."""

    def __init__(self, progress: Progress) -> None:
        self.bar: Any = None
        self.tell: Optional[Callable[[int, int], object]] = None
        if callable(progress):
            self.tell = progress
        elif progress:
            try:
                from tqdm.auto import tqdm
            except ImportError as missing:
                raise ImportError("progress=True needs tqdm: pip install tqdm, or give a function") from missing
            self.bar = tqdm(unit="run")
            self.tell = self._show

    def _show(self, done: int, of: int) -> None:
        self.bar.total = of
        self.bar.update(done - self.bar.n)

    def __enter__(self) -> Optional[Callable[[int, int], object]]:
        return self.tell

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.close()


def run(
    workload: Union[str, os.PathLike[str]],
    *,
    machine: AnyMachine = "haswell-server",
    policy: str = "all",
    cpus: Optional[int] = None,
    seed: int = 1,
    seeds: int = 3,
    params: Optional[Mapping[str, Value]] = None,
    set: Optional[Mapping[str, Value]] = None,
    lines: bool = False,
    progress: Progress = False,
) -> dict[str, Any]:
    """Runs a workload, built in or a file. Returns the object that ``quell run --json`` prints.

    `params` are parameters of the workload, `set` are figures of the machine. ``values`` has the workload's figure for
    `seeds` seeds, from `seed` on; all counts are those of the first. A violation of the contract raises no exception:
    check ``violations``. With `lines` there are also the cache ``lines`` that moved, as in ``quell run --lines``.
    """
    asked = _machine(machine)
    if set:
        asked = asked.copy()
        for key, value in set.items():
            asked.set(key, value)
    pairs = [f"{name}={_text(value)}" for name, value in (params or {}).items()]
    _within("cpus", cpus, 1, _MOST_CPUS)
    _within("seed", seed, 0, _MOST)
    _within("seeds", seeds, 1, 1000)
    with _Bar(progress) as tell:
        text = _native.run_json(
            os.fspath(workload), asked._native, policy, cpus, seed, seeds, pairs, lines, tell
        )
    return json.loads(text)


def sweep(
    workload: Union[str, os.PathLike[str]],
    *,
    machine: Union[AnyMachine, Iterable[AnyMachine]] = "haswell-server",
    policy: Union[str, Iterable[str]] = ("baseline", "all"),
    cpus: Union[None, int, Iterable[int]] = None,
    seeds: int = 5,
    params: Optional[Mapping[str, Union[Value, Iterable[Value]]]] = None,
    set: Optional[Mapping[str, Union[Value, Iterable[Value]]]] = None,
    progress: Progress = False,
    found: Found = None,
    frame: str = "pandas",
    on: Optional[str] = None,
    address: Optional[str] = None,
) -> Union[pandas.DataFrame, polars.DataFrame, list[dict[str, Any]]]:
    """Runs all combinations of a grid on all cores. Returns a row for each run, in the order of ``quell sweep``.

    `frame` is ``"pandas"``, ``"polars"``, or ``"records"``: a list of the objects in the lines of ``quell sweep``'s
    results. In a frame, a parameter has a column of its name, or ``param.`` and its name if runs have another column of
    that name (``seed``). Its values are numbers, in bytes or nanoseconds, unless one of them is no number. A count has a
    column such as ``engine.flushes``, 0 if nothing was counted. The times of a call have columns such as
    ``latency.discard.p99_ns``. Missing values are empty. A failed run has an ``error`` and no ``value``.

    With ``on="ray"`` the runs use the workers of a Ray cluster: the one that this process is connected to
    (``ray.init``), the one at `address` or ``RAY_ADDRESS``, or otherwise this host. The rows are the same.
    """
    if frame not in ("pandas", "polars", "records"):
        raise ValueError(f"frame {frame}: expected pandas, polars or records")
    library: Any = None
    if frame != "records":
        # Before the runs: they are not lost for want of a library.
        try:
            library = __import__(frame)
        except ImportError as missing:
            raise ImportError(f"frame={frame!r} needs {frame}: pip install {frame}, or use frame='records'") from missing
    numbers = [] if cpus is None else _listed(cpus)
    if cpus is not None and not numbers:
        raise ValueError("cpus: the list is empty")
    for number in numbers:
        _within("cpus", number, 1, _MOST_CPUS)
    _within("seeds", seeds, 1, _MOST)
    asked = {
        "workload": os.fspath(workload),
        "text": None,
        "machines": [_machine(one) for one in _listed(machine)],
        "policies": _listed(policy),
        "cpus": numbers,
        "seeds": seeds,
        "axes": _axes(params),
        "figures": _axes(set),
    }
    if _on_ray(on, address):
        asked["text"] = _native.file_text(asked["workload"])
    lines = _parts("sweep", asked, lambda _: (), on, address, progress, found, json.loads)
    records = [json.loads(line) for line in lines]
    if library is None:
        return records
    return library.DataFrame(_columns(records))


def explore(
    names: Union[str, os.PathLike[str], Iterable[Union[str, os.PathLike[str]]]] = (),
    *,
    machine: Union[str, Iterable[str]] = (),
    policy: Union[str, Iterable[str]] = (),
    schedules: Optional[int] = None,
    minutes: Optional[float] = None,
    exhaustive: bool = False,
    most: int = 5_000_000,
    seed: int = 1,
    depth: int = 4,
    params: Optional[Mapping[str, Value]] = None,
    cpus: Optional[int] = None,
    progress: Progress = False,
    found: Found = None,
    on: Optional[str] = None,
    address: Optional[str] = None,
) -> dict[str, Any]:
    """Searches for interleavings that break the contract. Returns the object that ``quell explore --json`` prints.

    `names` are scenarios, workloads, or files with workloads or programs. The default is all scenarios, on every machine
    of the adversary and under the usual policies. A case has 1000 random schedules, or `schedules` of them, or all cases
    share `minutes`; with `exhaustive` it has every schedule, up to `most`. A violation raises no exception: a row of
    ``scenarios`` with ``violations`` has the ``violation`` and its ``replay`` code. `found` gets every row.

    `on` and `address` are those of `sweep`; one worker searches a case.
    """
    if (schedules is not None) + (minutes is not None) + exhaustive > 1:
        raise ValueError("schedules, minutes and exhaustive: expected one of them")
    # No search takes longer than a year.
    for name, amount, limit in (("schedules", schedules, 10**15), ("minutes", minutes, 525_600), ("most", most, 10**15)):
        if amount is not None and not 0 < amount <= limit:
            raise ValueError(f"{name} {amount}: expected a number above 0, at most {limit}")
    _within("cpus", cpus, 1, _MOST_CPUS)
    _within("seed", seed, 0, _MOST)
    _within("depth", depth, 1, 9)

    def arguments(cpus: int) -> tuple[Any, ...]:
        if minutes is not None:
            # The native part shares them among its own threads: on a cluster one of a worker.
            searched = ("minutes", minutes * cpus)
        elif exhaustive:
            searched = ("exhaustive", most)
        else:
            searched = ("schedules", 1000 if schedules is None else schedules)
        return searched, seed, depth

    asked = {
        "names": [os.fspath(name) for name in _listed(names)],
        "files": {},
        "machines": _listed(machine),
        "policies": _listed(policy),
        "parameters": [f"{name}={_text(value)}" for name, value in (params or {}).items()],
        "cpus": cpus,
    }
    if _on_ray(on, address):
        texts = {name: _native.file_text(name) for name in asked["names"]}
        asked["files"] = {name: text for name, text in texts.items() if text is not None}
    began = time.monotonic()
    rows = _parts("explore", asked, arguments, on, address, progress, found, lambda row: json.loads(_row_text(row)))
    elapsed = time.monotonic() - began
    searched = sum(count for _, count, _ in rows)
    spent = [time for *_, time in rows if time is not None]
    known = len(spent) == len(rows) and sum(spent) > 0
    return {
        "scenarios": [json.loads(text) for text, *_ in rows],
        "schedules_per_second": float(round(searched / elapsed)),
        "schedules_per_cpu_second": float(round(searched / sum(spent))) if known else None,
    }


def _row_text(row: Any) -> str:
    """Returns the part of a row for callbacks: on this host its text alone."""
    return row if isinstance(row, str) else row[0]


def _on_ray(on: Optional[str], address: Optional[str]) -> bool:
    if on not in (None, "ray"):
        raise ValueError(f'on {on}: expected "ray", or nothing for this host')
    if on is None and address is not None:
        raise ValueError(f'address {address}: only with on="ray"')
    return on == "ray"


def _parts(
    call: str,
    asked: dict[str, Any],
    arguments: Callable[[int], tuple[Any, ...]],
    on: Optional[str],
    address: Optional[str],
    progress: Progress,
    found: Found,
    read: Callable[[Any], dict[str, Any]],
) -> list[Any]:
    """Returns the results of a call in order: here as a whole, on a cluster in parts."""

    def each(row: Any) -> None:
        if found is not None:
            found(read(row))

    with _Bar(progress) as tell:
        if on == "ray":
            # Checked before anything is sent, to report mistakes in a sentence.
            size = getattr(_native, f"{call}_size")(_cluster.native(asked))
            return _cluster.work(f"{call}_json", asked, arguments, size, address, tell, each)
        whole = getattr(_native, f"{call}_json")
        return whole(_cluster.native(asked), *arguments(1), "1/1", None, tell, each if found else None)


def reproduce(only: Optional[str] = None, *, progress: Progress = False) -> list[dict[str, Any]]:
    """Returns the ``rows`` of ``quell reproduce --json``, published figures beside the model's: all, or those of one
    mechanism (``"S2"``) or one workload (``"swap"``)."""
    with _Bar(progress) as tell:
        return [json.loads(row) for row in _native.reproduce_json(only, tell)]


def held_out(
    *tables: Union[str, os.PathLike[str]],
    calibrate: bool = False,
    progress: Progress = False,
) -> list[dict[str, Any]]:
    """Returns the rows of ``quell held-out --json``: published tables that calibrated nothing, beside predictions.

    `tables` are names of built-in tables, or folders with a ``published.toml``; by default all built-in ones. With
    `calibrate`, rows also have predictions after a fit to the figures from before the change.
    """
    names = [os.fspath(table) for table in tables]
    with _Bar(progress) as tell:
        return [json.loads(row) for row in _native.held_out_json(names, calibrate, tell)]


def read(path: Union[str, os.PathLike[str]], *, program: Optional[str] = None) -> dict[str, Any]:
    """Reads a recording. Returns the object that ``quell record --import PATH --json`` prints, with the sites of `program`
    alone if that is given.

    A recording is a file of ``quell record -o``, or the output of ``perf script`` or ``trace-cmd report``.
    """
    return json.loads(_native.read_json(os.fspath(path), program))


_COUNTS = {"engine": "engine.", "machine_counts": "machine."}


def _columns(records: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Returns the columns of a table of records."""
    columns: dict[str, list[Any]] = {}
    for name in records[0]:
        if name == "parameters":
            for key in records[0][name]:
                column = f"param.{key}" if key in records[0] else key
                columns[column] = _numbers([record[name][key] for record in records])
        elif name == "latencies":
            columns.update(_latencies([record[name] for record in records]))
        elif name in _COUNTS:
            for key in sorted({key for record in records for key in record[name]}):
                columns[_COUNTS[name] + key] = [record[name].get(key, 0) for record in records]
        else:
            columns[name] = [record[name] for record in records]
    return columns


def _numbers(texts: list[str]) -> list[Any]:
    """Returns the values as numbers, in bytes or nanoseconds if they have a unit, or as they are if some is no number."""

    def number(text: str) -> Union[int, float]:
        whole = _native.amount(text)
        return float(text) if whole is None else whole

    try:
        return [number(text) for text in texts]
    except ValueError:
        return texts


def _latencies(runs: list[list[dict[str, Any]]]) -> dict[str, list[Any]]:
    """Returns the columns of each kind of call; a run without that call has no duration."""
    by_call = [{latency["call"]: latency for latency in run} for run in runs]
    columns: dict[str, list[Any]] = {}
    for call in sorted({call for run in by_call for call in run}):
        columns[f"latency.{call}.count"] = [run[call]["count"] if call in run else 0 for run in by_call]
        for figure in ("median_ns", "p99_ns", "worst_ns"):
            columns[f"latency.{call}.{figure}"] = [run[call][figure] if call in run else None for run in by_call]
    return columns


def machines() -> list[str]:
    """Returns the names of the built-in machines."""
    return _native.machine_names()


def workloads() -> list[str]:
    """Returns the names of the built-in workloads."""
    return _native.workload_names()
