"""Compares the module with the command: the same figures, errors as exceptions, calls that can be interrupted.

`QUELL_COMMAND` names the command to compare with; `scripts/test-python` builds it.
"""

import json
import os
import pickle
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

import quell

SMALL = {"iterations": 20}
# How fast the host was is the one thing that two runs of the same differ in.
OF_THE_HOST = ("accesses_per_second", "host_seconds")


def command(*arguments):
    return subprocess.run(
        [os.environ["QUELL_COMMAND"], *arguments], check=True, capture_output=True, text=True
    ).stdout


def document(*arguments):
    """The command's JSON without the number of its schema, which an object of Python doesn't need."""
    theirs = json.loads(command(*arguments))
    assert theirs.pop("schema") >= 1
    return theirs


def of_the_model(report):
    assert all(report[key] > 0 for key in OF_THE_HOST)
    return {key: value for key, value in report.items() if key not in OF_THE_HOST}


def test_the_version_is_that_of_the_command():
    assert command("--version").split() == ["quell", quell.__version__]


@pytest.mark.parametrize("policy", ["baseline", "all", "S0+S4"])
@pytest.mark.parametrize("machine", ["haswell-server", "kunpeng-920"])
def test_a_run_is_what_the_command_prints(policy, machine):
    ours = quell.run("dontneed", machine=machine, policy=policy, cpus=3, seed=7, params=SMALL)
    theirs = document("run", "dontneed", "--machine", machine, "--policy", policy, "--cpus", "3", "--seed", "7",
                "--param", "iterations=20", "--json")
    assert list(ours) == list(theirs)
    assert of_the_model(ours) == of_the_model(theirs)


def test_a_changed_machine_is_what_the_command_makes_of_it():
    theirs = document("run", "dontneed", "--set", "interrupt.send=5us", "--param", "iterations=20", "--json")
    machine = quell.Machine("haswell-server")
    by_argument = quell.run("dontneed", machine=machine, set={"interrupt.send": "5us"}, params=SMALL)
    assert machine == quell.Machine(), "a machine that is handed over stays as it is"
    by_object = quell.run("dontneed", machine=machine.set("interrupt.send", "5us"), params=SMALL)
    assert machine != quell.Machine()
    assert of_the_model(by_argument) == of_the_model(by_object) == of_the_model(theirs)
    assert theirs["value"] > quell.run("dontneed", params=SMALL)["value"]


def test_lines_are_those_of_the_command():
    ours = quell.run("crowd", cpus=3, params=SMALL, lines=True)["lines"]
    theirs = document("run", "crowd", "--cpus", "3", "--param", "iterations=20", "--lines", "--json")
    assert ours == theirs["lines"] and ours["transfers"] == theirs["machine_counts"]["transfers"]
    assert "lines" not in quell.run("crowd", cpus=3, params=SMALL)


GRID = dict(policy=["baseline", "all"], cpus=[1, 2], seeds=2, params={"iterations": 5, "pages": [1, 4]},
            set={"interrupt.send": ["500ns", "5us"]})


def test_a_sweep_is_what_the_command_writes(tmp_path):
    file = tmp_path / "results.jsonl"
    command("sweep", "dontneed", "--policy", "baseline", "--policy", "all", "--cpus", "1,2", "--seeds", "2",
            "--param", "iterations=5", "--param", "pages=1,4", "--set", "interrupt.send=500ns,5us",
            "--results", str(file))
    theirs = [json.loads(line) for line in file.read_text().splitlines()[1:]]
    told = []
    ours = quell.sweep("dontneed", frame="records", progress=lambda *now: told.append(now), **GRID)
    assert len(ours) == 2 * 2 * 2 * 2 * 2
    assert ours == theirs
    assert told[-1] == (32, 32) and told == sorted(told)


