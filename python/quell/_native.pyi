"""The native part: text in, text out. `quell` is what to call."""

from typing import Callable, Optional

class Machine:
    def __init__(self, name: str) -> None: ...
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
    progress: Optional[Callable[[int, int], object]],
) -> str: ...
def sweep_json(
    workload: str,
    machines: list[Machine],
    policies: list[str],
    numbers: list[int],
    seeds: int,
    axes: list[tuple[str, list[str]]],
    figures: list[tuple[str, list[str]]],
    progress: Optional[Callable[[int, int], object]],
) -> list[str]: ...
def machine_names() -> list[str]: ...
def workload_names() -> list[str]: ...
