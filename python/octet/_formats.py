"""Number formats: Octet's names and NumPy's types."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

try:
    import ml_dtypes
except ImportError:  # codes are then arrays of uint8
    ml_dtypes = None  # type: ignore[assignment]

Array = npt.NDArray[Any]

_ML_DTYPES = {
    "e4m3": "float8_e4m3fn",
    "e4m3ieee": "float8_e4m3",
    "e4m3fnuz": "float8_e4m3fnuz",
    "e5m2": "float8_e5m2",
    "e5m2fnuz": "float8_e5m2fnuz",
    "e3m4": "float8_e3m4",
    "e8m0": "float8_e8m0fnu",
    "e2m1": "float4_e2m1fn",
    "e2m3": "float6_e2m3fn",
    "e3m2": "float6_e3m2fn",
    "int4": "int4",
    "bf16": "bfloat16",
}
_NUMPY: dict[str, np.dtype[Any]] = {"fp32": np.dtype(np.float32), "fp16": np.dtype(np.float16), "int8": np.dtype(np.int8), "i32": np.dtype(np.int32)}
_NAMES = {name: octet for octet, name in _ML_DTYPES.items()} | {str(d): octet for octet, d in _NUMPY.items()}
# "e4m3" is the variant that a device has; the codes of an array are those of its type.
_NAMES["float8_e4m3fn"] = "e4m3fn"
_BITS = {"e2m1": 4, "int4": 4, "e2m3": 6, "e3m2": 6}  # others: 8


def name_of(dtype: npt.DTypeLike) -> str:
    """Return Octet's name of a format: a name such as ``"e4m3"``, or a type of NumPy or ml_dtypes."""
    if isinstance(dtype, str):
        return _NAMES.get(dtype, dtype)
    name = str(np.dtype(dtype))
    return _NAMES.get(name, name)


def numpy_type(name: str) -> np.dtype[Any] | None:
    """Return the NumPy type of a format; None if there is none, or ml_dtypes is not installed."""
    if name in _NUMPY:
        return _NUMPY[name]
    if ml_dtypes is None or name not in _ML_DTYPES:
        return None
    found = getattr(ml_dtypes, _ML_DTYPES[name], None)  # older releases lack some
    return None if found is None else np.dtype(found)


def array_of(raw: Array, name: str, shape: tuple[int, ...]) -> Array:
    """Return the codes of a format as an array: of its NumPy type, else unsigned integers."""
    dtype = numpy_type(name)
    if name == "int4" and dtype is not None:  # NumPy's has the sign in all bits of the byte
        return ((raw ^ 8).astype(np.int8) - np.int8(8)).astype(dtype).reshape(shape)
    if dtype is None:
        dtype = np.dtype(np.uint16 if name == "bf16" else np.uint8)
    return raw.view(dtype).reshape(shape)


def format_of(x: Array, dtype: npt.DTypeLike | None, parameter: str) -> str:
    """Return the format of codes: that of their type, or of uint8 the one that a parameter gives."""
    if x.dtype == np.uint8:
        if dtype is None:
            raise ValueError(f"an array of uint8: give the format of the codes by {parameter}, such as {parameter}='e4m3'")
        return name_of(dtype)
    name = name_of(x.dtype)
    if dtype is not None and name_of(dtype) not in (name, "e4m3" if name in ("e4m3fn", "e4m3ieee") else name):
        raise ValueError(f"an array of {x.dtype.name}: expected codes of {name_of(dtype)}")
    return name


def codes_of(x: Array, name: str) -> Array:
    """Return the codes of an array as uint8, one in a byte.

    Raises:
        ValueError: The elements have another size, or a code has more bits than the format.
    """
    if name == "int4" and x.dtype != np.uint8:
        return x.astype(np.int8).view(np.uint8) & np.uint8(15)
    if x.dtype.itemsize != 1:
        raise ValueError(f"an array of {x.dtype.name}: expected codes of {name}, one in a byte")
    codes = x.view(np.uint8)
    bits = _BITS.get(name, 8)
    if bits < 8 and codes.size and codes.max() >= 1 << bits:
        raise ValueError(f"code {codes.max()}: {name} has {bits} bits, so a code is below {1 << bits}; unpack codes that share a byte")
    return codes


def values_of(x: npt.ArrayLike) -> tuple[Array, str]:
    """Return values to send, float32, bfloat16 or float16, and Octet's name of their type.

    Other types of floating-point numbers and integers become float32, rounded to nearest.
    """
    a = np.asarray(x)
    if a.dtype.name in ("float32", "float16", "bfloat16"):
        if not a.dtype.isnative:
            a = a.astype(a.dtype.newbyteorder("="))
        return a, name_of(a.dtype)
    if a.dtype.kind not in "fiub" and a.dtype.name not in _NAMES:
        raise ValueError(f"an array of {a.dtype.name}: expected floating-point numbers or integers")
    with np.errstate(over="ignore"):
        return a.astype(np.float32), "fp32"