def test_a_frame_has_a_row_for_each_run():
    records = quell.sweep("dontneed", frame="records", **GRID)
    pandas = quell.sweep("dontneed", progress=True, **GRID)
    polars = quell.sweep("dontneed", frame="polars", **GRID)
    assert list(pandas.columns) == polars.columns
    for name in ("index", "value", "policy", "cpus"):
        assert list(pandas[name]) == polars[name].to_list() == [record[name] for record in records]
    # Parameters are numbers: 500ns and 5us are 500 and 5000.
    assert list(pandas["pages"]) == polars["pages"].to_list() == [int(record["parameters"]["pages"]) for record in records]
    assert pandas["interrupt.send"].dtype.kind == "i" and set(pandas["interrupt.send"]) == {500, 5000}
    assert pandas.groupby("pages")["value"].mean().index.tolist() == [1, 4]
    for figure in ("count", "median_ns", "p99_ns", "worst_ns"):
        of_discards = [latency[figure] for record in records for latency in record["latencies"] if latency["call"] == "discard"]
        assert len(of_discards) == len(records)
        assert list(pandas[f"latency.discard.{figure}"]) == polars[f"latency.discard.{figure}"].to_list() == of_discards
    assert (pandas["latency.discard.p99_ns"] >= pandas["latency.discard.median_ns"]).all()
    counts = [name for name in pandas.columns if name.startswith("engine.")]
    assert counts
    for name in counts:
        assert list(pandas[name]) == [record["engine"].get(name[len("engine."):], 0) for record in records]


def test_a_parameter_that_is_no_number_stays_text():
    frame = quell.sweep("crowd", cpus=2, seeds=1, params={"iterations": 2, "apart": ["no", "yes"]},
                        set={"kernel.scale": ["0.5", "2"]})
    assert sorted(set(frame["apart"])) == ["no", "yes"]
    assert sorted(set(frame["kernel.scale"])) == [0.5, 2]


def test_held_out_tables_are_in_the_package(tmp_path, monkeypatch):
    # Nothing of a checkout is in the folder.
    monkeypatch.chdir(tmp_path)
    for arguments, calibrate in [((), False), (("--calibrate", "before"), True)]:
        theirs = document("held-out", "mprotect-arm64", "--json", *arguments)
        assert quell.held_out("mprotect-arm64", calibrate=calibrate) == theirs["tables"][0]["rows"]
    with pytest.raises(ValueError, match="built in are invlpgb"):
        quell.held_out("no-such-table")


def test_what_a_sweep_finds_is_told_as_it_is_found():
    found = []
    records = quell.sweep("dontneed", frame="records", found=found.append, **GRID)
    assert sorted(found, key=lambda record: record["index"]) == records


def without_rates(report):
    """Returns a search without the host's speed."""
    assert report["schedules_per_second"] > 0
    rows = report["scenarios"]
    assert all("schedules_per_cpu_second" in row for row in [report, *rows])
    return [{key: value for key, value in row.items() if key != "schedules_per_cpu_second"} for row in rows]


def explored(*arguments):
    """Returns the command's findings; an exit code means a violation."""
    ran = subprocess.run([os.environ["QUELL_COMMAND"], "explore", *arguments, "--json"], capture_output=True, text=True)
    assert ran.returncode in (0, 1), ran.stderr
    return without_rates(json.loads(ran.stdout))


BROKEN = Path(__file__).parent / "broken.toml"
SOURCE_MISTAKE = Path(__file__).parent / "source-mistake.toml"


