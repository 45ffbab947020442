#!/usr/bin/env python3
"""A host of WebAssembly: two threads make an instance for each request and drop it.

The instances' memories come from wasmtime's pooling allocator, which gives back what a request wrote. Python's binding
cannot ask for the pool, so we use wasmtime's C interface in the same wheel.

    instances.py REQUESTS [SETTING=NUMBER ...]

Each thread serves this many. SETTING is one of the C interface's, such as linear_memory_keep_resident=1048576.
"""

import ctypes
import sys
import threading

import wasmtime
from wasmtime import _ffi

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
    new = getattr(library, prefix + "new")
    use = library.wasmtime_pooling_allocation_strategy_set
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
    settings = {name: int(number) for name, number in (word.split("=") for word in sys.argv[2:])}
    pooled = engine(settings)
    module = wasmtime.Module(pooled, PROGRAM)

    def serve():
        for _ in range(int(sys.argv[1])):
            request(pooled, module)

    threads = [threading.Thread(target=serve) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


main()
