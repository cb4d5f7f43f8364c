package serve

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	_ "octet/backend/emu"
	"octet/fp8"
	"octet/internal/gemm"
)

// frame returns a request with a header and buffers.
func frame(t testing.TB, header map[string]any, buffers ...[]byte) []byte {
	sizes := []int{}
	for _, b := range buffers {
		sizes = append(sizes, len(b))
	}
	header["buffers"] = sizes
	text, err := json.Marshal(header)
	require.NoError(t, err)
	raw := binary.LittleEndian.AppendUint32(nil, uint32(len(text)))
	return bytes.Join(append([][]byte{append(raw, text...)}, buffers...), nil)
}

// answer is a frame of the server.
type answer struct {
	fields  map[string]any
	buffers [][]byte
}

// readAnswer reads a frame as a client does.
func readAnswer(t testing.TB, r io.Reader) answer {
	var length [4]byte
	_, err := io.ReadFull(r, length[:])
	require.NoError(t, err)
	text := make([]byte, binary.LittleEndian.Uint32(length[:]))
	_, err = io.ReadFull(r, text)
	require.NoError(t, err)
	a := answer{fields: map[string]any{}}
	require.NoError(t, json.Unmarshal(text, &a.fields))
	for _, size := range a.fields["buffers"].([]any) {
		b := make([]byte, int(size.(float64)))
		_, err := io.ReadFull(r, b)
		require.NoError(t, err)
		a.buffers = append(a.buffers, b)
	}
	return a
}

// exchange sends requests and returns the answers, without the server's first frame.
func exchange(t testing.TB, requests ...[]byte) (list []answer) {
	var out bytes.Buffer
	require.NoError(t, Serve(t.Context(), bytes.NewReader(bytes.Join(requests, nil)), &out, Options{Version: "v1", Threads: 1}))
	first := readAnswer(t, &out)
	require.Equal(t, 1.0, first.fields["protocol"])
	require.Equal(t, "v1", first.fields["version"])
	require.Contains(t, first.fields["devices"], "h100")
	for range requests {
		list = append(list, readAnswer(t, &out))
	}
	require.Zero(t, out.Len(), "an answer for each request")
	return list
}

