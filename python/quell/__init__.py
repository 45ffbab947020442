"""quell from Python: what TLB shootdowns cost, on the machine in software.

`run` is one workload on one machine, `sweep` a grid of runs as a table, `Machine` a machine whose figures can be
changed. They give what the command `quell` gives, figure by figure.

What is asked for wrongly raises `ValueError`, what goes wrong in a run `RuntimeError`. While a call works, other threads
of Python run. Ctrl-C raises `KeyboardInterrupt` as soon as the runs under way have ended; no further one begins.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

from . import _native

if TYPE_CHECKING:
    import pandas
    import polars

__all__ = ["Machine", "machines", "run", "sweep", "workloads"]

Value = Union[str, int, float, bool]
"""A value as the command reads it: ``"64M"``, ``512``; ``True`` is ``yes``."""

Progress = Union[bool, Callable[[int, int], object]]
"""``True`` shows a bar (with tqdm); a function is told how many runs are done, and of how many."""


class Machine:
    """A machine: a built-in one, or a machine file by its path.

    Raises `ValueError` if there is none, or its file is wrong, with every mistake.
    """

    def __init__(self, name: Union[str, os.PathLike[str]] = "haswell-server") -> None:
        self._native = _native.Machine(os.fspath(name))

    @property
    def name(self) -> str:
        """Its short name."""
        return self._native.name

    @property
    def title(self) -> str:
        """It, in words."""
        return self._native.title

    def set(self, key: str, value: Value) -> Machine:
        """Sets a figure, as in ``machine.set("interrupt.send", "900ns")``; gives the machine back.

        Raises `ValueError` if there is no such figure or it cannot have that value; the machine is as it was then.
        """
        self._native.set_text(f"{key}={_text(value)}")
        return self

    def copy(self) -> Machine:
        """Another one with the same figures."""
        other = Machine.__new__(Machine)
        other._native = self._native.copy()
        return other

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Machine) and self._native == other._native

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<quell.Machine {self.name}: {self.title}>"


AnyMachine = Union[str, "os.PathLike[str]", Machine]


def _text(value: Value) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _machine(machine: AnyMachine) -> Machine:
    return machine if isinstance(machine, Machine) else Machine(machine)


def _listed(values: Any) -> list[Any]:
    """A list of what is one value or several."""
    if isinstance(values, (str, Machine, os.PathLike)) or not isinstance(values, Iterable):
        return [values]
    return list(values)


def _axes(values: Optional[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    return [(name, [_text(value) for value in _listed(several)]) for name, several in (values or {}).items()]


class _Bar:
    """Tells a function, or a bar of tqdm, how far a call is."""

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
    progress: Progress = False,
) -> dict[str, Any]:
    """Runs a workload, built in or a file: the object that ``quell run --json`` prints.

    `params` are the workload's, `set` are figures of the machine. The figure is given with `seeds` seeds, from `seed`
    on (``values``); all counts are those of the first. A breach of the contract is no exception: look at
    ``violations``.
    """
    asked = _machine(machine)
    if set:
        asked = asked.copy()
        for key, value in set.items():
            asked.set(key, value)
    pairs = [f"{name}={_text(value)}" for name, value in (params or {}).items()]
    with _Bar(progress) as tell:
        text = _native.run_json(
            os.fspath(workload), asked._native, policy, cpus, seed, seeds, pairs, tell
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
    frame: str = "pandas",
) -> Union[pandas.DataFrame, polars.DataFrame, list[dict[str, Any]]]:
    """Runs a grid, each with each, on all cores: a row for each run, in the order of ``quell sweep``.

    `frame` is ``"pandas"``, ``"polars"``, or ``"records"``: a list of the objects in the lines of ``quell sweep``'s
    results. In a frame a parameter is a column of its name, a count one like ``engine.flushes`` (0 where nothing was
    counted), a value that is not there is empty. A run that failed has an ``error`` and no ``value``.
    """
    if frame not in ("pandas", "polars", "records"):
        raise ValueError(f"frame {frame}: expected pandas, polars or records")
    library: Any = None
    if frame != "records":
        # Before the runs: they are not lost for want of a library.
        try:
            library = __import__(frame)
        except ImportError as missing:
            raise ImportError(f"frame={frame!r} needs it: pip install {frame}, or ask for records") from missing
    with _Bar(progress) as tell:
        lines = _native.sweep_json(
            os.fspath(workload),
            [_machine(one)._native for one in _listed(machine)],
            _listed(policy),
            [] if cpus is None else _listed(cpus),
            seeds,
            _axes(params),
            _axes(set),
            tell,
        )
    records = [json.loads(line) for line in lines]
    if library is None:
        return records
    return library.DataFrame(_columns(records))


_COUNTS = {"engine": "engine.", "machine_counts": "machine."}


def _columns(records: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """The columns of a table of records."""
    columns: dict[str, list[Any]] = {}
    for name in records[0]:
        if name == "parameters":
            for key in records[0][name]:
                columns[key] = [record[name][key] for record in records]
        elif name in _COUNTS:
            for key in sorted({key for record in records for key in record[name]}):
                columns[_COUNTS[name] + key] = [record[name].get(key, 0) for record in records]
        else:
            columns[name] = [record[name] for record in records]
    return columns


def machines() -> list[str]:
    """The names of the built-in machines."""
    return _native.machine_names()


def workloads() -> list[str]:
    """The names of the built-in workloads."""
    return _native.workload_names()
