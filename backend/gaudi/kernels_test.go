package gaudi

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"

	"octet/csrc/libsynapse"
	"octet/fp8"
)

// A kernel computes out from in. The suffix is the end of its name: the type that it
// works in.
type kernel func(l *launch, suffix string, params []byte, in, out []*array) error

var kernels map[string]kernel

func init() {
	kernels = map[string]kernel{
		"add_fwd":  binaryKernel(func(x, y float64) float64 { return x + y }),
		"sub_fwd":  binaryKernel(func(x, y float64) float64 { return x - y }),
		"mult_fwd": binaryKernel(func(x, y float64) float64 { return x * y }),
		"div_fwd":  binaryKernel(func(x, y float64) float64 { return x / y }),
		"max_fwd":  binaryKernel(loseNaN(math.Max)),
		"min_fwd":  binaryKernel(loseNaN(math.Min)),

		"sqrt_fwd":     unaryKernel(math.Sqrt),
		"exp_fwd":      unaryKernel(math.Exp),
		"log_fwd":      unaryKernel(math.Log),
		"floor_fwd":    unaryKernel(math.Floor),
		"abs_fwd":      unaryKernel(math.Abs),
		"sigmoid_fwd":  unaryKernel(func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }),
		"silu_fwd":     unaryKernel(func(x float64) float64 { return x / (1 + math.Exp(-x)) }),
		"erf_fwd":      unaryKernel(math.Erf),
		"isnan_fwd":    maskKernel(1, func(x []float64) bool { return math.IsNaN(x[0]) }),
		"isfinite_fwd": maskKernel(1, func(x []float64) bool { return x[0]-x[0] == 0 }),

		"greater_fwd":    maskKernel(2, func(x []float64) bool { return x[0] > x[1] }),
		"less_fwd":       maskKernel(2, func(x []float64) bool { return x[0] < x[1] }),
		"less_equal_fwd": maskKernel(2, func(x []float64) bool { return x[0] <= x[1] }),
		"equal_fwd":      maskKernel(2, func(x []float64) bool { return x[0] == x[1] }),
		"where_fwd":      whereKernel,

		"reduce_sum_multi_dim_fwd": reduceKernel(0, func(x, y float64) float64 { return x + y }),
		"reduce_max_multi_dim_fwd": reduceKernel(math.Inf(-1), loseNaN(math.Max)),
		"reduce_min_multi_dim_fwd": reduceKernel(math.Inf(1), loseNaN(math.Min)),

		"cast":                  castKernel,
		"convert_to_fp8":        convertKernel,
		"convert_to_fp8_hybrid": convertKernel,
		"convert_from_fp8":      convertBackKernel,
		"constant":              constantKernel,
		"identity":              copyKernel,
		"reshape":               copyKernel,
		"reinterpret_cast":      reinterpretKernel,
		"transpose":             transposeKernel,
		"slice":                 sliceKernel,
		"concat":                concatKernel,
		"gemm":                  gemmKernel,
		"fp8_gemm":              gemmKernel,
	}
	maps.Copy(kernels, layerKernels)
}

// loseNaN makes a maximum ignore NaN, as a device may.
func loseNaN(f func(x, y float64) float64) func(x, y float64) float64 {
	return func(x, y float64) float64 {
		switch {
		case math.IsNaN(x):
			return y
		case math.IsNaN(y):
			return x
		}
		return f(x, y)
	}
}

// broadcastTo returns an operand's elements at the indexes of out, broadcasting sizes of
// 1.
func (a *array) broadcastTo(out []uint64) ([]float64, error) {
	if len(a.sizes) > len(out) {
		return nil, fmt.Errorf("%v for %v", a.sizes, out)
	}
	for d, n := range a.sizes {
		if n != 1 && n != out[d] {
			return nil, fmt.Errorf("%v for %v", a.sizes, out)
		}
	}
	x := make([]float64, value{sizes: out}.elems())
	for i := range x {
		at, stride, rest := uint64(0), uint64(1), uint64(i)
		for d, n := range out {
			index := rest % n
			rest /= n
			if d < len(a.sizes) {
				if a.sizes[d] > 1 {
					at += index * stride
				}
				stride *= a.sizes[d]
			}
		}
		x[i] = a.x[at]
	}
	return x, nil
}

