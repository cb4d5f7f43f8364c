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
    process = octet._server.server()._process
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
    with pytest.raises(octet.ServerError, match="uses protocol 99, this package 1"):
        _server.Server(str(script))


def test_no_command():
    with pytest.raises(octet.ServerError, match="nowhere"):
        _server.Server("/nowhere/octet")


@POSIX
def test_a_fork_has_a_server_of_its_own():
    text = """
        import os, numpy as np, octet
        octet.cast([1], "e4m3")
        parent = octet._server.server()._process.pid
        child = os.fork()
        if child and not os.fork():
            os._exit(0)  # a child that never calls octet
        ok = octet.cast([2], "e4m3").shape == (1,) and (octet._server.server()._process.pid == parent) == bool(child)
        if child == 0:
            octet._server.server().close()
            os._exit(0 if ok else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 and ok
        assert octet.cast([3], "e4m3").shape == (1,)
    """
    subprocess.run([sys.executable, "-W", "ignore", "-c", textwrap.dedent(text)], check=True, timeout=60)


@POSIX
def test_a_child_does_not_hold_the_server():
    """The server ends with the parent's end of the pipe, though a child still runs."""
    text = """
        import os, time, octet
        octet.cast([1], "e4m3")
        child = os.fork()
        if child == 0:
            time.sleep(30)
            os._exit(0)
        start = time.monotonic()
        octet._server.server().close()
        assert time.monotonic() - start < 4
        os.kill(child, 9)
    """
    subprocess.run([sys.executable, "-W", "ignore", "-c", textwrap.dedent(text)], check=True, timeout=60)


@POSIX
@pytest.mark.parametrize("when", ["writes", "reads"])
def test_an_interrupted_call_does_not_answer_the_next(when):
    own, size = _server.Server(), 1 << 22

    class Interrupt(BaseException):
        pass

    def interrupt(*_):
        raise Interrupt

    if when == "writes":
        inner = own._in

        class Pipe:
            def write(self, data):
                if len(data) > 1 << 20:
                    inner.write(data[:1000])
                    interrupt()
                return inner.write(data)

            close = inner.close

        own._in = Pipe()
    else:
        own._read = interrupt
    with pytest.raises(Interrupt):
        own.call("decode", [np.zeros(size, np.uint8)], count=size, format="e4m3", scale_inv=1.0)
    assert not own.running
    own.close()


@POSIX
def test_an_exception_of_a_signal_handler_is_kept():
    import time

    def alarm(*_):
        raise TimeoutError("mine")

    before, x = signal.signal(signal.SIGALRM, alarm), np.ones((256, 16384), np.uint8)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        start = time.monotonic()
        with pytest.raises(TimeoutError, match="mine"):
            while time.monotonic() - start < 20:
                octet.scaled_mm(x, x.T, device="h100", format_a="e4m3", format_b="e4m3")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert octet.cast([1], "e5m2").astype(np.float32).tolist() == [1]


@POSIX
def test_ctrl_c_leaves_the_server():
    assert os.getpgid(octet._server.server()._process.pid) != os.getpgid(0)


@POSIX
@pytest.mark.parametrize("output", [b"hello, world", b"", b"\2\0\0\0[]", b"\2\0\0\0{}", b"\2\0\0\0{x"])
def test_another_command_is_refused(tmp_path, output):
    (tmp_path / "output").write_bytes(output)
    script = tmp_path / "octet"
    script.write_text(f"#!/bin/sh\n/bin/cat {tmp_path}/output\n")
    script.chmod(0o755)
    with pytest.raises(octet.ServerError, match="is .*octet an octet command"):
        _server.Server(str(script))


def test_partial_writes():
    own = _server.Server()
    inner = own._in

    class Pipe:
        def write(self, data):
            return inner.write(data[:3])

        close = inner.close

    own._in = Pipe()
    _, (raw,) = own.call("decode", [np.arange(100, dtype=np.uint8)], count=100, format="e5m2", scale_inv=1.0)
    assert np.array_equal(raw.view(np.float32), octet.dequantize(np.arange(100, dtype=np.uint8), "e5m2"))
    own.close()


def test_a_program_ends_at_once():
    text = "import time, atexit, octet; octet.cast([1], 'e4m3')"
    import time

    start = time.monotonic()
    subprocess.run([sys.executable, "-c", text], check=True, timeout=60)
    assert time.monotonic() - start < 4.5


def test_names():
    assert octet.__version__ and "open" not in octet.__all__ and octet.ServerError.__module__ == "octet"
    assert all(hasattr(octet, name) for name in octet.__all__)
    with pytest.raises(octet.ServerError, match="no octet command"):
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("OCTET_BINARY", raising=False)
            patch.setenv("PATH", "")
            patch.setattr(_server, "__file__", "/nowhere/octet/_server.py")
            patch.setattr(_server.importlib.metadata, "distribution", lambda name: type("None", (), {"files": None}))
            octet.binary()


def test_command_of_a_target_folder(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "octet").write_text("")
    monkeypatch.delenv("OCTET_BINARY", raising=False)
    monkeypatch.setattr(_server, "__file__", str(tmp_path / "octet" / "_server.py"))
    monkeypatch.setattr(_server.importlib.metadata, "distribution", lambda name: type("None", (), {"files": None}))
    assert octet.binary() == str(tmp_path / "bin" / "octet")


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