func normal(n int) []float32 {
	r := rand.New(rand.NewPCG(1, 2))
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

func castOf(count int, more map[string]any) map[string]any {
	h := map[string]any{"op": "cast", "count": count, "source": "fp32", "format": "e4m3", "scale": 1, "rounding": "nearest", "saturate": true}
	for k, v := range more {
		h[k] = v
	}
	return h
}

func TestCast(t *testing.T) {
	x := normal(piece + 77)
	raw := fp8.AppendFloats(nil, x...)
	list := exchange(t,
		frame(t, castOf(len(x), map[string]any{"scale": 3}), raw),
		frame(t, castOf(len(x), map[string]any{"rounding": "stochastic", "seed": 5}), raw),
		frame(t, castOf(3, map[string]any{"saturate": false}), fp8.AppendFloats(nil, 1000, -2, 0.1)),
		frame(t, castOf(2, map[string]any{"device": "gaudi2"}), fp8.AppendFloats(nil, 1000, -2)),
		frame(t, castOf(0, nil), nil),
		frame(t, castOf(2, map[string]any{"format": "bf16", "source": "bf16", "scale": 2}), []byte{0x80, 0x3f, 0x00, 0x40}),
		frame(t, castOf(len(x), map[string]any{"rounding": "stochastic", "seed": 5, "saturate": false, "scale": 200}), raw),
		frame(t, castOf(1, map[string]any{"device": "GAUDI2", "format": "e5m2"}), fp8.AppendFloats(nil, 1)),
	)
	want := make([]uint8, len(x))
	fp8.Quantize8(want, x, fp8.E4M3, 3, false)
	require.Equal(t, want, list[0].buffers[0])
	require.Equal(t, "e4m3", list[0].fields["format"])
	fp8.Quantize8Stochastic(want, x, fp8.E4M3, 1, fp8.StreamKey(5, 0, fp8.NameKey("cast")), 0, false)
	require.Equal(t, want, list[1].buffers[0], "the index of an element counts from the begin of the array")
	require.Equal(t, []byte{0x7f, 0xc0, 0x1d}, list[2].buffers[0])
	require.Equal(t, "e4m3ieee", list[3].fields["format"])
	require.Equal(t, []byte{0x77, 0xc0}, list[3].buffers[0], "240")
	require.Empty(t, list[4].buffers[0])
	require.Equal(t, []byte{0x00, 0x40, 0x80, 0x40}, list[5].buffers[0])
	for i, v := range x {
		code := fp8.E4M3.Stochastic(v*200, fp8.Random(fp8.StreamKey(5, 0, fp8.NameKey("cast")), uint64(i)), fp8.NonSaturating)
		require.Equal(t, byte(code), list[6].buffers[0][i], i)
	}
	require.Equal(t, []byte{0x3c}, list[7].buffers[0])
}

// A scale that the client does not give is 1.
func TestDefaultScale(t *testing.T) {
	h := castOf(1, nil)
	delete(h, "scale")
	list := exchange(t,
		frame(t, h, fp8.AppendFloats(nil, 1)),
		frame(t, map[string]any{"op": "decode", "count": 1, "format": "e4m3fn"}, []byte{0x38}),
		frame(t, map[string]any{"op": "decode", "count": 1, "format": "e8m0"}, []byte{0x80}),
	)
	require.Equal(t, []byte{0x38}, list[0].buffers[0])
	require.Equal(t, fp8.AppendFloats(nil, 1), list[1].buffers[0])
	require.Equal(t, fp8.AppendFloats(nil, 2), list[2].buffers[0])
}

func TestDecode(t *testing.T) {
	codes := make([]byte, 256)
	for i := range codes {
		codes[i] = byte(i)
	}
	codes = bytes.Repeat(codes, piece/256+1) // more than a piece
	a := exchange(t, frame(t, map[string]any{"op": "decode", "count": len(codes), "format": "e5m2", "scale_inv": 0.5}, codes))[0]
	for i, code := range codes {
		got := math.Float32frombits(binary.LittleEndian.Uint32(a.buffers[0][4*i:]))
		want := fp8.E5M2.Float32(uint32(code)) * 0.5
		require.True(t, got == want || got != got && want != want, code)
	}
}

// Statistics that are not finite are null, which JSON has.
func TestQuantizeOfNaN(t *testing.T) {
	h := map[string]any{"op": "quantize", "rows": 2, "cols": 2, "source": "fp32", "format": "e4m3", "device": "gaudi2", "granularity": "row", "scale": "pow2", "rounding": "nearest", "name": "x"}
	nan := float32(math.NaN())
	list := exchange(t, frame(t, h, fp8.AppendFloats(nil, nan, 1, 2, 240)), frame(t, h, fp8.AppendFloats(nil, 1, 1e-9, 2, 3)))
	require.NotContains(t, list[0].fields, "error")
	require.Contains(t, list[0].fields, "relative_noise")
	require.Nil(t, list[0].fields["relative_noise"])
	require.Equal(t, "e4m3ieee", list[0].fields["format"])
	require.Equal(t, []byte{0x40, 0x77}, list[0].buffers[0][2:])
	require.Equal(t, []any{0.0, 0.25}, []any{list[1].fields["saturated"], list[1].fields["flushed"]})
}

// A reply whose header is too long becomes an error, and the server goes on.
func TestLongReply(t *testing.T) {
	var out bytes.Buffer
	w := bufio.NewWriter(&out)
	require.NoError(t, reply{fields: map[string]string{"x": strings.Repeat("x", maxHeader)}}.write(w))
	a := readAnswer(t, &out)
	require.Equal(t, "failure", a.fields["kind"])
	require.Contains(t, a.fields["error"], "a frame has at most")
}

// A wrong request is answered, and the server goes on.
func TestWrongRequests(t *testing.T) {
	big := make([]byte, 100_000)
	a, b := gemm.Random(1, fp8.E4M3, 4, 32), gemm.Random(2, fp8.E4M3, 3, 32)
	wrongMM := func(more map[string]any, drop int) []byte {
		h, buffers := multiplyOf(a, b, more)
		return frame(t, h, buffers[drop:]...)
	}
	quantize := map[string]any{"op": "quantize", "rows": 2, "cols": 2, "source": "fp32", "format": "e4m3", "granularity": "tensor", "scale": "pow2", "rounding": "nearest", "name": "x"}
	with := func(m map[string]any, key string, value any) map[string]any {
		c := map[string]any{key: value}
		for k, v := range m {
			if k != key {
				c[k] = v
			}
		}
		return c
	}
	for _, x := range []struct {
		want    string
		kind    string
		request []byte
	}{
		{`operation "fly": expected one of [cast checkpoint decode`, "value", frame(t, map[string]any{"op": "fly"}, big)},
		{"unknown field", "value", frame(t, castOf(0, map[string]any{"sclae": 2}), nil)},
		{"0 buffers: expected 1", "value", frame(t, castOf(2, nil))},
		{"buffer 0 has 100000 bytes: expected 8", "value", frame(t, castOf(2, nil), big)},
		{"an array of -1 elements", "value", frame(t, castOf(-1, nil), big)},
		{"an array of 1099511627776 elements", "value", frame(t, castOf(1<<40, nil), big)},
		{"values in e4m3: expected fp32, bf16 or fp16", "value", frame(t, castOf(1, map[string]any{"source": "e4m3"}), []byte{1})},
		{"format fp32: expected one of up to eight bits", "value", frame(t, castOf(1, map[string]any{"format": "fp32"}), []byte{1, 2, 3, 4})},
		{`device "rocket": expected one of h100, `, "value", frame(t, castOf(1, map[string]any{"device": "rocket"}), []byte{1, 2, 3, 4})},
		{"gaudi2 has e4m3ieee", "value", frame(t, castOf(1, map[string]any{"device": "gaudi2", "format": "e4m3fn"}), []byte{1, 2, 3, 4})},
		{"1 buffers: expected 4", "value", wrongMM(nil, 3)},
		{"expected at most 1073741824 elements", "value", wrongMM(map[string]any{"a": operandOf("e4m3", 65536, 1), "b": operandOf("e4m3", 65536, 1)}, 0)},
		{"a matrix of 65536×65537", "value", wrongMM(map[string]any{"a": operandOf("e4m3", 65536, 65537)}, 0)},
		{"K must be even", "value", wrongMM(map[string]any{"a": operandOf("e2m1", 4, 31)}, 0)},
		{"unsupported by backend emu:h100: e4m3 tensor fp32 × e4m3ieee", "value", wrongMM(map[string]any{"b": operandOf("e4m3ieee", 3, 32)}, 0)},
		{"a has 32 columns and b 31 rows", "value", wrongMM(map[string]any{"b": operandOf("e4m3", 3, 31)}, 0)},
		{"a has 32 columns and b 33 rows", "value", wrongMM(map[string]any{"b": operandOf("e4m3", 3, 33)}, 0)},
		{"expected one of up to eight bits", "value", frame(t, map[string]any{"op": "decode", "count": 1, "format": "bf16"}, []byte{1})},
		{"4 buffers", "value", wrongMM(map[string]any{"a": map[string]any{}}, 0)},
		{"3 buffers: expected 4", "value", wrongMM(nil, 1)},
		{"expected fp32, bf16 or fp16", "value", wrongMM(map[string]any{"out": "e4m3"}, 0)},
		{"a matrix of 0×32", "value", frame(t, with(quantize, "rows", 0), big)},
		{"buffer 0 has 100000 bytes: expected 16", "value", frame(t, quantize, big)},
		{"granularity", "value", frame(t, with(quantize, "granularity", "x"), make([]byte, 16))},
		{"is not a run folder", "missing", frame(t, map[string]any{"op": "run", "path": "/nowhere"})},
		{"no such file", "missing", frame(t, map[string]any{"op": "checkpoint", "path": "/nowhere"})},
		{"no such file", "missing", frame(t, map[string]any{"op": "tensor", "path": "/nowhere", "name": "model/x"})},
	} {
		good := frame(t, castOf(1, nil), fp8.AppendFloats(nil, 1))
		list := exchange(t, x.request, good)
		require.Equal(t, x.kind, list[0].fields["kind"], x.want)
		if x.want != "4 buffers" && x.want != "a matrix of 0×32" {
			require.Contains(t, list[0].fields["error"], x.want)
		}
		require.Equal(t, []byte{0x38}, list[1].buffers[0])
	}
}

// A malformed frame ends the server with an error.
func TestMalformedFrames(t *testing.T) {
	good := frame(t, castOf(2, nil), fp8.AppendFloats(nil, 1, 2))
	for text, raw := range map[string][]byte{
		"a header of 4294967295 bytes":       {0xff, 0xff, 0xff, 0xff},
		"the input ends within a frame":      good[:20],
		"header: ":                           append([]byte{2, 0, 0, 0}, "[]"...),
		"expected sizes of 0 and more":       append([]byte{16, 0, 0, 0}, `{"buffers":[-1]}`...),
		"unexpected EOF":                     good[:2],
		"a header of 16777217 bytes":         {1, 0, 0, 1},
		"buffers of [9223372036854775807 1]": append([]byte{37, 0, 0, 0}, `{"buffers":[9223372036854775807, 1]} `...),
	} {
		err := Serve(t.Context(), bytes.NewReader(raw), io.Discard, Options{})
		require.ErrorContains(t, err, text, "%q", raw)
	}
	// A frame whose buffers are cut off is answered by an error, and the server ends.
	var out bytes.Buffer
	require.Error(t, Serve(t.Context(), bytes.NewReader(good[:len(good)-1]), &out, Options{}))
}

func FuzzRequest(f *testing.F) {
	f.Add(frame(f, castOf(2, nil), fp8.AppendFloats(nil, 1, 2)))
	h, buffers := multiplyOf(gemm.Random(1, fp8.E4M3, 2, 4), gemm.Random(2, fp8.E4M3, 2, 4), nil)
	f.Add(frame(f, h, buffers...))
	f.Add(frame(f, map[string]any{"op": "decode", "count": 3, "format": "int4", "scale_inv": 2}, []byte{1, 2, 3}))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if strings.Contains(string(raw), "path") {
			return
		}
		q, err := readRequest(bufio.NewReader(bytes.NewReader(raw)))
		if err != nil {
			return
		}
		s := &server{threads: 1}
		s.answer(t.Context(), q)
		require.NoError(t, s.loaded.trim(0))
	})
}