// elementwiseOf applies f to the operands at every index of out.
func elementwiseOf(in []*array, out *array, f func(x []float64) float64) error {
	list := make([][]float64, len(in))
	for i, a := range in {
		var err error
		if list[i], err = a.broadcastTo(out.sizes); err != nil {
			return err
		}
	}
	x := make([]float64, len(in))
	for i := range out.x {
		for j := range in {
			x[j] = list[j][i]
		}
		out.x[i] = f(x)
	}
	return nil
}

// wants checks the number and the types of operands.
func wants(suffix string, n int, in []*array) error {
	if len(in) != n {
		return fmt.Errorf("%d operands, expected %d", len(in), n)
	}
	for _, a := range in {
		if a == nil || a.typ.String() != suffix {
			return fmt.Errorf("an operand of another type than %s", suffix)
		}
	}
	return nil
}

func unaryKernel(f func(x float64) float64) kernel {
	return func(_ *launch, suffix string, _ []byte, in, out []*array) error {
		if err := wants(suffix, 1, append(in[:1:1], out[1:]...)); err != nil {
			return err
		}
		return elementwiseOf(in, out[0], func(x []float64) float64 { return f(x[0]) })
	}
}

func binaryKernel(f func(x, y float64) float64) kernel {
	return func(_ *launch, suffix string, _ []byte, in, out []*array) error {
		if err := wants(suffix, 3, append(slices.Clone(in), out...)); err != nil {
			return err
		}
		return elementwiseOf(in, out[0], func(x []float64) float64 { return f(x[0], x[1]) })
	}
}

func maskKernel(n int, f func(x []float64) bool) kernel {
	return func(_ *launch, suffix string, _ []byte, in, out []*array) error {
		if err := wants(suffix, n, in); err != nil {
			return err
		}
		if err := wants("i8", 1, out); err != nil {
			return err
		}
		return elementwiseOf(in, out[0], func(x []float64) float64 {
			if f(x) {
				return 1
			}
			return 0
		})
	}
}

func whereKernel(_ *launch, suffix string, _ []byte, in, out []*array) error {
	if err := wants(suffix, 3, append(slices.Clone(in[1:]), out...)); err != nil {
		return err
	}
	if err := wants("i8", 1, in[:1]); err != nil {
		return err
	}
	return elementwiseOf(in, out[0], func(x []float64) float64 {
		if x[0] != 0 {
			return x[1]
		}
		return x[2]
	})
}

func reduceKernel(start float64, f func(x, y float64) float64) kernel {
	return func(_ *launch, suffix string, params []byte, in, out []*array) error {
		if err := wants(suffix, 2, append(slices.Clone(in), out...)); err != nil {
			return err
		}
		if len(params) != 8 {
			return fmt.Errorf("%d bytes of parameters", len(params))
		}
		mask := binary.LittleEndian.Uint32(params)
		if mask == 0 {
			mask = math.MaxUint32
		}
		sizes := slices.Clone(in[0].sizes)
		for d := range sizes {
			if mask>>d&1 == 1 {
				sizes[d] = 1
			}
		}
		if n := (value{sizes: sizes}).elems(); n != uint64(len(out[0].x)) || params[4] == 1 && !slices.Equal(sizes, out[0].sizes) {
			return fmt.Errorf("%v reduced to %v", in[0].sizes, out[0].sizes)
		}
		for i := range out[0].x {
			out[0].x[i] = start
		}
		for i, x := range in[0].x {
			at, stride, rest := uint64(0), uint64(1), uint64(i)
			for d, n := range in[0].sizes {
				if sizes[d] > 1 {
					at += rest % n * stride
				}
				rest /= n
				stride *= sizes[d]
			}
			out[0].x[at] = f(out[0].x[at], x)
		}
		return nil
	}
}

