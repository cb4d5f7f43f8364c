"""Measure calls of the package beside the time of the pipes alone. Run: python bench/speed.py"""

import statistics
import subprocess
import time

import numpy as np

import octet
from octet._server import _widen

COUNT = 1 << 24


def median(call, times):
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def pipes(x):
    """Return the seconds in which pipes take the bytes of a cast to another process and back."""
    command = ["sh", "-c", f"head -c {x.nbytes} >/dev/null; head -c {x.size} /dev/zero"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        _widen(process.stdin, process.stdout)
        time.sleep(0.05)  # until the command waits
        start = time.perf_counter()
        rest = memoryview(x).cast("B")
        while rest.nbytes:
            rest = rest[process.stdin.write(rest):]
        rest = memoryview(np.empty(x.size, np.uint8))
        while rest.nbytes:
            rest = rest[process.stdout.readinto(rest):]
        return time.perf_counter() - start


def main():
    rng = np.random.default_rng(0)
    a, b = (octet.cast(rng.standard_normal((256, 256), dtype=np.float32), "e4m3") for _ in range(2))
    formats = {"format_a": "e4m3", "format_b": "e4m3"}
    octet.scaled_mm(a, b, **formats)
    print(f"scaled_mm of 256x256x256 on emu: {1e3 * median(lambda: octet.scaled_mm(a, b, **formats), 100):.2f} ms")
    x = rng.standard_normal(COUNT, dtype=np.float32)
    alone, casts = [], []
    for _ in range(15):  # in turns, since the speed of a shared machine changes
        alone.append(pipes(x))
        casts.append(median(lambda: octet.cast(x, "e4m3"), 1))
    ratio = statistics.median(c / p for c, p in zip(casts, alone))
    print(f"cast of 2^24 float32: {1e3 * statistics.median(casts):.1f} ms, {ratio:.2f} times the pipes alone")


if __name__ == "__main__":
    main()
