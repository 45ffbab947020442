"""Fixtures of several tests."""

import signal
import subprocess
import sys
import time

import pytest


@pytest.fixture
def interrupted():
    """Runs a program that prints "begun" and then works, and interrupts it. It must print "interrupted" and succeed."""

    def run(program, after):
        child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        try:
            assert child.stdout.readline() == "begun\n"
            time.sleep(after)
            assert child.poll() is None, "the call is too short to be interrupted"
            child.send_signal(signal.SIGINT)
            # A limit for hangs: on a busy host a cluster takes long to start.
            rest, _ = child.communicate(timeout=600)
        finally:
            child.kill()
        assert rest == "interrupted\n" and child.returncode == 0

    return run