// castKernel is cast_A_to_B, whose suffix is A.
func castKernel(_ *launch, suffix string, params []byte, in, out []*array) error {
	if err := wants(suffix, 1, in); err != nil {
		return err
	}
	if len(params) != 4 || in[0].typ == out[0].typ {
		return fmt.Errorf("%s to %s, %d bytes of parameters", in[0].typ, out[0].typ, len(params))
	}
	copy(out[0].x, in[0].x)
	return nil
}

// convertKernel is convert_to_fp8 and its hybrid: inputs x and scales; outputs the codes
// and optionally the amax.
func convertKernel(l *launch, suffix string, params []byte, in, out []*array) error {
	if in[0].typ.String() != suffix || len(params) != 4 {
		return fmt.Errorf("x is %s, %d bytes of parameters", in[0].typ, len(params))
	}
	stochastic := libsynapse.Rounding(binary.LittleEndian.Uint32(params)) == libsynapse.Stochastic
	for i, o := range out {
		if o.typ == libsynapse.F32 {
			for _, x := range in[0].x {
				o.x[0] = float64(fp8.MaxAmax(float32(o.x[0]), float32(x)))
			}
			continue
		}
		scale := 1.0
		if i+1 < len(in) && in[i+1] != nil {
			if len(in[i+1].x) != 1 {
				return fmt.Errorf("a scale of %v", in[i+1].sizes)
			}
			scale = in[i+1].x[0]
		}
		d := l.format(o.typ)
		for j, x := range in[0].x {
			x = float64(float32(x * scale))
			code := d.Nearest(float32(x), fp8.Saturate)
			if stochastic {
				code = d.Stochastic(float32(x), l.rng.Uint32(), fp8.Saturate)
			}
			o.x[j] = float64(d.Float32(code))
		}
	}
	return nil
}

func convertBackKernel(_ *launch, _ string, _ []byte, in, out []*array) error {
	for i, x := range in[0].x {
		out[0].x[i] = x
		if len(in) > 1 {
			out[0].x[i] *= in[1].x[0]
		}
	}
	return nil
}

func constantKernel(_ *launch, suffix string, params []byte, in, out []*array) error {
	if err := wants(suffix, 1, append(in, out...)); err != nil {
		return err
	}
	for i := range out[0].x {
		out[0].x[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(params)))
	}
	return nil
}

func copyKernel(_ *launch, _ string, _ []byte, in, out []*array) error {
	if in[0].typ != out[0].typ || len(in[0].x) != len(out[0].x) {
		return fmt.Errorf("%s%v to %s%v", in[0].typ, in[0].sizes, out[0].typ, out[0].sizes)
	}
	copy(out[0].x, in[0].x)
	return nil
}

func reinterpretKernel(l *launch, _ string, _ []byte, in, out []*array) error {
	if in[0].typ.Size() != out[0].typ.Size() {
		return fmt.Errorf("%s as %s", in[0].typ, out[0].typ)
	}
	copy(out[0].x, l.decode(out[0].typ, l.encode(in[0].typ, in[0].x)))
	return nil
}

func transposeKernel(_ *launch, _ string, params []byte, in, out []*array) error {
	n := int(binary.LittleEndian.Uint32(params))
	if n != len(in[0].sizes) {
		return fmt.Errorf("a permutation of %d dimensions of %v", n, in[0].sizes)
	}
	strides := make([]uint64, n) // of in
	stride := uint64(1)
	for d, size := range in[0].sizes {
		strides[d] = stride
		stride *= size
	}
	for i := range out[0].x {
		at, rest := uint64(0), uint64(i)
		for d, size := range out[0].sizes {
			from := binary.LittleEndian.Uint32(params[4+4*d:])
			at += rest % size * strides[from]
			rest /= size
		}
		out[0].x[i] = in[0].x[at]
	}
	return nil
}

