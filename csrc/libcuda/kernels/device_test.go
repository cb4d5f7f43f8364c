//go:build cuda && cgo && linux

package kernels_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	_ "octet/backend/cuda"
	_ "octet/backend/ref"
	"octet/csrc/standin"
	"octet/fp8"
)

// The conformance suite covers every op at small sizes. These tests cover more: all
// values of a cast, full tiles, and attention on tensor cores, by wgmma and by mma.sync.
// Stand-ins run the kernels, or a GPU does (standin.Load).

// side is one backend with one program loaded.
type side struct {
	t    *testing.T
	vars *backend.Vars
	b    backend.Backend
	run  backend.Executable
}

// open builds the same program for each backend and loads it.
func open(t *testing.T, name string, record func(v *backend.Vars, p *backend.Program)) *side {
	v := backend.NewVars()
	p := v.Program("test")
	record(v, p)
	require.NoError(t, p.Err())
	dev, err := backend.Open(name, backend.Options{})
	require.NoError(t, err)
	s := &side{t, v, dev, nil}
	t.Cleanup(func() { require.NoError(t, s.b.Close()) })
	loaded, err := s.b.Load(p)
	require.NoError(t, err)
	s.run = loaded[0]
	if name != "ref" { // no fallback to the other kernels
		require.Equal(t, strings.HasSuffix(name, "=mma"), strings.Contains(s.b.Spec().Arithmetic, "attention-mma"))
	}
	return s
}

func (s *side) write(name string, raw []byte) {
	require.NoError(s.t, s.b.Write(s.vars.Lookup(name), raw))
}

func (s *side) read(name string) []byte {
	tensor := s.vars.Lookup(name)
	raw := make([]byte, tensor.Bytes())
	require.NoError(s.t, s.b.Read(tensor, raw))
	return raw
}

// TestOnADevice is one test because a process opens a GPU once.
func TestOnADevice(t *testing.T) {
	standin.Load(t, "libcuda", "libcublaslt", "libnvrtc")
	t.Setenv("XDG_CACHE_HOME", t.TempDir()) // compile the current kernels
	t.Run("casts", testCasts)
	t.Run("copies", testCopies)
	t.Run("tiles", testTiles)
	t.Run("masked logits", testMaskedLogits)
	for _, name := range []string{"cuda", "cuda:0,attention=mma"} {
		t.Run("attention/"+name, func(t *testing.T) { testAttention(t, name) })
		t.Run("attentiongrad/"+name, func(t *testing.T) { testAttentionGrad(t, name) })
	}
}

// Logits of -Inf, as masks write them, do not contribute, even if they are all that a
// thread has of the first eight columns, or of any others.
func testMaskedLogits(t *testing.T) {
	const tokens, vocab, from, to = 2, 4200, 40, 4180 // columns [from, to) are not masked
	record := func(v *backend.Vars, p *backend.Program) {
		p.Add(&backend.CrossEntropy{
			Logits: v.Tensor(backend.Stash, "logits", fp8.F32, tokens, vocab), Targets: v.Tensor(backend.Input, "targets", fp8.I32, tokens),
			Control: v.Tensor(backend.Input, "step.control", fp8.I32, backend.ControlWords), Valid: vocab,
			Loss: v.Tensor(backend.Stash, "loss", fp8.F32, tokens), DLogits: v.Tensor(backend.Stash, "dlogits", fp8.F32, tokens, vocab),
		})
	}
	logits, rng := make([]float32, tokens*vocab), rand.New(rand.NewPCG(7, 8))
	for i := range logits {
		if logits[i] = float32(rng.NormFloat64()); i%vocab < from || i%vocab >= to {
			logits[i] = float32(math.Inf(-1))
		}
	}
	results := map[string][]byte{}
	for _, name := range []string{"ref", "cuda"} {
		s := open(t, name, record)
		s.write("logits", fp8.AppendFloats(nil, logits...))
		s.write("targets", binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, from), to-1))
		s.write("step.control", backend.Control{InvTokens: 0.5}.AppendTo(nil))
		require.NoError(t, s.run.Run(t.Context()))
		results[name] = append(s.read("loss"), s.read("dlogits")...)
	}
	for i := range tokens + tokens*vocab {
		at := func(name string) float64 { return float64(math.Float32frombits(code(fp8.F32, results[name], i))) }
		require.InDelta(t, at("ref"), at("cuda"), 1e-5, "value %d", i)
	}
}

