"""Octet trains large language models in FP8; this package computes with its numbers.

Casts, scales and GEMMs have the bits of the ``octet`` command, which computes them in a
process of its own, and of the device models that it has: H100, B200, Gaudi 2 and others.

>>> import numpy as np, octet
>>> octet.dequantize(octet.cast(np.float32([300, 0.1]), "e4m3", device="gaudi2"), "e4m3ieee").tolist()
[240.0, 0.1015625]

``octet.open(run)`` reads the folder of a run: metrics, checkpoints, tensors.
"""

from ._numbers import Quantized, cast, dequantize, quantize, scaled_mm
from ._run import Checkpoint, Run, Series, open, open_checkpoint
from ._server import Error, ServerError, server

__all__ = [
    "Checkpoint", "Error", "Quantized", "Run", "Series", "ServerError",
    "cast", "dequantize", "devices", "open", "open_checkpoint", "quantize", "scaled_mm", "version",
]


def version() -> str:
    """Return the version of the octet command."""
    return server().version


def devices() -> tuple[str, ...]:
    """Return the names of the device models, for the parameter ``device``."""
    return server().devices
