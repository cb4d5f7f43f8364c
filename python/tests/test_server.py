"""The life of the server."""

import os
import signal
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

import octet
from octet import _server

POSIX = pytest.mark.skipif(os.name != "posix", reason="signals and fork")


@POSIX
def test_a_killed_server_is_an_error_and_is_replaced():
    octet.cast([1], "e4m3")
    process = octet.server()._process
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert octet.cast([1], "e4m3").shape == (1,)
    own = _server.Server()
    own._process.send_signal(signal.SIGKILL)
    with pytest.raises(octet.ServerError, match="ended with signal 9"):
        own.call("cast", [np.zeros(1 << 22, np.float32)], count=1 << 22)
    own.close()


@POSIX
def test_killed_in_a_call():
    own = _server.Server()
    threading.Timer(0.2, own._process.kill).start()
    with pytest.raises(octet.ServerError, match="ended with signal 9"):
        while True:
            own.call("decode", [np.zeros(1 << 20, np.uint8)], count=1 << 20, format="e4m3", scale_inv=1.0)
    own.close()


@POSIX
def test_a_server_that_prints_and_ends(tmp_path):
    script = tmp_path / "octet"
    script.write_text("#!/bin/sh\necho octet: no luck >&2\nexit 3\n")
    script.chmod(0o755)
    with pytest.raises(octet.ServerError, match="ended with status 3: octet: no luck"):
        _server.Server(str(script))


@POSIX
def test_another_protocol_is_refused(tmp_path):
    script = tmp_path / "octet"
    header = b'{"protocol": 99, "version": "v9", "buffers": []}'
    (tmp_path / "frame").write_bytes(len(header).to_bytes(4, "little") + header)
    script.write_text(f"#!/bin/sh\n/bin/cat {tmp_path}/frame\n/bin/cat >/dev/null\n")
    script.chmod(0o755)
    with pytest.raises(octet.ServerError, match="speaks protocol 99, this package 1"):
        _server.Server(str(script))


def test_no_command():
    with pytest.raises(octet.ServerError, match="nowhere"):
        _server.Server("/nowhere/octet")


@POSIX
def test_a_fork_has_a_server_of_its_own():
    text = """
        import os, numpy as np, octet
        octet.cast([1], "e4m3")
        parent = octet.server()._process.pid
        child = os.fork()
        ok = octet.cast([2], "e4m3").shape == (1,) and (octet.server()._process.pid == parent) == bool(child)
        if child == 0:
            octet.server().close()
            os._exit(0 if ok else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 and ok
        assert octet.cast([3], "e4m3").shape == (1,)
    """
    subprocess.run([sys.executable, "-W", "ignore", "-c", textwrap.dedent(text)], check=True, timeout=60)


def test_threads_share_a_server():
    x = np.arange(1000, dtype=np.float32)
    results = []

    def work(i):
        for _ in range(20):
            results.append(np.array_equal(octet.cast(x[i:], "e4m3"), octet.cast(x, "e4m3")[i:]))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert results == [True] * 160


def test_a_wrong_request_does_not_end_the_server():
    own = _server.Server()
    for op, buffers, fields in (
        ("fly", [np.zeros(1000, np.uint8)], {}),
        ("cast", [np.zeros(1000, np.uint8)], {"count": 3, "source": "fp32", "format": "e4m3", "rounding": "nearest"}),
        ("cast", [], {"cuont": 3}),
        ("cast", [], {"count": 1 << 60, "source": "fp32", "format": "e4m3", "rounding": "nearest"}),
    ):
        with pytest.raises(ValueError):
            own.call(op, buffers, **fields)
    with pytest.raises(FileNotFoundError):
        own.call("run", path="/nowhere")
    assert own.running
    own.close()
    assert not own.running
