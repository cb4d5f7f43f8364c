"""Casts, scales and GEMMs against ml_dtypes, NumPy and the command itself."""

import json
import subprocess

import ml_dtypes
import numpy as np
import pytest

import octet
from octet import binary

ALL_BF16 = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16)
FORMATS = {
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e4m3ieee": ml_dtypes.float8_e4m3,
    "e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "e5m2": ml_dtypes.float8_e5m2,
    "e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "e3m4": ml_dtypes.float8_e3m4,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
}


@pytest.mark.parametrize("name", FORMATS)
def test_cast_of_all_bf16_is_that_of_ml_dtypes(name):
    dtype = FORMATS[name]
    got = octet.cast(ALL_BF16, name, saturate=False)
    assert got.dtype == dtype and got.shape == ALL_BF16.shape
    with np.errstate(invalid="ignore"):
        want = ALL_BF16.astype(np.float32).astype(dtype)
    finite = ~np.isnan(ALL_BF16.astype(np.float32))
    nan = np.isnan(want.astype(np.float32))
    assert np.array_equal(np.isnan(got.astype(np.float32))[finite], nan[finite])
    same = finite & ~nan
    assert np.array_equal(got.view(np.uint8)[same], want.view(np.uint8)[same])


@pytest.mark.parametrize("name", FORMATS)
def test_saturating_cast_ends_at_the_maximum(name):
    top = float(ml_dtypes.finfo(FORMATS[name]).max)
    x = np.float32([top, 2 * top, np.inf, -np.inf, 0.5])
    got = octet.cast(x, FORMATS[name]).astype(np.float32)
    assert got[:4].tolist() == [top, top, top, -top]
    finite = ALL_BF16[np.abs(ALL_BF16.astype(np.float32)) <= top]
    assert np.array_equal(octet.cast(finite, name), finite.astype(np.float32).astype(FORMATS[name]))


def test_cast_to_16_bits_and_integers():
    x = np.float32([1.00390625, -3e38, 3.4e38, 1e-40, 65519, 65520])
    assert np.array_equal(octet.cast(x, "bf16", saturate=False).view(np.uint16), x.astype(ml_dtypes.bfloat16).view(np.uint16))
    with np.errstate(over="ignore"):
        assert np.array_equal(octet.cast(x, np.float16, saturate=False), x.astype(np.float16))
    assert octet.cast(np.float32([1.5, 2.5, -300]), "int8").tolist() == [2, 2, -127]
    assert octet.cast(np.float32([1.5, 2.5, -300]), "int4").astype(np.int8).tolist() == [2, 2, -7]


def test_scale_and_stochastic_rounding():
    x = np.full(1 << 16, 1.03, np.float32)
    assert octet.cast(x[:2], "e4m3", scale=2.0).astype(np.float32).tolist() == [2.0, 2.0]
    first = octet.cast(x, "e4m3", rounding="stochastic", seed=3)
    assert np.array_equal(first, octet.cast(x, "e4m3", rounding="stochastic", seed=3))
    assert not np.array_equal(first, octet.cast(x, "e4m3", rounding="stochastic", seed=4))
    assert set(first.astype(np.float32).tolist()) == {1.0, 1.125}
    assert abs(first.astype(np.float32).mean() - 1.03) < 0.002


@pytest.mark.parametrize("size", [0, 1, (1 << 18) - 1, (1 << 18) + 1, (3 << 18) + 7])
def test_pieces_of_a_cast(size):
    x = np.random.default_rng(size).standard_normal(size, dtype=np.float32)
    assert np.array_equal(octet.cast(x, "e4m3"), x.astype(ml_dtypes.float8_e4m3fn))
    assert octet.cast(x.reshape(1, -1)[:, ::-1], "e4m3").shape == (1, size)


