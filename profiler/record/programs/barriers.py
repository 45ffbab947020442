# A thread that computes, and one that makes all others of its process pass a memory barrier all the time.
#
#   barriers.py SECONDS: prints how many barriers there were.
import ctypes
import hashlib
import os
import platform
import sys
import threading
import time

call = ctypes.CDLL(None, use_errno=True).syscall
number = {'x86_64': 324, 'aarch64': 283}[platform.machine()]
register, barrier = 16, 8
if call(number, register, 0):
    raise OSError(ctypes.get_errno(), 'membarrier')


def compute():
    while True:
        # Without the interpreter's lock.
        hashlib.pbkdf2_hmac('sha256', b'password', b'salt', 1000000)


threading.Thread(target=compute, daemon=True).start()
count, end = 0, time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    for _ in range(100):
        call(number, barrier, 0)
    count += 100
print(count, flush=True)
os._exit(0)