// code returns the code of element i.
func code(d fp8.DType, raw []byte, i int) uint32 {
	switch d.Size() {
	case 1:
		return uint32(raw[i])
	case 2:
		return uint32(binary.LittleEndian.Uint16(raw[2*i:]))
	}
	return binary.LittleEndian.Uint32(raw[4*i:])
}

// Casts of every BF16 value, and of FP32 values with random bits, to every format, with
// both roundings and orientations, agree with package fp8. One shape has only full
// vectors, another none.
func testCasts(t *testing.T) {
	control := backend.Control{Seed: 11, Step: 5, Token: 1<<33 + 7}
	formats := []fp8.DType{fp8.E4M3, fp8.E4M3IEEE, fp8.E5M2, fp8.F16, fp8.BF16}
	for _, c := range []struct {
		from       fp8.DType
		rows, cols int
	}{{fp8.BF16, 256, 256}, {fp8.F32, 96, 272}, {fp8.F32, 37, 301}} {
		rng := rand.New(rand.NewPCG(1, uint64(c.cols)))
		x := make([]byte, 0, c.rows*c.cols*4)
		for i := range c.rows * c.cols {
			if c.from == fp8.BF16 {
				x = binary.LittleEndian.AppendUint16(x, uint16(i))
			} else {
				bits := rng.Uint32()
				if i%2 == 0 { // near the range of the formats
					bits = bits&^(0xff<<23) | (105+rng.Uint32N(42))<<23
				}
				x = binary.LittleEndian.AppendUint32(x, bits)
			}
		}
		for _, rounding := range []fp8.Rounding{fp8.Nearest, fp8.Stochastic} {
			name := func(d fp8.DType, transposed bool) string { return fmt.Sprintf("%s.%t", d, transposed) }
			s := open(t, "cuda", func(v *backend.Vars, p *backend.Program) {
				in := v.Tensor(backend.Stash, "x", c.from, c.rows, c.cols)
				ctl := v.Tensor(backend.Input, "step.control", fp8.I32, backend.ControlWords)
				one := v.Tensor(backend.Stash, "one", fp8.F32, 1)
				for _, d := range formats {
					q := &backend.Quantize{X: in}
					for _, transposed := range []bool{false, true} {
						shape := []int{c.rows, c.cols}
						if transposed {
							shape = []int{c.cols, c.rows}
						}
						out := v.Tensor(backend.Stash, name(d, transposed), d, shape...)
						if d.IsQuantized() {
							out.Scale = one
						}
						cast := backend.Cast{Out: out, Rounding: rounding, Tokens: transposed, Transpose: transposed}
						if rounding == fp8.Stochastic {
							cast.Control = ctl
						}
						q.Out = append(q.Out, cast)
					}
					p.Add(q)
				}
			})
			s.write("x", x)
			s.write("step.control", control.AppendTo(nil))
			require.NoError(t, s.run.Run(t.Context()))
			for _, d := range formats {
				overflow := fp8.Saturate
				if d == fp8.BF16 {
					overflow = fp8.NonSaturating
				}
				for _, transposed := range []bool{false, true} {
					raw := s.read(name(d, transposed))
					key, first := fp8.StreamKey(control.Seed, control.Step, fp8.NameKey(name(d, transposed))), uint64(0)
					if transposed {
						first = control.Token * uint64(c.cols)
					}
					for i := range c.rows * c.cols {
						value, at := c.from.Float32(code(c.from, x, i)), i
						if transposed {
							at = i%c.cols*c.rows + i/c.cols
						}
						want := d.Nearest(value, overflow)
						if rounding == fp8.Stochastic {
							want = d.Stochastic(value, fp8.Random(key, first+uint64(i)), overflow)
						}
						if got := code(d, raw, at); got != want {
							require.Equal(t, want, got, "%v (%#08x) of %s in %s, %s", value, math.Float32bits(value), c.from, name(d, transposed), rounding)
						}
					}
				}
			}
		}
	}
}

// copied is a cast to E5M2: with the random bits of a stream, or to nearest even.
type copied struct {
	transposed bool
	stream     string
	tokens     bool
	scale      float32
}