def test_shapes_and_types():
    assert octet.cast(1.5, "e4m3").shape == ()
    x = np.arange(12, dtype=np.float64).reshape(3, 4)
    assert np.array_equal(octet.cast(x.T, "e4m3").astype(np.float64), x.T)
    assert octet.cast([1, 2], ml_dtypes.float8_e5m2).dtype == ml_dtypes.float8_e5m2
    assert octet.cast(np.float16([3]), "e4m3").astype(np.float32).tolist() == [3]
    assert np.array_equal(octet.cast(x.astype(">f4"), "e4m3").astype(np.float64), x)
    assert octet.cast([250], "e4m3", device="gaudi2").dtype == ml_dtypes.float8_e4m3


@pytest.mark.parametrize("name", FORMATS)
def test_dequantize_is_exact(name):
    codes = np.arange(1 << FORMATS[name](0).nbytes * 8 if name[1] != "2" and name[1] != "3" else 16, dtype=np.uint8)
    want = codes.view(FORMATS[name]).astype(np.float32)
    assert np.array_equal(octet.dequantize(codes, name), want, equal_nan=True)
    assert np.array_equal(octet.dequantize(codes.view(FORMATS[name]), scale_inv=0.25), want / 4, equal_nan=True)


def matrices(m, n, k, dtype, seed=1):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)


@pytest.mark.parametrize("device", [None, "h100", "b200", "gaudi2"])
@pytest.mark.parametrize("fast", [False, True])
def test_scaled_mm_is_octet_gemm(tmp_path, device, fast):
    name, dtype = ("e4m3ieee", ml_dtypes.float8_e4m3) if device == "gaudi2" else ("e4m3", ml_dtypes.float8_e4m3fn)
    a, b = matrices(5, 7, 300, dtype)
    for file, codes in (("a.txt", a), ("b.txt", b.T)):
        rows = ["".join(f"{c:02x}" for c in row) for row in np.ascontiguousarray(codes).view(np.uint8)]
        (tmp_path / file).write_text("\n".join(rows))
    command = [binary(), "gemm", tmp_path / "a.txt", tmp_path / "b.txt", "--formats", name, "--json"]
    command += ["--backend", f"emu:{device}" if device else "emu"] + ["--fast"] * fast
    printed = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    want = np.array([int(x, 16) for x in printed["bits"]], np.uint32).view(np.float32).reshape(5, 7)
    got = octet.scaled_mm(a, b, 1.0, 1.0, use_fast_accum=fast, device=device)
    assert np.array_equal(got.view(np.uint32), want.view(np.uint32))
    scaled = octet.scaled_mm(a, b, 0.5, np.float32([[4]]), use_fast_accum=fast, device=device)
    assert np.array_equal(scaled, 2 * want)
    assert np.array_equal(octet.scaled_mm(a, b, out_dtype="bf16", use_fast_accum=fast, device=device), want.astype(ml_dtypes.bfloat16))
    assert np.array_equal(octet.scaled_mm(a, b, out_dtype=np.float16, use_fast_accum=fast, device=device), want.astype(np.float16))


def test_scaled_mm_with_scales_of_rows_and_blocks():
    a, b = matrices(4, 6, 256, ml_dtypes.float8_e4m3fn)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    rng = np.random.default_rng(5)
    rows, cols = np.exp2(rng.integers(-3, 3, (4, 1))).astype(np.float32), np.exp2(rng.integers(-3, 3, (1, 6))).astype(np.float32)
    np.testing.assert_allclose(octet.scaled_mm(a, b, rows, cols), exact * rows * cols, rtol=1e-4, atol=1e-3)
    left = np.exp2(rng.integers(-3, 3, (4, 8))).astype(ml_dtypes.float8_e8m0fnu)
    right = np.exp2(rng.integers(-3, 3, (8, 6))).astype(ml_dtypes.float8_e8m0fnu)
    values = a.astype(np.float64) * np.repeat(left.astype(np.float64), 32, 1), b.astype(np.float64) * np.repeat(right.astype(np.float64), 32, 0)
    np.testing.assert_allclose(octet.scaled_mm(a, b, left, right), values[0] @ values[1], rtol=1e-4, atol=1e-3)
    left, right = np.exp2(rng.integers(-3, 3, (4, 2))).astype(np.float32), np.exp2(rng.integers(-3, 3, (2, 1))).astype(np.float32)
    values = a.astype(np.float64) * np.repeat(left, 128, 1), b.astype(np.float64) * np.repeat(right, 128, 0)
    np.testing.assert_allclose(octet.scaled_mm(a, b, left, right), values[0] @ values[1], rtol=1e-4, atol=1e-3)


