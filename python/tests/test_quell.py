"""The module beside the command: the same figures, errors as exceptions, calls that can be interrupted.

`QUELL_COMMAND` names the command to compare with; `scripts/test-python` builds it.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

import quell

SMALL = {"iterations": 20}
# How fast the host was is the one thing that two runs of the same differ in.
OF_THE_HOST = ("accesses_per_second", "host_seconds")


def command(*arguments):
    return subprocess.run(
        [os.environ["QUELL_COMMAND"], *arguments], check=True, capture_output=True, text=True
    ).stdout


def of_the_model(report):
    assert all(report[key] > 0 for key in OF_THE_HOST)
    return {key: value for key, value in report.items() if key not in OF_THE_HOST}


@pytest.mark.parametrize("policy", ["baseline", "all", "S0+S4"])
@pytest.mark.parametrize("machine", ["haswell-server", "kunpeng-920"])
def test_a_run_is_what_the_command_prints(policy, machine):
    ours = quell.run("dontneed", machine=machine, policy=policy, cpus=3, seed=7, params=SMALL)
    theirs = json.loads(
        command("run", "dontneed", "--machine", machine, "--policy", policy, "--cpus", "3", "--seed", "7",
                "--param", "iterations=20", "--json")
    )
    assert list(ours) == list(theirs)
    assert of_the_model(ours) == of_the_model(theirs)


def test_a_changed_machine_is_what_the_command_makes_of_it():
    theirs = json.loads(
        command("run", "dontneed", "--set", "interrupt.send=5us", "--param", "iterations=20", "--json")
    )
    machine = quell.Machine("haswell-server")
    by_argument = quell.run("dontneed", machine=machine, set={"interrupt.send": "5us"}, params=SMALL)
    assert machine == quell.Machine(), "a machine that is handed over stays as it is"
    by_object = quell.run("dontneed", machine=machine.set("interrupt.send", "5us"), params=SMALL)
    assert machine != quell.Machine()
    assert of_the_model(by_argument) == of_the_model(by_object) == of_the_model(theirs)
    assert theirs["value"] > quell.run("dontneed", params=SMALL)["value"]


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
    assert list(pandas["pages"]) == [record["parameters"]["pages"] for record in records]
    counts = [name for name in pandas.columns if name.startswith("engine.")]
    assert counts
    for name in counts:
        assert list(pandas[name]) == [record["engine"].get(name[len("engine."):], 0) for record in records]


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
        (lambda: quell.run("dontneed", params={"page": 1}), "page"),
        (lambda: quell.run("dontneed", params={"pages": "many"}), "pages"),
        (lambda: quell.run("dontneed", set={"interrupt.sent": "1us"}), "interrupt.send"),
        (lambda: quell.Machine().set("interrupt.send", "1 mile"), "interrupt.send"),
        (lambda: quell.sweep("dontneed", params={"pages": []}), "no runs"),
        (lambda: quell.sweep("dontneed", seeds=10**12), "more than 1000000 runs"),
        (lambda: quell.sweep("dontneed", frame="table"), "table"),
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
    quell.sweep("dontneed", frame="records", seeds=1000, params={"iterations": 20000})
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.skipif(os.name != "posix", reason="signals are sent")
def test_an_interrupt_ends_a_sweep():
    child = subprocess.Popen([sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "begun\n"
        time.sleep(0.5)
        assert child.poll() is None, "the sweep is too short to be interrupted"
        child.send_signal(signal.SIGINT)
        rest, _ = child.communicate(timeout=60)
    finally:
        child.kill()
    assert rest == "interrupted\n" and child.returncode == 0