def test_a_search_is_what_the_command_prints():
    told, found = [], []
    ours = quell.explore(["unmap-access", "table-free"], machine=["x86", "riscv"], policy=["baseline", "all"], schedules=300,
                         seed=5, depth=2, progress=lambda *now: told.append(now), found=found.append)
    theirs = explored("unmap-access", "table-free", "--machine", "x86,riscv", "--policy", "baseline", "--policy", "all",
                      "--schedules", "300", "--seed", "5", "--depth", "2")
    assert without_rates(ours) == theirs and len(theirs) > 4
    assert told[-1] == (len(theirs), len(theirs)) and told == sorted(told)
    assert sorted(map(str, found)) == sorted(map(str, ours["scenarios"]))
    ours = quell.explore("unmap-access", machine="x86", policy="all", exhaustive=True)
    assert ours["scenarios"][0]["exhaustive"]
    assert without_rates(ours) == explored("unmap-access", "--machine", "x86", "--policy", "all", "--exhaustive")
    ours = quell.explore("dontneed", machine="x86", policy="all", schedules=20, cpus=2, params={"iterations": 1})
    assert without_rates(ours) == explored("dontneed", "--machine", "x86", "--policy", "all", "--schedules", "20",
                                           "--cpus", "2", "--param", "iterations=1")


def test_a_breach_is_found_and_its_code_replays_it():
    ours = quell.explore(BROKEN)
    assert without_rates(ours) == explored(str(BROKEN))
    (row,) = ours["scenarios"]
    assert row["violations"] == 1
    # The code names no program: a file's name identifies its content.
    assert row["replay"].startswith(str(BROKEN)) and row["violation"]["clause"]


def test_minutes_end_a_search():
    began = time.monotonic()
    ours = quell.explore("unmap-access", machine="x86", policy="all", minutes=0.01)
    assert ours["scenarios"][0]["schedules"] > 0 and time.monotonic() - began < 30


def test_published_figures_stand_beside_the_models():
    theirs = document("reproduce", "--only", "S2", "--no-report", "--json")
    ours = quell.reproduce("S2")
    assert ours == theirs["rows"] and len(ours) == 3
    with pytest.raises(ValueError, match="S9"):
        quell.reproduce("S9")


RECORDINGS = Path(__file__).parents[2] / "profiler/record/tests/recordings"


@pytest.mark.parametrize("name", ["perf.txt", "trace-cmd.txt", "trace.txt"])
def test_a_recording_is_what_the_command_reads(name):
    path = RECORDINGS / name
    ours = quell.read(path)
    assert ours == document("record", "--import", str(path), "--json")
    assert ours["sites"]
    program = ours["sites"][0]["stack"][-1].strip("[]")
    of_one = quell.read(path, program=program)
    assert of_one == document("record", "--import", str(path), "--program", program, "--json")


def test_a_machine_is_written_and_read_again(tmp_path):
    file = tmp_path / "mine.toml"
    machine = quell.Machine("milan").set("interrupt.send", "901ns").set("cpu.frequency", "2.9GHz")
    file.write_text(machine.to_toml())
    assert quell.Machine(file) == quell.Machine.from_toml(machine.to_toml()) == machine != quell.Machine("milan")
    assert pickle.loads(pickle.dumps(machine)) == machine
    report = document("run", "dontneed", "--machine", str(file), "--param", "iterations=20", "--json")
    assert of_the_model(report) == of_the_model(quell.run("dontneed", machine=machine, params=SMALL))


