#!/usr/bin/env python3
"""A host of WebAssembly that makes an instance for each request and throws it away: wasmtime with the pooling allocator.

Two threads take requests; the instances' memories come from a pool, and what a request wrote is given back to the kernel
when its instance ends. Python's binding has no words for the pool, so it is asked for through wasmtime's C interface, which is in
the same wheel (`pip install wasmtime`).

    instances.py SECONDS [SETTING=NUMBER ...]

prints how many requests, and the CPU time in seconds. SETTING is one of the C interface's, such as
linear_memory_keep_resident=1048576 or decommit_batch_size=16. Ends with 3 where there is no such wasmtime.
"""

import ctypes
import os
import sys
import threading
import time

try:
    import wasmtime
    from wasmtime import _ffi
except ImportError:
    print("there is no wasmtime: pip install wasmtime", file=sys.stderr)
    sys.exit(3)

# Writes a byte to each of so many pages of 4 KB.
PROGRAM = """
(module
  (memory (export "memory") 32)
  (func (export "serve") (param $pages i32)
    (local $at i32)
    (loop $next
      (i32.store8 (i32.mul (local.get $at) (i32.const 4096)) (i32.const 1))
      (local.set $at (i32.add (local.get $at) (i32.const 1)))
      (br_if $next (i32.lt_u (local.get $at) (local.get $pages))))))
"""
PAGES = 64
THREADS = 2


def engine(settings):
    """An engine with a pool, by the C interface."""
    library = _ffi.dll
    config = wasmtime.Config()
    prefix = "wasmtime_pooling_allocation_config_"
    try:
        new = getattr(library, prefix + "new")
        use = library.wasmtime_pooling_allocation_strategy_set
    except AttributeError:
        print("this wasmtime has no pooling allocator in its C interface", file=sys.stderr)
        sys.exit(3)
    new.restype = ctypes.c_void_p
    pool = ctypes.c_void_p(new())
    for name, number in {"total_memories": 64, "total_core_instances": 64, **settings}.items():
        change = getattr(library, prefix + name + "_set")
        change.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        change(pool, number)
    use.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    use(ctypes.cast(config.ptr(), ctypes.c_void_p), pool)
    return wasmtime.Engine(config)


def request(engine, module):
    store = wasmtime.Store(engine)
    instance = wasmtime.Instance(store, module, [])
    instance.exports(store)["serve"](store, PAGES)
    store.close()


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 2.0
    settings = {name: int(number) for name, number in (word.split("=") for word in sys.argv[2:])}
    pooled = engine(settings)
    module = wasmtime.Module(pooled, PROGRAM)
    until = time.monotonic() + seconds
    served = [0] * THREADS

    def serve(thread):
        while time.monotonic() < until:
            request(pooled, module)
            served[thread] += 1

    threads = [threading.Thread(target=serve, args=(thread,)) for thread in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    used = os.times()
    print(sum(served), f"{used.user + used.system:.3f}")


main()
