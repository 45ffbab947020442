"""Tests a Ray cluster of several worker processes on this host: the rows are the same, even if a worker is lost."""

import json
import os
import signal
import time
import warnings
from pathlib import Path

import pytest

import quell
from quell import _cluster

try:
    import ray
except ImportError:
    warnings.warn("SKIPPED: nothing is tested on a cluster: there is no Ray for this Python", stacklevel=1)
    pytest.skip("there is no Ray for this Python", allow_module_level=True)

WORKERS = 3
BROKEN = Path(__file__).parent / "broken.toml"
GRID = dict(policy=["baseline", "all"], cpus=[1, 2], seeds=3, params={"iterations": [5, 20]},
            set={"interrupt.send": ["500ns", "5us"]}, frame="records")
SEARCH = dict(machine=["x86", "riscv"], schedules=200, seed=3)


@pytest.fixture(scope="module", autouse=True)
def cluster():
    ray.init(address="local", num_cpus=WORKERS, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture
def lossy(monkeypatch, tmp_path):
    """Makes the worker of the second part kill itself at its end, and counts how often."""

    def arrange(times):
        real = _cluster.part_of

        def part_of(function, asked, arguments, part):
            rows = real(function, asked, arguments, part)
            (tmp_path / f"by-{os.getpid()}").touch()
            lost = len(list(tmp_path.glob("lost-*")))
            if part.startswith("2/") and lost < times:
                (tmp_path / f"lost-{os.getpid()}").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return rows

        monkeypatch.setattr(_cluster, "part_of", part_of)
        return lambda kind: len(list(tmp_path.glob(f"{kind}-*")))

    return arrange


def all_workers_are_free():
    """Returns whether all end; a cancelled worker ends its part when the signal is handled."""
    ends = time.monotonic() + 600
    while ray.available_resources().get("CPU", 0) < WORKERS and time.monotonic() < ends:
        time.sleep(0.2)
    return ray.available_resources().get("CPU", 0) == WORKERS


def test_a_sweep_comes_to_the_same_though_a_worker_is_killed(lossy):
    count = lossy(times=1)
    here = quell.sweep("dontneed", **GRID)
    told, found = [], []
    there = quell.sweep("dontneed", on="ray", progress=lambda *now: told.append(now), found=found.append, **GRID)
    # Texts are compared: they have every bit of a figure.
    assert json.dumps(there) == json.dumps(here)
    assert count("lost") == 1 and count("by") > 1
    assert len(here) == 48 and told[-1] == (48, 48) and len(told) > WORKERS
    assert sorted(found, key=lambda record: record["index"]) == here


def test_a_search_comes_to_the_same_though_a_worker_is_killed(lossy):
    count = lossy(times=1)
    here = quell.explore(["unmap-access", "table-free", "two-initiators"], **SEARCH)
    there = quell.explore(["unmap-access", "table-free", "two-initiators"], on="ray", **SEARCH)
    assert count("lost") == 1 and count("by") > 1

    def rows(report):
        return [{**row, "schedules_per_cpu_second": None} for row in report["scenarios"]]

    assert rows(here) == rows(there) and len(rows(here)) > WORKERS


def test_without_another_attempt_a_lost_worker_is_an_error(lossy, monkeypatch):
    lossy(times=1)
    monkeypatch.setattr(_cluster, "RETRIES", 0)
    with pytest.raises(ray.exceptions.WorkerCrashedError):
        quell.sweep("dontneed", on="ray", **GRID)


def test_a_worker_needs_none_of_this_hosts_files(tmp_path, monkeypatch):
    """Files are sent as text: in the workers' folder, these paths do not exist."""
    workload = tmp_path / "mine.toml"
    workload.write_text((Path(__file__).parents[2] / "workloads/dontneed.toml").read_text())
    machine = tmp_path / "machine.toml"
    machine.write_text(quell.Machine("milan").set("interrupt.send", "1us").to_toml())
    broken = tmp_path / "broken.toml"
    broken.write_text(BROKEN.read_text())
    real = _cluster.work

    def work(*arguments):
        for file in (workload, machine, broken):
            file.unlink()
        return real(*arguments)

    monkeypatch.chdir(tmp_path)
    here = quell.sweep("mine.toml", machine="machine.toml", **GRID)
    found = quell.explore("broken.toml")["scenarios"][0]
    monkeypatch.setattr(_cluster, "work", work)
    texts = {file: file.read_text() for file in (workload, machine, broken)}
    assert json.dumps(quell.sweep("mine.toml", machine="machine.toml", on="ray", **GRID)) == json.dumps(here)
    for file, text in texts.items():
        file.write_text(text)
    there = quell.explore("broken.toml", on="ray")["scenarios"][0]
    assert (there["violation"], there["replay"]) == (found["violation"], found["replay"])


def test_a_call_that_ends_early_leaves_the_workers_to_others():
    """The first part finds a violation, its callback raises, and the other parts would never end."""

    def enough(row):
        raise LookupError(row["name"])

    with pytest.raises(LookupError, match="broken.toml"):
        quell.explore([BROKEN, "unmap-access"], machine="x86", schedules=10**12, on="ray", found=enough)
    assert len(quell.sweep("dontneed", on="ray", **GRID)) == 48
    assert all_workers_are_free()


def test_a_part_that_no_interrupt_ends_is_ended_with_its_worker(monkeypatch):
    real = _cluster.part_of

    def part_of(function, asked, arguments, part):
        while part.startswith("2/"):
            try:
                time.sleep(3600)
            except KeyboardInterrupt:
                pass
        return real(function, asked, arguments, part)

    def enough(record):
        raise LookupError(record["index"])

    monkeypatch.setattr(_cluster, "part_of", part_of)
    monkeypatch.setattr(_cluster, "INTERRUPTS", 2)
    with pytest.raises(LookupError):
        quell.sweep("dontneed", on="ray", found=enough, **GRID)
    assert all_workers_are_free()


def test_what_is_wrong_is_told_before_anything_is_sent(monkeypatch):
    monkeypatch.setattr(ray, "remote", None)
    with pytest.raises(ValueError, match="dontned"):
        quell.sweep("dontned", on="ray")
    with pytest.raises(ValueError, match="unmap-acces"):
        quell.explore("unmap-acces", on="ray")
    with pytest.raises(ValueError, match="already connected to a cluster"):
        quell.explore("unmap-access", on="ray", address="local")


INTERRUPTED = """
import ray, quell
ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
print("begun", flush=True)
try:
    quell.explore("unmap-access", machine=["x86", "riscv"], schedules=10**12, on="ray")
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.skipif(os.name != "posix", reason="signals are sent")
def test_an_interrupt_ends_what_a_cluster_does(interrupted):
    interrupted(INTERRUPTED, after=3)
