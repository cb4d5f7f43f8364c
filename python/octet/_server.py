"""The process that computes: ``octet serve --stdio``, and its frames.

A frame is the length of a JSON header in four bytes, little-endian, the header, and raw
buffers, whose sizes the header's key ``buffers`` lists.
"""

from __future__ import annotations

import atexit
import importlib.metadata
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
from typing import IO, Any, Iterable, Sequence

import numpy as np
import numpy.typing as npt

PROTOCOL = 1
PIPE_BYTES = 1 << 20
MAX_HEADER = 16 << 20

Buffer = npt.NDArray[Any]


class Error(RuntimeError):
    """An operation failed although its arguments were valid."""


class ServerError(Error):
    """The server process exited or sent a malformed reply."""


Error.__module__ = ServerError.__module__ = "octet"  # as tracebacks and pickle name them


def binary() -> str:
    """Return the path of the octet command.

    It is the environment variable ``OCTET_BINARY``, or the command that the wheel
    installed, or the first ``octet`` on the ``PATH``.

    Raises:
        octet.ServerError: There is none.
    """
    if path := os.environ.get("OCTET_BINARY"):
        return path
    name = "octet.exe" if sys.platform == "win32" else "octet"
    try:
        files = importlib.metadata.distribution("octet").files or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    installed = [os.path.normpath(str(file.locate())) for file in files if file.name == name]
    beside = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # of pip install --target
    for path in [*installed, os.path.join(beside, "bin", name)]:
        if os.path.isfile(path):
            return path
    if found := shutil.which("octet"):
        return found
    raise ServerError("no octet command: install the wheel, or set OCTET_BINARY to its path")


class Server:
    """A running ``octet serve --stdio``. Its calls are safe from several threads."""

    def __init__(self, command: str | None = None) -> None:
        self.command = command or binary()
        self._lock = threading.Lock()
        self._stderr: IO[bytes] = tempfile.TemporaryFile()
        try:
            # In a group of its own, Ctrl-C does not end it: the program may handle that signal.
            self._process = subprocess.Popen(
                [self.command, "serve", "--stdio"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, bufsize=0,
                start_new_session=True, creationflags=0x08000200 if sys.platform == "win32" else 0,  # no window either
            )
        except OSError as error:
            raise ServerError(f"{self.command}: {error.strerror}") from error
        assert self._process.stdin is not None and self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        _widen(self._in, self._out)
        try:
            hello, _ = self._read()
        except BaseException as error:
            self._kill()
            if isinstance(error, ServerError):
                raise ServerError(f"{error} (is {self.command} an octet command?)") from None
            raise
        if hello.get("protocol") != PROTOCOL:
            self._kill()
            raise ServerError(
                f"{self.command} uses protocol {hello.get('protocol')}, this package {PROTOCOL}:"
                " install both from the same wheel"
            )
        self.version = str(hello.get("version"))
        self.devices = tuple(hello.get("devices", ()))

    def call(self, op: str, buffers: Sequence[Buffer] = (), **fields: Any) -> tuple[dict[str, Any], list[Buffer]]:
        """Send a request and return the header and the buffers of the reply."""
        views = [np.ascontiguousarray(b).reshape(-1).view(np.uint8).data if b.size else memoryview(b"") for b in buffers]
        fields |= {"op": op, "buffers": [v.nbytes for v in views]}
        header = json.dumps(fields, allow_nan=False).encode()
        with self._lock:
            try:
                self._write([struct.pack("<I", len(header)) + header, *views])
                reply, payload = self._read()
            except BaseException:
                self._kill()  # after half a frame, the next reply would be that of this call
                raise
        if "error" in reply:
            kind = {"value": ValueError, "missing": FileNotFoundError}.get(str(reply.get("kind")), Error)
            raise kind(reply["error"])
        return reply, payload

    def close(self) -> None:
        """End the server: it ends with its input."""
        self.abandon()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._kill()
        self._stderr.close()

    def abandon(self) -> None:
        """Close this process's ends of the pipes, as a forked child must, whose parent owns the server."""
        for pipe in (self._in, self._out):
            try:
                pipe.close()
            except OSError:
                pass

    def _kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _write(self, parts: Iterable[bytes | memoryview]) -> None:
        for part in parts:
            rest = memoryview(part)
            while rest.nbytes:
                try:
                    rest = rest[self._in.write(rest):]
                except (BrokenPipeError, ConnectionResetError, ValueError):  # ValueError: closed by close
                    raise self._ended() from None
                except OSError as error:
                    if sys.platform == "win32":  # a broken pipe is EINVAL there
                        raise self._ended() from error
                    raise

    def _read(self) -> tuple[dict[str, Any], list[Buffer]]:
        (length,) = struct.unpack("<I", self._read_bytes(4).tobytes())
        if length > MAX_HEADER:
            raise ServerError(f"{self.command}: the reply is no frame")
        try:
            header = json.loads(self._read_bytes(length).tobytes())
            sizes = [int(n) for n in header["buffers"]]
        except (ValueError, TypeError, KeyError) as error:
            raise ServerError(f"{self.command}: the reply is no frame: {error}") from None
        return header, [self._read_bytes(n) for n in sizes]

    def _read_bytes(self, count: int) -> Buffer:
        raw = np.empty(count, np.uint8)
        rest = raw.data
        while rest.nbytes:
            try:
                n = self._out.readinto(rest)  # type: ignore[attr-defined]
            except ValueError:  # closed by close
                n = 0
            if not n:
                raise self._ended()
            rest = rest[n:]
        return raw

    def _ended(self) -> ServerError:
        """Return the error of a server that ended by itself, with what it printed."""
        try:
            status: int | None = self._process.wait(5)
        except subprocess.TimeoutExpired:
            status = None
        text = "" if self._stderr.closed else self._tail()
        how = "closed its output" if status is None else f"ended with {f'signal {-status}' if status < 0 else f'status {status}'}"
        return ServerError(f"{self.command} serve {how}" + (f": {text}" if text else ""))

    def _tail(self) -> str:
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - 4096))
        return self._stderr.read().decode(errors="replace").strip()

    @property
    def running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None


def _widen(*pipes: IO[bytes]) -> None:
    """Enlarge the pipes where the system can: a large array then needs fewer system calls."""
    if sys.platform == "linux":
        import fcntl

        for pipe in pipes:
            try:
                fcntl.fcntl(pipe.fileno(), getattr(fcntl, "F_SETPIPE_SZ", 1031), PIPE_BYTES)
            except OSError:  # a limit of the system
                pass


_current: Server | None = None
_starting = threading.Lock()


def server() -> Server:
    """Return the server of this process, and start one if none runs."""
    global _current
    with _starting:
        if _current is None or not _current.running:
            _current = Server()
        return _current


def _forked() -> None:
    """Leave the server to the parent: a child gets its own at its first call."""
    global _current, _starting
    _starting = threading.Lock()  # another thread of the parent may have held it
    if _current is not None:
        _current.abandon()
        _current._process.returncode = 0  # else its destructor warns of a process that still runs
        _current = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


@atexit.register
def _close() -> None:
    if _current is not None:
        _current.close()
