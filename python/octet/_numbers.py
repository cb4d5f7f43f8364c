"""Casts, scales and GEMMs, with the bits of the octet command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ._formats import Array, array_of, codes_of, name_of, values_of
from ._server import server


def cast(
    x: Any,
    dtype: Any,
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
        device: A device model, such as ``"gaudi2"``: ``"e4m3"`` is then its variant, with a
            maximum of 240 there. Default: ``"emu"``, whose E4M3 ends at 448.
        seed: Selects the random bits of stochastic rounding.
        saturate: Whether larger values become the largest one. Otherwise they become
            infinity, or NaN in a format without infinity, as in ml_dtypes.

    Returns:
        An array with the shape of ``x``: of the type in ml_dtypes if that is installed and
        has one, else the codes as uint8 (uint16 of bf16).

    Raises:
        ValueError: The format, the rounding or the device is unknown.

    >>> import numpy as np, octet
    >>> x = octet.cast(np.float32([1.1, 500, -0.3]), "e4m3")
    >>> octet.dequantize(x, "e4m3").tolist()
    [1.125, 448.0, -0.3125]
    """
    values, source = values_of(x)
    reply, (raw,) = server().call(
        "cast", [values], count=values.size, source=source, format=name_of(dtype), device=device or "",
        scale=float(scale), rounding=rounding, seed=seed, saturate=saturate,
    )
    return array_of(raw, reply["format"], values.shape)


def dequantize(codes: Any, dtype: Any = None, scale_inv: float = 1.0) -> Array:
    """Return the float32 values of codes, multiplied by ``scale_inv``.

    Args:
        codes: An array of a type of ml_dtypes, or codes as uint8, one in a byte.
        dtype: The format. Default: the type of ``codes``.
        scale_inv: Multiplies the values.

    Raises:
        ValueError: The format is missing or unknown.

    >>> import numpy as np, octet
    >>> octet.dequantize(np.uint8([0x38, 0x7e]), "e4m3", scale_inv=0.5).tolist()
    [0.5, 224.0]
    """
    a = np.asarray(codes)
    name = _format_of(a, dtype, "dtype")
    _, (raw,) = server().call("decode", [codes_of(a, name)], count=a.size, format=name, scale_inv=float(scale_inv))
    return raw.view(np.float32).reshape(a.shape)


