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

Buffer = npt.NDArray[Any]


class Error(RuntimeError):
    """An operation of Octet failed, for another reason than its arguments."""


class ServerError(Error):
    """The server ended, or its answer was not understood."""


def binary() -> str:
    """Return the path of the octet command.

    It is the environment variable ``OCTET_BINARY``, or the command that the wheel
    installed, or the first ``octet`` on the ``PATH``.
    """
    if path := os.environ.get("OCTET_BINARY"):
        return path
    name = "octet.exe" if sys.platform == "win32" else "octet"
    try:
        files = importlib.metadata.distribution("octet").files or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == name and os.path.isfile(installed := os.path.normpath(str(file.locate()))):
            return installed
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
            self._process = subprocess.Popen(
                [self.command, "serve", "--stdio"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, bufsize=0,
            )
        except OSError as error:
            raise ServerError(f"{self.command}: {error.strerror}") from error
        assert self._process.stdin is not None and self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        _widen(self._in, self._out)
        self.pid = os.getpid()
        hello, _ = self._read()
        if hello.get("protocol") != PROTOCOL:
            self.close()
            raise ServerError(
                f"{self.command} speaks protocol {hello.get('protocol')}, this package {PROTOCOL}:"
                " install both from the same wheel"
            )
        self.version = str(hello.get("version"))
        self.devices = tuple(hello.get("devices", ()))

    def call(self, op: str, buffers: Sequence[Buffer] = (), **fields: Any) -> tuple[dict[str, Any], list[Buffer]]:
        """Send a request and return the header and the buffers of its answer."""
        views = [np.ascontiguousarray(b).reshape(-1).view(np.uint8).data if b.size else memoryview(b"") for b in buffers]
        fields |= {"op": op, "buffers": [v.nbytes for v in views]}
        header = json.dumps(fields).encode()
        with self._lock:
            try:
                self._write([struct.pack("<I", len(header)) + header, *views])
            except (OSError, ValueError):
                raise self._ended() from None
            reply, payload = self._read()
        if "error" in reply:
            kind = {"value": ValueError, "missing": FileNotFoundError}.get(str(reply.get("kind")), Error)
            raise kind(reply["error"])
        return reply, payload

    def close(self) -> None:
        """End the server."""
        if os.getpid() != self.pid:
            return  # of the process that forked
        for pipe in (self._in, self._out):
            try:
                pipe.close()
            except OSError:
                pass
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stderr.close()

    def _write(self, parts: Iterable[bytes | memoryview]) -> None:
        for part in parts:
            rest = memoryview(part)
            while rest.nbytes:
                rest = rest[self._in.write(rest):]

    def _read(self) -> tuple[dict[str, Any], list[Buffer]]:
        (length,) = struct.unpack("<I", self._read_bytes(4).tobytes())
        try:
            header: dict[str, Any] = json.loads(self._read_bytes(length).tobytes())
        except ValueError as error:
            raise ServerError(f"{self.command}: the answer is no frame: {error}") from None
        return header, [self._read_bytes(n) for n in header.get("buffers", ())]

    def _read_bytes(self, count: int) -> Buffer:
        raw = np.empty(count, np.uint8)
        rest = raw.data
        while rest.nbytes:
            try:
                n = self._out.readinto(rest)  # type: ignore[attr-defined]
            except (OSError, ValueError):
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
            self._process.kill()
            status = None
        text = "" if self._stderr.closed else self._tail()
        how = f"signal {-status}" if status is not None and status < 0 else f"status {status}"
        return ServerError(f"{self.command} serve ended with {how}" + (f": {text}" if text else ""))

    def _tail(self) -> str:
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - 4096))
        return self._stderr.read().decode(errors="replace").strip()

    @property
    def running(self) -> bool:
        """Whether this process started the server and it has not ended."""
        return self.pid == os.getpid() and self._process.poll() is None


def _widen(*pipes: IO[bytes]) -> None:
    """Enlarge the pipes where the system can: a large array then needs fewer system calls."""
    try:
        import fcntl

        for pipe in pipes:
            fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    except (ImportError, AttributeError, OSError):
        pass


_current: Server | None = None
_starting = threading.Lock()


def server() -> Server:
    """Return the server of this process, and start one if none runs.

    A server that ended is replaced: the call in which it ended raised ServerError. After
    a fork, the child gets a server of its own.
    """
    global _current
    with _starting:
        if _current is None or not _current.running:
            _current = Server()
        return _current


@atexit.register
def _close() -> None:
    if _current is not None:
        _current.close()