// sliceKernel takes the one range that the builder uses.
func sliceKernel(_ *launch, _ string, params []byte, in, out []*array) error {
	axis := int(binary.LittleEndian.Uint32(params))
	from, to := binary.LittleEndian.Uint64(params[104:]), binary.LittleEndian.Uint64(params[304:])
	want := slices.Clone(in[0].sizes)
	want[axis] = to - from
	if !slices.Equal(want, out[0].sizes) || to > in[0].sizes[axis] {
		return fmt.Errorf("[%d, %d) of dimension %d of %v is %v", from, to, axis, in[0].sizes, out[0].sizes)
	}
	inner := value{sizes: in[0].sizes[:axis]}.elems()
	n := in[0].sizes[axis]
	at := 0
	for i, x := range in[0].x {
		if index := uint64(i) / inner % n; index >= from && index < to {
			out[0].x[at] = x
			at++
		}
	}
	return nil
}

func concatKernel(_ *launch, _ string, params []byte, in, out []*array) error {
	axis := int(binary.LittleEndian.Uint32(params))
	inner := value{sizes: out[0].sizes[:axis]}.elems()
	rows := uint64(len(out[0].x)) / inner / out[0].sizes[axis]
	at := uint64(0)
	for r := range rows {
		for _, a := range in {
			if len(a.sizes) <= axis || a.typ != out[0].typ {
				return fmt.Errorf("%s%v in %s%v", a.typ, a.sizes, out[0].typ, out[0].sizes)
			}
			n := inner * a.sizes[axis]
			copy(out[0].x[at:], a.x[r*n:][:n])
			at += n
		}
	}
	if at != uint64(len(out[0].x)) {
		return fmt.Errorf("%d elements of %d", at, len(out[0].x))
	}
	return nil
}

// gemmKernel is gemm and fp8_gemm, with sums in float64.
func gemmKernel(l *launch, suffix string, params []byte, in, out []*array) error {
	a, b := in[0], in[1]
	if len(params) != 2 || len(a.sizes) != 2 || len(b.sizes) != 2 || len(out[0].sizes) != 2 {
		return fmt.Errorf("%v × %v is %v", a.sizes, b.sizes, out[0].sizes)
	}
	if a.typ != b.typ && !slices.Contains(l.spec.Pairs, fp8.PerTensor([2]fp8.DType{l.spec.E4M3, fp8.E5M2})[0]) {
		return fmt.Errorf("%s × %s", a.typ, b.typ)
	}
	if suffix != "" && out[0].typ.String() != suffix {
		return fmt.Errorf("the output is %s", out[0].typ)
	}
	aRow, aCol, m, k := a.sizes[0], uint64(1), a.sizes[1], a.sizes[0]
	if params[0] == 1 {
		aRow, aCol, m, k = 1, a.sizes[0], a.sizes[0], a.sizes[1]
	}
	bRow, bCol, n, kb := b.sizes[0], uint64(1), b.sizes[0], b.sizes[1]
	if params[1] == 1 {
		bRow, bCol, n, kb = 1, b.sizes[0], b.sizes[1], b.sizes[0]
	}
	if k != kb || out[0].sizes[0] != n || out[0].sizes[1] != m {
		return fmt.Errorf("%v × %v is %v", a.sizes, b.sizes, out[0].sizes)
	}
	for _, o := range in[:2] {
		if o.typ == libsynapse.E4M3 && slices.ContainsFunc(o.x, func(x float64) bool { return math.Abs(x) > float64(l.spec.E4M3.Max()) }) {
			return fmt.Errorf("an E4M3 above %v", l.spec.E4M3.Max())
		}
	}
	scale := 1.0
	for _, s := range in[2:] {
		scale *= s.x[0]
	}
	for i := range m {
		for j := range n {
			v := 0.0
			for c := range k {
				v += a.x[i*aRow+c*aCol] * b.x[c*bRow+j*bCol]
			}
			out[0].x[i*n+j] = v * scale
		}
	}
	return nil
}