@dataclass(frozen=True)
class Quantized:
    """A matrix of codes with its scales. A value is ``code * scale_inv * outer``.

    Attributes:
        codes: [rows, cols], see :func:`cast`.
        scale_inv: One for each block, [rows of blocks, columns of blocks].
        outer: A further scale_inv of the whole matrix, as NVFP4 has one; else 1.
        format: The format of the codes, such as ``"e4m3"``.
        scale_format: The format of the scales, such as ``"fp32"`` and ``"e8m0"``.
        block: The elements that share a scale: ``"tensor"``, ``"1x*"`` for a row, ``"1x32"``.
        bits_per_element: Codes and scales, stored without gaps.
        relative_error: The norm of the errors over the norm of the matrix.
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

    def dequantize(self) -> Array:
        """Return the values, float32."""
        rows, cols = self.codes.shape
        height, width = _sides(self.block, rows, cols)
        scales = self.scale_inv
        if scales.dtype == np.uint8:  # codes, without ml_dtypes
            scales = dequantize(scales, self.scale_format)
        each = np.repeat(np.repeat(scales.astype(np.float32), height, 0)[:rows], width, 1)[:, :cols]
        return dequantize(self.codes, self.format) * each * np.float32(self.outer)


def _sides(block: str, rows: int, cols: int) -> tuple[int, int]:
    if block == "tensor":
        return rows, cols
    height, width = block.split("x")
    return rows if height == "*" else int(height), cols if width == "*" else int(width)


def quantize(
    x: Any,
    dtype: Any,
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
        granularity=granularity, scale=scale, rounding=rounding, seed=seed, name=name,
    )
    return Quantized(
        array_of(codes, r["format"], (rows, cols)), array_of(scales, r["scale_format"], (r["scale_rows"], r["scale_cols"])),
        r["outer"], r["format"], r["scale_format"], r["block"], r["bits_per_element"], float(np.sqrt(r["relative_noise"])), r["saturated"], r["flushed"],
    )


def scaled_mm(
    a: Any,
    b: Any,
    scale_a: Any = 1.0,
    scale_b: Any = 1.0,
    out_dtype: Any = None,
    use_fast_accum: bool = False,
    device: str | None = None,
    *,
    format_a: Any = None,
    format_b: Any = None,
) -> Array:
    """Multiply two matrices of codes as a device does, after ``torch._scaled_mm``.

    Args:
        a: [M, K], of a type of ml_dtypes, or codes as uint8 with ``format_a``.
        b: [K, N]. A transposed array, as torch requires, is not copied.
        scale_a: scale_inv of ``a``, which multiplies its values: a number, [M, 1] for rows,
            or [M, K/32] as E8M0 (MX), [M, K/128] or [M/128, K/128] as float32.
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
    a, b = np.asarray(a), np.asarray(b)
    if a.ndim != 2 or b.ndim != 2:
        raise ValueError(f"shapes {a.shape} and {b.shape}: expected two matrices")
    if a.shape[1] != b.shape[0]:
        raise ValueError(f"shapes {a.shape} and {b.shape}: a has {a.shape[1]} columns and b {b.shape[0]} rows, both K")
    left, buffers = _operand(a, np.asarray(scale_a), format_a, "a")
    right, more = _operand(b.T, np.asarray(scale_b).T, format_b, "b")
    out = "fp32" if out_dtype is None else name_of(out_dtype)
    _, (raw,) = server().call("scaled_mm", buffers + more, device=device or "", a=left, b=right, fast=use_fast_accum, out=out)
    return array_of(raw, out, (a.shape[0], b.shape[1]))


def _operand(x: Array, scale: Array, dtype: Any, side: str) -> tuple[dict[str, Any], list[Array]]:
    """Describe an operand whose rows are dot products' operands, and return its buffers."""
    name = _format_of(x, dtype, f"format_{side}")
    rows, k = x.shape
    if scale.size == 1:
        return _described(name, x, "tensor", scale.astype(np.float32))
    if scale.ndim != 2:
        raise ValueError(f"scale_{side} has shape {scale.shape}: expected a number or a matrix")
    kind = "e8m0" if scale.dtype.name in ("float8_e8m0fnu", "uint8") else "fp32"
    blocks = {"e8m0": ["1x32"], "fp32": ["1x*", "1x128", "128x128"]}[kind]
    for block in blocks:
        height, width = _sides(block, rows, k)
        if scale.shape == (-(-rows // height), -(-k // width)):
            return _described(name, x, block, scale.view(np.uint8) if kind == "e8m0" else scale.astype(np.float32), kind)
    raise ValueError(
        f"scale_{side} has shape {scale.shape if side == 'a' else scale.T.shape} and type {scale.dtype.name} for {rows} rows"
        f" of K = {k}: expected one scale, or one for each {', '.join(blocks)}"
    )


def _described(name: str, x: Array, block: str, scale: Array, kind: str = "fp32") -> tuple[dict[str, Any], list[Array]]:
    return {"format": name, "rows": x.shape[0], "cols": x.shape[1], "block": block, "scale": kind}, [codes_of(x, name), scale]


def _format_of(x: Array, dtype: Any, parameter: str) -> str:
    """Return the format of codes: that of a parameter, or that of their type."""
    if dtype is not None:
        name = name_of(dtype)
    elif x.dtype == np.uint8:
        raise ValueError(f"an array of uint8: give the format of the codes by {parameter}, such as {parameter}='e4m3'")
    else:
        name = name_of(x.dtype)
    if x.dtype != np.uint8 and name_of(x.dtype) != name:
        raise ValueError(f"an array of {x.dtype.name}: expected codes of {name}")
    return name