// The kernel encodes a cast and its transposed copy once. The lists have copies with the
// same codes, two shapes without aligned vectors (37 rows), and adjacent casts that
// differ in one property.
func testCopies(t *testing.T) {
	control := backend.Control{Seed: 3, Step: 9, Token: 1 << 34}
	const cols = 272
	scales := map[float32]string{1: "one", 3: "three"}
	for _, list := range [][]copied{
		{{true, "a", true, 1}, {false, "a", true, 1}, {true, "a", true, 1}, {true, "b", true, 1}},
		{{false, "a", true, 1}, {true, "a", false, 1}, {false, "", false, 1}, {true, "", false, 3}},
	} {
		for _, rows := range []int{64, 37} {
			rng := rand.New(rand.NewPCG(2, uint64(rows)))
			x := make([]byte, 0, rows*cols*4)
			for range rows * cols {
				x = binary.LittleEndian.AppendUint32(x, math.Float32bits(float32(rng.NormFloat64())))
			}
			s := open(t, "cuda", func(v *backend.Vars, p *backend.Program) {
				ctl := v.Tensor(backend.Input, "step.control", fp8.I32, backend.ControlWords)
				q := &backend.Quantize{X: v.Tensor(backend.Stash, "x", fp8.F32, rows, cols)}
				for i, c := range list {
					shape := []int{rows, cols}
					if c.transposed {
						shape = []int{cols, rows}
					}
					cast := backend.Cast{Out: v.Tensor(backend.Stash, fmt.Sprint("copy", i), fp8.E5M2, shape...), Transpose: c.transposed}
					if cast.Scale = v.Lookup(scales[c.scale]); cast.Scale == nil {
						cast.Scale = v.Tensor(backend.Stash, scales[c.scale], fp8.F32, 1)
					}
					cast.Out.Scale = cast.Scale // which no op reads
					if c.stream != "" {
						cast.Rounding, cast.Stream, cast.Tokens, cast.Control = fp8.Stochastic, c.stream, c.tokens, ctl
					}
					q.Out = append(q.Out, cast)
				}
				p.Add(q)
			})
			s.write("x", x)
			s.write("step.control", control.AppendTo(nil))
			for scale, name := range scales {
				if s.vars.Lookup(name) != nil {
					s.write(name, binary.LittleEndian.AppendUint32(nil, math.Float32bits(scale)))
				}
			}
			require.NoError(t, s.run.Run(t.Context()))
			for i, c := range list {
				raw := s.read(fmt.Sprint("copy", i))
				key, first := fp8.StreamKey(control.Seed, control.Step, fp8.NameKey(c.stream)), uint64(0)
				if c.tokens {
					first = control.Token * cols
				}
				for e := range rows * cols {
					value, at := fp8.F32.Float32(code(fp8.F32, x, e))*c.scale, e
					if c.transposed {
						at = e%cols*rows + e/cols
					}
					want := fp8.E5M2.Nearest(value, fp8.Saturate)
					if c.stream != "" {
						want = fp8.E5M2.Stochastic(value, fp8.Random(key, first+uint64(e)), fp8.Saturate)
					}
					require.Equal(t, want, code(fp8.E5M2, raw, at), "%d rows, copy %d of %v, element %d", rows, i, list, e)
				}
			}
		}
	}
}

type heads struct {
	batch, queries, keys, heads, keyHeads, dim, position int

	documents []int // lengths, in every sequence; nil: no operand Start
}

func (h heads) String() string {
	return fmt.Sprintf("%dx%d-keys%d-heads%d.%d-dim%d-at%d-documents%d", h.batch, h.queries, h.keys, h.heads, h.keyHeads, h.dim, h.position, len(h.documents))
}

// start declares an operand Start; it returns nil without documents.
func (h heads) start(v *backend.Vars) *backend.Tensor {
	if h.documents == nil {
		return nil
	}
	return v.Tensor(backend.Input, "start", fp8.I32, h.batch, h.queries)
}

func (h heads) writeStart(s *side) {
	var raw []byte
	for range h.batch {
		first := 0
		for _, n := range h.documents {
			for range n {
				raw = binary.LittleEndian.AppendUint32(raw, uint32(first))
			}
			first += n
		}
	}
	if raw != nil {
		s.write("start", raw)
	}
}