@pytest.mark.parametrize(
    ("call", "culprit"),
    [
        (lambda: quell.run("dontned"), "dontned"),
        (lambda: quell.run("no/such.toml"), "no/such.toml"),
        (lambda: quell.run("dontneed", machine="pdp-11"), "pdp-11"),
        (lambda: quell.run("dontneed", policy="S9"), "S9"),
        (lambda: quell.run("dontneed", cpus=0), "cpus 0"),
        (lambda: quell.run("dontneed", cpus=1025), "cpus 1025"),
        (lambda: quell.run("dontneed", seeds=0), "seeds 0"),
        (lambda: quell.run("dontneed", cpus=True), "cpus True"),
        (lambda: quell.run("dontneed", params={"page": 1}), "page"),
        (lambda: quell.run("dontneed", params={"pages": "many"}), "pages"),
        (lambda: quell.run("dontneed", set={"interrupt.sent": "1us"}), "interrupt.send"),
        (lambda: quell.Machine().set("interrupt.send", "1 mile"), "interrupt.send"),
        (lambda: quell.sweep("dontneed", params={"pages": []}), "no runs"),
        (lambda: quell.sweep("dontneed", seeds=10**12), "more than 1000000 runs"),
        (lambda: quell.sweep("dontneed", frame="table"), "table"),
        (lambda: quell.sweep("dontneed", on="mars"), "mars"),
        (lambda: quell.sweep("dontneed", address="auto"), "auto"),
        (lambda: quell.explore("unmap-acces"), "unmap-acces"),
        (lambda: quell.explore("no/such.toml"), "no/such.toml"),
        (lambda: quell.explore(SOURCE_MISTAKE), "SkipWait"),
        (lambda: quell.explore(machine="pdp-11"), "pdp-11"),
        (lambda: quell.explore(policy="S9"), "S9"),
        (lambda: quell.explore(cpus=2), "name one"),
        (lambda: quell.explore("dontneed", params={"page": 1}), "page"),
        (lambda: quell.explore(schedules=1, exhaustive=True), "one of them"),
        (lambda: quell.explore(schedules=0), "schedules 0"),
        (lambda: quell.explore(seed=-1), "seed -1"),
        (lambda: quell.explore(depth=10), "depth 10"),
        (lambda: quell.run("dontneed", seed=-1), "seed -1"),
        (lambda: quell.run("dontneed", cpus=-1), "cpus -1"),
        (lambda: quell.run("dontneed", seeds=70_000), "seeds 70000"),
        (lambda: quell.sweep("dontneed", cpus=[1, -1]), "cpus -1"),
        (lambda: quell.sweep("dontneed", cpus=[]), "cpus"),
        (lambda: quell.sweep("dontneed", seeds=-1), "seeds -1"),
        (lambda: quell.explore(minutes=float("nan")), "minutes nan"),
        (lambda: quell.read("no-such.txt"), "no-such.txt"),
        (lambda: quell.Machine.from_toml("name ="), "text:1"),
    ],
)
def test_what_is_wrong_is_a_value_error_that_names_it(call, culprit):
    with pytest.raises(ValueError) as error:
        call()
    assert culprit in str(error.value)


def test_a_command_refuses_with_the_same_words():
    with pytest.raises(ValueError) as error:
        quell.run("dontned")
    refused = subprocess.run([os.environ["QUELL_COMMAND"], "run", "dontned"], capture_output=True, text=True)
    assert refused.returncode == 2
    assert str(error.value).split() == refused.stderr.removeprefix("error: ").split()


def test_other_threads_run_meanwhile():
    def interrupt():
        time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    beside = threading.Thread(target=interrupt)
    ended = False
    try:
        beside.start()
        quell.run("dontneed", cpus=4, seeds=1000, params={"iterations": 3000})
        # A call that kept the interpreter to itself ends before the other thread can send the signal.
        ended = True
        beside.join()
    except KeyboardInterrupt:
        pass
    assert not ended
    beside.join()


def test_what_progress_raises_ends_the_call():
    def enough(done, of):
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        quell.sweep("dontneed", seeds=1000, params=SMALL, progress=enough)


INTERRUPTED = """
import quell
print("begun", flush=True)
try:
    quell.{}
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.skipif(os.name != "posix", reason="signals are sent")
@pytest.mark.parametrize(
    "call",
    [
        'sweep("dontneed", frame="records", seeds=1000, params={"iterations": 20000})',
        # Cases that take longer than the test waits: a search ends in the middle of one.
        'explore("unmap-access", machine="x86", schedules=10**12)',
    ],
)
def test_an_interrupt_ends_a_call(interrupted, call):
    interrupted(INTERRUPTED.format(call), after=0.5)


def test_the_citation_is_of_this_version():
    lines = (Path(__file__).parents[2] / "CITATION.cff").read_text().splitlines()
    assert f"version: {quell.__version__}" in lines