def test_quantize_is_octet_quantize(tmp_path):
    x = np.random.default_rng(2).standard_normal((6, 64)).astype(np.float32)
    np.save(tmp_path / "w.npy", x)
    for words in (["--format", "e4m3", "--granularity", "row"], ["--format", "e2m1", "--granularity", "1x16", "--scale", "e4m3+fp32"],
                  ["--format", "e4m3", "--granularity", "1x32", "--scale", "e8m0", "--rounding", "stochastic", "--seed", "9"]):
        out = tmp_path / "q.npy"
        command = [binary(), "quantize", tmp_path / "w.npy", *words, "--out", out, "--json"]
        printed = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        options = dict(zip((w[2:] for w in words[::2]), words[1::2]))
        options["seed"] = int(options.get("seed", 1))
        q = octet.quantize(x, options.pop("format"), name="w", **options)
        assert np.array_equal(q.codes.view(np.uint8), np.load(out).view(np.uint8))
        assert q.bits_per_element == printed["bits_per_element"]
        assert q.relative_error == pytest.approx(printed["relative_error"], rel=1e-6)
        assert np.linalg.norm(q.dequantize() - x) / np.linalg.norm(x) == pytest.approx(q.relative_error, rel=1e-4)


def test_quantized_operands_multiply():
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((8, 64)).astype(np.float32), rng.standard_normal((5, 64)).astype(np.float32)
    for granularity, scale in (("tensor", "fp32"), ("row", "pow2"), ("1x32", "e8m0")):
        a, b = octet.quantize(x, "e4m3", granularity, scale), octet.quantize(w, "e4m3", granularity, scale)
        got = octet.scaled_mm(a.codes, b.codes.T, a.scale_inv, b.scale_inv.T)
        np.testing.assert_allclose(got, a.dequantize() @ b.dequantize().T, rtol=1e-4, atol=1e-4)


def test_without_ml_dtypes_arrays_hold_codes(monkeypatch):
    x = np.random.default_rng(4).standard_normal((4, 64)).astype(np.float32)
    words = [("e4m3", "row", "pow2"), ("e4m3", "1x32", "e8m0"), ("e2m1", "1x16", "e4m3+fp32")]
    want = [octet.quantize(x, *w) for w in words]
    monkeypatch.setattr(octet._formats, "ml_dtypes", None)
    for w, q in zip(words, want):
        got = octet.quantize(x, *w)
        assert got.codes.dtype == np.uint8 and np.array_equal(got.codes, q.codes.view(np.uint8))
        np.testing.assert_array_equal(got.dequantize(), q.dequantize())
    assert octet.cast([1], "bf16").dtype == np.uint16
    a, b = (octet.quantize(x, "e4m3", "1x32", "e8m0") for _ in range(2))
    got = octet.scaled_mm(a.codes, b.codes.T, a.scale_inv, b.scale_inv.T, format_a="e4m3", format_b="e4m3")
    np.testing.assert_allclose(got, want[1].dequantize() @ want[1].dequantize().T, rtol=1e-4, atol=1e-4)


def test_empty_matrices_multiply_as_in_numpy():
    a, b = np.zeros((3, 0), np.uint8), np.zeros((0, 2), np.uint8)
    assert octet.scaled_mm(a, b, format_a="e4m3", format_b="e4m3").tolist() == np.zeros((3, 2)).tolist()
    a, b = np.zeros((0, 8), np.int8), np.zeros((8, 2), np.int8)
    assert octet.scaled_mm(a, b, out_dtype="fp16").shape == (0, 2)