// casts returns casts that a layer may need, and plain FP32.
func casts(v *backend.Vars, name string, rows, cols int) []backend.Cast {
	one := v.Lookup("one")
	if one == nil {
		one = v.Tensor(backend.Stash, "one", fp8.F32, 1)
	}
	tensor := func(suffix string, d fp8.DType, shape ...int) *backend.Tensor {
		out := v.Tensor(backend.Stash, name+suffix, d, shape...)
		if d.IsQuantized() {
			out.Scale = one
		}
		return out
	}
	return []backend.Cast{
		{Out: tensor("", fp8.F32, rows, cols), Amax: v.Tensor(backend.Stash, name+".amax", fp8.F32, 1)},
		{Out: tensor(".fp8", fp8.E4M3, rows, cols)},
		{Out: tensor(".fp8.t", fp8.E4M3, cols, rows), Transpose: true},
		{Out: tensor(".bf16.t", fp8.BF16, cols, rows), Transpose: true},
	}
}

// agree compares a result with the reference by the norm of the difference, and its
// copies with itself, exactly.
func agree(t *testing.T, want, got *side, name string, rows, cols int, tolerance float64) {
	t.Helper()
	values, codes, transposed, wide := got.read(name), got.read(name+".fp8"), got.read(name+".fp8.t"), got.read(name+".bf16.t")
	reference := want.read(name)
	var diff, norm float64
	amax := float32(0)
	for i := range rows * cols {
		x := math.Float32frombits(code(fp8.F32, values, i))
		r := float64(math.Float32frombits(code(fp8.F32, reference, i)))
		diff += (float64(x) - r) * (float64(x) - r)
		norm += r * r
		amax = fp8.MaxAmax(amax, x)
		at := i%cols*rows + i/cols
		if c := fp8.E4M3.Nearest(x, fp8.Saturate); c != uint32(codes[i]) || c != uint32(transposed[at]) || fp8.BF16.Nearest(x, fp8.NonSaturating) != code(fp8.BF16, wide, at) {
			require.Failf(t, "a copy differs", "%s: element %d is %v, its codes are %#x, %#x, %#x", name, i, x, codes[i], transposed[at], code(fp8.BF16, wide, at))
		}
	}
	require.Equal(t, amax, math.Float32frombits(code(fp8.F32, got.read(name+".amax"), 0)), name)
	t.Logf("%s: %.2g of the norm", name, math.Sqrt(diff/norm))
	require.Less(t, math.Sqrt(diff/norm), tolerance, name)
}

func normal(rng *rand.Rand, n int) []byte {
	var raw []byte
	for range n {
		raw = binary.LittleEndian.AppendUint16(raw, uint16(fp8.BF16.Nearest(float32(rng.NormFloat64()), fp8.Saturate)))
	}
	return raw
}

// weights is the maximum relative error of a GEMM whose weights are rounded to BF16: each
// by up to 2^-9, with random signs; the rest is for the FP32 sums.
const weights = 0x1p-9

func testAttention(t *testing.T, device string) {
	for _, h := range []heads{
		{2, 150, 150, 4, 2, 64, 0, nil},
		{1, 131, 131, 2, 1, 128, 0, nil},
		{2, 5, 200, 2, 1, 128, 190, nil}, // a cache longer than the visible keys
		{1, 1, 64, 4, 4, 64, 63, nil},
		{1, 63, 63, 1, 1, 64, 0, nil},
		{1, 65, 450, 2, 2, 64, 385, nil},   // a block, and one query
		{1, 130, 600, 2, 1, 128, 450, nil}, // more blocks of keys than fit in shared memory
		{2, 150, 150, 4, 2, 64, 0, []int{128, 1, 21}},
		{1, 131, 131, 2, 1, 128, 0, []int{131}},
		{1, 420, 420, 2, 1, 128, 0, []int{1, 63, 64, 127, 130, 35}},
		{2, 420, 420, 1, 1, 64, 0, []int{310, 110}},
		{1, 130, 130, 1, 1, 64, 0, slices.Repeat([]int{1}, 130)},
	} {
		t.Run(h.String(), func(t *testing.T) {
			rows, cols := h.batch*h.queries, h.heads*h.dim
			record := func(v *backend.Vars, p *backend.Program) {
				tensor := func(name string, d fp8.DType, shape ...int) *backend.Tensor {
					return v.Tensor(backend.Stash, name, d, shape...)
				}
				k, val := tensor("k", fp8.BF16, h.batch*h.keys, h.keyHeads*h.dim), tensor("v", fp8.BF16, h.batch*h.keys, h.keyHeads*h.dim)
				control := v.Tensor(backend.Input, "step.control", fp8.I32, backend.ControlWords)
				start := h.start(v)
				if start != nil {
					control = nil
				}
				p.Add(&backend.Attention{
					Q: tensor("q", fp8.BF16, rows, cols), K: k, V: val, Control: control, Start: start,
					Out: casts(v, "out", rows, cols), LSE: tensor("lse", fp8.F32, h.batch*h.heads, h.queries),
					Batch: h.batch, HeadDim: h.dim,
				})
			}
			want, got := open(t, "ref", record), open(t, device, record)
			for _, s := range []*side{want, got} {
				rng := rand.New(rand.NewPCG(3, 4))
				s.write("q", normal(rng, rows*cols))
				s.write("k", normal(rng, h.batch*h.keys*h.keyHeads*h.dim))
				s.write("v", normal(rng, h.batch*h.keys*h.keyHeads*h.dim))
				control := backend.Control{Position: int32(h.position)}
				s.write("step.control", control.AppendTo(nil))
				h.writeStart(s)
				require.NoError(t, s.run.Run(t.Context()))
			}
			agree(t, want, got, "out", rows, cols, weights)
			for i := range h.batch * h.heads * h.queries {
				w, g := math.Float32frombits(code(fp8.F32, want.read("lse"), i)), math.Float32frombits(code(fp8.F32, got.read("lse"), i))
				require.InDelta(t, w, g, 1e-5, "lse %d", i)
			}
		})
	}
}

