"""Octet trains large language models in FP8; this package has its arithmetic in NumPy.

Casts, scales and GEMMs equal those of the ``octet`` command bit for bit. The command computes
them in a process of its own, with the arithmetic of the devices that it models: H100, B200,
Gaudi 2 and others.

>>> import numpy as np, octet
>>> octet.dequantize(octet.cast(np.float32([300, 0.1]), "e4m3", device="gaudi2"), "e4m3ieee").tolist()
[240.0, 0.1015625]

``octet.open(run)`` reads the folder of a run: metrics, checkpoints, tensors.
"""

from importlib import metadata as _metadata

from . import _server
from ._arithmetic import Quantized, cast, dequantize, quantize, scaled_mm
from ._run import Checkpoint, Run, Series, open_checkpoint
from ._run import open as open  # not in __all__: it would replace the builtin
from ._server import Error, ServerError, binary

__all__ = [
    "Checkpoint", "Error", "Quantized", "Run", "Series", "ServerError",
    "binary", "cast", "dequantize", "devices", "open_checkpoint", "quantize", "scaled_mm", "version",
]

try:
    __version__ = _metadata.version("octet")
except _metadata.PackageNotFoundError:  # not installed: the sources are on the path
    __version__ = "unknown"


def version() -> str:
    """Return the version of the octet command."""
    return _server.server().version


def devices() -> tuple[str, ...]:
    """Return the names of the device models, for the parameter ``device``."""
    return _server.server().devices