def test_a_scale_of_uint8_is_a_code_of_e8m0():
    a, b = np.full((1, 32), 0x38, np.uint8), np.full((32, 1), 0x38, np.uint8)
    formats = {"format_a": "e4m3", "format_b": "e4m3"}
    assert octet.scaled_mm(a, b, np.uint8([[128]]), np.uint8([[126]]), **formats).tolist() == [[32.0]]
    with pytest.raises(ValueError, match="scale_a has shape"):
        octet.scaled_mm(a, b, np.uint8(128), **formats)


def test_nvfp4_multiplies():
    rng = np.random.default_rng(6)
    x, w = rng.standard_normal((8, 64)).astype(np.float32), 40 * rng.standard_normal((5, 64)).astype(np.float32)
    a, b = (octet.quantize(m, "e2m1", "1x16", "e4m3+fp32") for m in (x, w))
    assert a.outer != 1
    got = octet.scaled_mm(a.codes, b.codes.T, (a.scale_inv, a.outer), (b.scale_inv.T, b.outer), device="b200")
    np.testing.assert_allclose(got, a.dequantize() @ b.dequantize().T, rtol=1e-4, atol=1e-3)


def test_integers_multiply():
    rng = np.random.default_rng(9)
    for name, top in (("int8", 127), ("int4", 7)):
        a, b = (octet.cast(rng.integers(-top, top + 1, shape), name) for shape in ((4, 32), (32, 3)))
        want = a.astype(np.int32) @ b.astype(np.int32)
        assert np.array_equal(octet.scaled_mm(a, b), want)


def test_ragged_blocks():
    rng = np.random.default_rng(7)
    x, w = rng.standard_normal((200, 300)).astype(np.float32), rng.standard_normal((7, 300)).astype(np.float32)
    for block in ("1x128", "128x128"):
        a, b = octet.quantize(x, "e4m3", block, "fp32"), octet.quantize(w, "e4m3", "1x128", "fp32")
        assert np.linalg.norm(a.dequantize() - x) / np.linalg.norm(x) == pytest.approx(a.relative_error, rel=1e-4)
        got = octet.scaled_mm(a.codes, b.codes.T, a.scale_inv, b.scale_inv.T)
        np.testing.assert_allclose(got, a.dequantize() @ b.dequantize().T, rtol=1e-4, atol=1e-4)


def test_a_device_multiplies_what_it_quantized():
    x = np.random.default_rng(8).standard_normal((16, 64)).astype(np.float32)
    q = octet.quantize(x, "e4m3", "row", "fp32", device="gaudi2")
    assert q.format == "e4m3ieee"
    got = octet.scaled_mm(q.codes, q.codes.T, q.scale_inv, q.scale_inv.T, device="gaudi2")
    np.testing.assert_allclose(got, q.dequantize() @ q.dequantize().T, rtol=1e-3, atol=1e-2)


def test_quantize_of_nan():
    q = octet.quantize([[np.nan, 1], [2, 3]], "e4m3", "row", "fp32")
    assert np.isnan(q.relative_error) and np.isnan(q.dequantize()[0, 0]) and np.isfinite(q.dequantize()[1]).all()
    assert q.saturated == 0
    assert octet.quantize([[1, 1e-9], [2, 3]], "e4m3", "row", "fp32").flushed == 0.25
    assert q == q and hash(q)


def test_values_of_other_types():
    x = np.float32([1, 2.5, -3])
    for dtype in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, np.float64, ml_dtypes.bfloat16, ">f4"):
        assert octet.cast(x.astype(dtype), "e5m2").astype(np.float32).tolist() == [1, 2.5, -3]
    assert octet.cast([1], "e4m3", seed=np.int64(3), saturate=np.bool_(True)).shape == (1,)
    assert octet.dequantize(octet.cast(x, "bf16")).tolist() == [1, 2.5, -3]
    assert octet.dequantize(octet.cast(x, "bf16").view(np.uint16), "bf16", 2).tolist() == [2, 5, -6]
    assert octet.dequantize(octet.cast(x, "fp16")).tolist() == [1, 2.5, -3]
    with pytest.raises(TypeError, match="use_fast_accum is None"):  # torch's sixth argument
        octet.scaled_mm(*matrices(2, 3, 8, ml_dtypes.float8_e4m3fn), 1.0, 1.0, None, None, "bf16")