func testAttentionGrad(t *testing.T, device string) {
	for _, h := range []heads{
		{2, 140, 140, 4, 2, 64, 0, nil},
		{1, 150, 150, 2, 1, 128, 0, nil},
		{1, 17, 17, 2, 2, 64, 0, nil},
		{2, 65, 65, 3, 1, 128, 0, nil},
		{1, 330, 330, 2, 1, 128, 0, nil},
		{2, 150, 150, 4, 2, 64, 0, []int{128, 1, 21}},
		{1, 131, 131, 2, 1, 128, 0, []int{131}},
		{1, 420, 420, 2, 1, 128, 0, []int{1, 63, 64, 127, 130, 35}},
		{2, 420, 420, 2, 1, 64, 0, []int{310, 110}},
		{1, 200, 200, 2, 1, 64, 0, []int{90, 5, 105}},
	} {
		t.Run(h.String(), func(t *testing.T) {
			rows, cols, keyCols := h.batch*h.queries, h.heads*h.dim, h.keyHeads*h.dim
			record := func(v *backend.Vars, p *backend.Program) {
				tensor := func(name string, d fp8.DType, shape ...int) *backend.Tensor {
					return v.Tensor(backend.Stash, name, d, shape...)
				}
				q, k, val := tensor("q", fp8.BF16, rows, cols), tensor("k", fp8.BF16, rows, keyCols), tensor("v", fp8.BF16, rows, keyCols)
				start := h.start(v)
				o, lse := tensor("o", fp8.BF16, rows, cols), tensor("lse", fp8.F32, h.batch*h.heads, h.queries)
				p.Add(&backend.Attention{Q: q, K: k, V: val, Out: []backend.Cast{{Out: o}}, LSE: lse, Start: start, Batch: h.batch, HeadDim: h.dim})
				p.Add(&backend.AttentionGrad{
					DOut: tensor("dout", fp8.BF16, rows, cols), Q: q, K: k, V: val, O: o, LSE: lse, Start: start,
					DQ: casts(v, "dq", rows, cols), DK: casts(v, "dk", rows, keyCols), DV: casts(v, "dv", rows, keyCols),
					Batch: h.batch, HeadDim: h.dim,
				})
			}
			want, got := open(t, "ref", record), open(t, device, record)
			for _, s := range []*side{want, got} {
				rng := rand.New(rand.NewPCG(5, 6))
				s.write("q", normal(rng, rows*cols))
				s.write("k", normal(rng, rows*keyCols))
				s.write("v", normal(rng, rows*keyCols))
				s.write("dout", normal(rng, rows*cols))
				h.writeStart(s)
				require.NoError(t, s.run.Run(t.Context()))
			}
			agree(t, want, got, "dq", rows, cols, 2*weights)
			agree(t, want, got, "dk", rows, keyCols, 2*weights)
			agree(t, want, got, "dv", rows, keyCols, 2*weights)
		})
	}
}
