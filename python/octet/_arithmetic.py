"""Casts, scales and GEMMs, which the server computes."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ._formats import Array, array_of, codes_of, format_of, name_of, numpy_type, values_of
from ._server import server

Floats = npt.NDArray[np.float32]


def cast(
    x: npt.ArrayLike,
    dtype: npt.DTypeLike,
    scale: float = 1.0,
    rounding: str = "nearest",
    device: str | None = None,
    *,
    seed: int = 1,
    saturate: bool = True,
) -> Array:
    """Multiply ``x`` by ``scale`` in float32 and cast it to a format.

    Args:
        x: Values, of any shape. float64 is rounded to float32 first.
        dtype: A format of up to eight bits, ``"bf16"`` or ``"fp16"``: a name such as
            ``"e4m3"``, or a type such as ``ml_dtypes.float8_e4m3fn``.
        scale: Multiplies before the cast.
        rounding: ``"nearest"``, ties to even, or ``"stochastic"``.
        device: A device model, such as ``"gaudi2"``: the name ``"e4m3"`` then means its
            variant, whose maximum is 240. Default: ``"emu"``, whose maximum is 448.
        seed: Selects the random bits of stochastic rounding.
        saturate: Saturate values beyond the format's maximum. Otherwise they become
            infinity, or NaN in a format without infinity, as in ml_dtypes. Formats with
            neither (int8, int4, e2m1, e2m3, e3m2) always saturate; NaN becomes 0 in an
            integer format, and the maximum in the others.

    Returns:
        An array with the shape of ``x``: of the type in ml_dtypes if that is installed and
        has one, else the codes as uint8 (uint16 of bf16).

    Raises:
        ValueError: The format, the rounding or the device is unknown, the device has
            another E4M3 than the type, or the scale is no finite float32.

    >>> import numpy as np, octet
    >>> x = octet.cast(np.float32([1.1, 500, -0.3]), "e4m3")
    >>> octet.dequantize(x, "e4m3").tolist()
    [1.125, 448.0, -0.3125]
    """
    values, source = values_of(x)
    reply, (raw,) = server().call(
        "cast", [values], count=values.size, source=source, format=name_of(dtype), device=device or "",
        scale=_scale_of(scale, "scale"), rounding=rounding, seed=_seed_of(seed), saturate=_flag_of(saturate, "saturate"),
    )
    return array_of(raw, reply["format"], values.shape)


def _scale_of(scale: Any, parameter: str) -> float:
    """Return a scale of a whole array, finite in float32."""
    if np.size(scale) != 1:
        raise ValueError(f"{parameter} has shape {np.shape(scale)}: expected one number; octet.quantize has scales of rows and blocks")
    value = float(np.asarray(scale).reshape(()))
    if not math.isfinite(value) or abs(value) > float(np.finfo(np.float32).max):
        raise ValueError(f"{parameter} is {value}: expected a finite float32")
    return value


def _seed_of(seed: Any) -> int:
    value = operator.index(seed)
    if not 0 <= value < 1 << 64:
        raise ValueError(f"seed is {value}: expected 0 to 2^64-1")
    return value


def _flag_of(flag: Any, parameter: str) -> bool:
    if not isinstance(flag, (bool, np.bool_)):
        raise TypeError(f"{parameter} is {flag!r}: expected True or False")
    return bool(flag)


def dequantize(codes: npt.ArrayLike, dtype: npt.DTypeLike | None = None, scale_inv: float = 1.0) -> Floats:
    """Return the float32 values of codes, multiplied by ``scale_inv``.

    Args:
        codes: An array of a type of ml_dtypes, or codes as uint8, one in a byte (uint16 of
            bf16).
        dtype: The format. Default: the type of ``codes``.
        scale_inv: Multiplies the values.

    Raises:
        ValueError: The format is missing or unknown, or a code has more bits than it.

    >>> import numpy as np, octet
    >>> octet.dequantize(np.uint8([0x38, 0x7e]), "e4m3", scale_inv=0.5).tolist()
    [0.5, 224.0]
    """
    a, factor = np.asarray(codes), _scale_of(scale_inv, "scale_inv")
    if a.dtype == np.uint16 and dtype is not None and name_of(dtype) == "bf16":
        return (a.astype(np.uint32) << 16).view(np.float32) * np.float32(factor)
    if a.dtype.name in ("bfloat16", "float16") and dtype is None:
        return a.astype(np.float32) * np.float32(factor)
    name = format_of(a, dtype, "dtype")
    _, (raw,) = server().call("decode", [codes_of(a, name)], count=a.size, format=name, scale_inv=factor)
    return raw.view(np.float32).reshape(a.shape)


@dataclass(frozen=True, eq=False)
class Quantized:
    """A matrix of codes with its scales. A value is ``code * scale_inv * outer``.

    Attributes:
        codes: [rows, cols], see :func:`cast`.
        scale_inv: One for each block, [rows of blocks, columns of blocks].
        outer: The scale_inv of the whole matrix in NVFP4; else 1.
        format: The format of the codes, such as ``"e4m3"``.
        scale_format: The format of the scales, such as ``"fp32"`` and ``"e8m0"``.
        block: The elements that share a scale: ``"tensor"``, ``"1x*"`` for a row, ``"1x32"``.
        bits_per_element: Storage of codes and scales.
        relative_error: The norm of the errors over the norm of the matrix; NaN of a matrix
            that is not finite.
        saturated: Share of the elements that exceeded the largest value by more than half a step.
        flushed: Share of the elements other than 0 that became 0.
    """

    codes: Array
    scale_inv: Array
    outer: float
    format: str
    scale_format: str
    block: str
    bits_per_element: float
    relative_error: float
    saturated: float
    flushed: float

    def dequantize(self) -> Floats:
        """Return the values."""
        rows, cols = self.codes.shape
        height, width = _sides(self.block, rows, cols)
        scales = self.scale_inv
        if scales.dtype == np.uint8:  # codes, without ml_dtypes
            scales = dequantize(scales, self.scale_format)
        each = np.repeat(np.repeat(scales.astype(np.float32), height, 0)[:rows], width, 1)[:, :cols]
        values: Floats = dequantize(self.codes, self.format) * each * np.float32(self.outer)
        return values


def _sides(block: str, rows: int, cols: int) -> tuple[int, int]:
    if block == "tensor":
        return rows, cols
    height, width = block.split("x")
    return rows if height == "*" else int(height), cols if width == "*" else int(width)


def quantize(
    x: npt.ArrayLike,
    dtype: npt.DTypeLike,
    granularity: str = "tensor",
    scale: str = "pow2",
    rounding: str = "nearest",
    device: str | None = None,
    *,
    seed: int = 1,
    name: str = "input",
) -> Quantized:
    """Cast a matrix with scales from its own values, as ``octet quantize`` does.

    Args:
        x: A matrix. Blocks lie along its rows, K of a GEMM.
        dtype: A format of up to eight bits, see :func:`cast`.
        granularity: Elements that share a scale: ``"tensor"``, ``"row"``, or a block's rows
            and columns, such as ``"1x32"``.
        scale: The format of the scales: ``"pow2"``, ``"fp32"``, ``"e8m0"``, ``"e8m0:floor"``, or
            ``"e4m3+fp32"`` for NVFP4.
        rounding: ``"nearest"`` or ``"stochastic"``.
        device: See :func:`cast`.
        seed: Selects the random bits of stochastic rounding.
        name: Name of the tensor, on which the random bits depend, too.

    Raises:
        ValueError: ``x`` is not a matrix, or a word is unknown.

    >>> import numpy as np, octet
    >>> q = octet.quantize(np.float32([[1, 2], [3, 1000]]), "e4m3", "row")
    >>> q.scale_inv.tolist()
    [[0.0078125], [4.0]]
    >>> q.dequantize().tolist()
    [[1.0, 2.0], [3.0, 1024.0]]
    """
    values, source = values_of(x)
    if values.ndim != 2:
        raise ValueError(f"an array of shape {values.shape}: expected a matrix")
    rows, cols = values.shape
    r, (codes, scales) = server().call(
        "quantize", [values], rows=rows, cols=cols, source=source, format=name_of(dtype), device=device or "",
        granularity="row" if granularity == "1x*" else granularity, scale=scale, rounding=rounding, seed=_seed_of(seed), name=name,
    )
    return Quantized(
        array_of(codes, r["format"], (rows, cols)), array_of(scales, r["scale_format"], (r["scale_rows"], r["scale_cols"])),
        _number(r["outer"]), r["format"], r["scale_format"], r["block"], r["bits_per_element"],
        math.sqrt(_number(r["relative_noise"])), _number(r["saturated"]), _number(r["flushed"]),
    )


def _number(value: float | None) -> float:
    """Return a number of a reply, in which NaN and infinity are null."""
    return math.nan if value is None else value


def scaled_mm(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    scale_a: Any = 1.0,
    scale_b: Any = 1.0,
    out_dtype: npt.DTypeLike | None = None,
    use_fast_accum: bool = False,
    device: str | None = None,
    *,
    format_a: npt.DTypeLike | None = None,
    format_b: npt.DTypeLike | None = None,
) -> Array:
    """Multiply two matrices of codes as a device does, after ``torch._scaled_mm``.

    Args:
        a: [M, K], of a type of ml_dtypes, or codes as uint8 with ``format_a``.
        b: [K, N]. A transposed array, as torch requires, is not copied.
        scale_a: scale_inv of ``a``, which multiplies its values: a number; [M, 1] for rows;
            [M, K/32] as E8M0 (MX), codes of uint8 included; [M, K/128] or [M/128, K/128] as
            float32. A pair for NVFP4: [M, K/16] as E4M3, and a number.
        scale_b: scale_inv of ``b``: a number, [1, N] for columns, or the transpose of a
            shape of ``scale_a``.
        out_dtype: float32 (default), ``"bf16"`` or float16, rounded to nearest from the sum.
        use_fast_accum: Accumulate in the matrix unit alone. Otherwise partial sums are
            promoted to FP32 where the device does so.
        device: A device model, such as ``"h100"``. Default: ``"emu"``, which sums in FP32.
        format_a: The format of ``a``, if it is an array of uint8.
        format_b: The format of ``b``.

    Returns:
        [M, N].

    Raises:
        ValueError: Shapes do not fit, or the device has no such GEMM.

    >>> import numpy as np, octet
    >>> a = octet.cast(np.float32([[1, 2], [3, 4]]), "e4m3")
    >>> octet.scaled_mm(a, a.T, 0.5, 0.5, format_a="e4m3", format_b="e4m3").tolist()
    [[1.25, 2.75], [2.75, 6.25]]
    """
    left, right = np.asarray(a), np.asarray(b)
    if left.ndim != 2 or right.ndim != 2:
        raise ValueError(f"shapes {left.shape} and {right.shape}: expected two matrices")
    if left.shape[1] != right.shape[0]:
        raise ValueError(f"shapes {left.shape} and {right.shape}: a has {left.shape[1]} columns and b {right.shape[0]} rows, both K")
    fast, out = _flag_of(use_fast_accum, "use_fast_accum"), "fp32" if out_dtype is None else name_of(out_dtype)
    fields, buffers = _operand(left, scale_a, format_a, "a")
    more_fields, more = _operand(right, scale_b, format_b, "b")
    shape = left.shape[0], right.shape[1]
    if 0 in (*shape, left.shape[1]):
        return np.zeros(shape, numpy_type(out) or np.uint16)
    _, (raw,) = server().call("scaled_mm", buffers + more, device=device or "", a=fields, b=more_fields, fast=fast, out=out)
    return array_of(raw, out, shape)


def _operand(x: Array, scale: Any, dtype: npt.DTypeLike | None, side: str) -> tuple[dict[str, Any], list[Array]]:
    """Describe an operand, whose rows are those of a or the columns of b, and return its buffers."""
    name, outer = format_of(x, dtype, f"format_{side}"), 0.0
    kind, blocks = "fp32", ["1x*", "1x128", "128x128"]
    if isinstance(scale, (tuple, list)) and len(scale) == 2 and np.ndim(scale[0]) == 2:
        kind, blocks, outer = "e4m3", ["1x16"], _scale_of(scale[1], f"the second scale_{side}")
        scale = scale[0]
    given = np.asarray(scale)
    if kind == "fp32" and given.dtype.name in ("float8_e8m0fnu", "uint8"):
        kind, blocks = "e8m0", ["1x32"]
    if given.dtype.kind not in "fiu" and given.dtype.name not in ("float8_e8m0fnu", "float8_e4m3fn", "bfloat16"):
        raise ValueError(f"scale_{side} has type {given.dtype.name}: expected numbers")
    codes, scales = (x, given) if side == "a" else (x.T, given.T)
    rows, k = codes.shape
    block = "tensor" if kind == "fp32" and given.size == 1 else None
    shapes = {each: _shape_of_scales(each, rows, k) for each in blocks}
    if block is None and given.ndim == 2:
        block = next((each for each, shape in shapes.items() if scales.shape == shape), None)
    if block is None:
        expected = [shape if side == "a" else shape[::-1] for shape in shapes.values()]
        raise ValueError(
            f"scale_{side} has shape {given.shape} and type {given.dtype.name}, {side} has shape {x.shape}:"
            f" expected {'one number, or ' if kind == 'fp32' else ''}{' or '.join(map(str, dict.fromkeys(expected)))}"
        )
    buffer = scales.astype(np.float32) if kind == "fp32" else codes_of(scales, kind)
    return (
        {"format": name, "rows": rows, "cols": k, "block": block, "scale": kind, "outer": outer},
        [codes_of(codes, name), buffer],
    )


def _shape_of_scales(block: str, rows: int, k: int) -> tuple[int, int]:
    height, width = _sides(block, rows, k)
    return -(-rows // height) if rows else 0, -(-k // width) if k else 0