@pytest.mark.parametrize("name", [n for n in FORMATS if n not in ("e2m1", "e2m3", "e3m2")])
def test_decoding_all_codes(name):
    codes = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(octet.dequantize(codes, name), codes.view(FORMATS[name]).astype(np.float32))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: octet.cast([1], "e4m4x"), "e4m4x"),
        (lambda: octet.cast([1], "fp32"), "expected one of up to eight bits"),
        (lambda: octet.cast([1], "e4m3", rounding="up"), "up"),
        (lambda: octet.cast([1], "e4m3", device="h1000"), "h1000"),
        (lambda: octet.cast(["a"], "e4m3"), "expected floating-point numbers or integers"),
        (lambda: octet.cast([1j], "e4m3"), "complex128"),
        (lambda: octet.dequantize(np.uint8([1])), "give the format of the codes by dtype"),
        (lambda: octet.dequantize(np.float32([1]), "e4m3"), "expected codes of e4m3"),
        (lambda: octet.quantize([1, 2], "e4m3"), "expected a matrix"),
        (lambda: octet.quantize([[1, 2]], "e4m3", "column of mine"), "granularity"),
        (lambda: octet.scaled_mm(*matrices(2, 3, 8, ml_dtypes.float8_e4m3fn)[::-1]), "both K"),
        (lambda: octet.scaled_mm(np.zeros((2, 8), np.uint8), np.zeros((8, 2), np.uint8)), "format_a"),
        (lambda: octet.scaled_mm(*matrices(2, 3, 8, ml_dtypes.float8_e4m3fn), np.ones((2, 3))), "scale_a has shape (2, 3)"),
        (lambda: octet.scaled_mm(*matrices(2, 3, 8, ml_dtypes.float8_e4m3fn), out_dtype="e4m3"), "expected fp32, bf16 or fp16"),
        (lambda: octet.scaled_mm(*matrices(2, 3, 8, ml_dtypes.float8_e5m2), device="rocket"), "rocket"),
        (lambda: octet.scaled_mm(*matrices(2, 3, 8, ml_dtypes.float8_e4m3fn), 1.0, np.ones((3, 1))), "b has shape (8, 3): expected one number, or (1, 3)"),
        (lambda: octet.scaled_mm(*matrices(2, 3, 8, ml_dtypes.float8_e4m3fn), None), "scale_a has type object"),
        (lambda: octet.scaled_mm(*matrices(2, 3, 8, ml_dtypes.float8_e4m3fn), 1j), "scale_a has type complex128"),
        (lambda: octet.scaled_mm(*matrices(2, 3, 8, ml_dtypes.float8_e4m3fn), device="gaudi2"), "gaudi2 has e4m3ieee"),
        (lambda: octet.cast([1], ml_dtypes.float8_e4m3fn, device="gaudi2"), "gaudi2 has e4m3ieee"),
        (lambda: octet.cast([1], "e4m3", device="a100"), 'device "a100": expected one of h100'),
        (lambda: octet.cast([1], "e4m3", np.ones((2, 1))), "expected one number"),
        (lambda: octet.cast([1], "e4m3", np.nan), "scale is nan"),
        (lambda: octet.cast([1], "e4m3", 1e300), "expected a finite float32"),
        (lambda: octet.cast([1], "e4m3", seed=-1), "seed is -1"),
        (lambda: octet.dequantize(np.uint8([1]), "e4m3", np.inf), "scale_inv is inf"),
        (lambda: octet.dequantize(np.uint8([16]), "e2m1"), "code 16: e2m1 has 4 bits"),
        (lambda: octet.dequantize(ml_dtypes.float8_e5m2(1), "e4m3"), "expected codes of e4m3"),
        (lambda: octet.scaled_mm(np.uint8([[0x77]]), np.uint8([[1]]), format_a="e2m1", format_b="e2m1"), "e2m1 has 4 bits"),
    ],
)
def test_wrong_arguments_are_value_errors(call, message):
    with pytest.raises(ValueError, match=".*" + "".join("\\" + c if c in "()+" else c for c in message)):
        call()
