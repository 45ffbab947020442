"""The native part: text in, text out. `quell` is what to call."""

from typing import Callable, Optional, TypedDict

__version__: str

class Machine:
    def __init__(self, name: str) -> None: ...
    @staticmethod
    def from_toml(name: str, text: str) -> Machine: ...
    def to_toml(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    def copy(self) -> Machine: ...
    def set_text(self, pair: str) -> None: ...

def run_json(
    workload: str,
    machine: Machine,
    policy_text: str,
    number: Optional[int],
    seed: int,
    seeds: int,
    parameters: list[str],
    lines: bool,
    progress: Optional[Callable[[int, int], object]],
) -> str: ...

Progress = Optional[Callable[[int, int], object]]
Found = Optional[Callable[[str], object]]

class AskedOfSweep(TypedDict):
    workload: str
    text: Optional[str]
    machines: list[Machine]
    policies: list[str]
    cpus: list[int]
    seeds: int
    axes: list[tuple[str, list[str]]]
    figures: list[tuple[str, list[str]]]

class AskedOfExplore(TypedDict):
    names: list[str]
    files: dict[str, str]
    machines: list[str]
    policies: list[str]
    parameters: list[str]
    cpus: Optional[int]

def sweep_size(asked: AskedOfSweep) -> int: ...
def sweep_json(
    asked: AskedOfSweep, part: str, threads: Optional[int], progress: Progress, found: Found
) -> list[str]: ...
def explore_size(asked: AskedOfExplore) -> int: ...
def explore_json(
    asked: AskedOfExplore,
    searched: tuple[str, float],
    seed: int,
    depth: int,
    part: str,
    threads: Optional[int],
    progress: Progress,
    found: Found,
) -> list[tuple[str, int, Optional[float]]]: ...
def read_json(path: str, program: Optional[str]) -> str: ...
def reproduce_json(only: Optional[str], progress: Progress) -> list[str]: ...
def held_out_json(tables: list[str], calibrate: bool, progress: Progress) -> list[str]: ...
def amount(text: str) -> Optional[int]: ...
def file_text(name: str) -> Optional[str]: ...
def machine_names() -> list[str]: ...
def workload_names() -> list[str]: ...
