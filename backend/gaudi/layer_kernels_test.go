package gaudi

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
)

// layerKernels are the kernels of whole layers and lookups. They check the number of
// operands and their sizes, which SynapseAI's kernels do not report.
var layerKernels = map[string]kernel{
	"gather_fwd":             gatherKernel,
	"embedding_dense_pt_bwd": embeddingGradKernel,
	"rms_norm_ex_fwd":        normKernel,
	"rms_norm_ex_bwd":        normGradKernel,
	"batch_gemm":             batchGemmKernel,
	"sdpa_recomp_fwd":        attentionKernel,
	"sdpa_recomp_bwd":        attentionGradKernel,
}

func arity(in, out []*array, ins, outs int) error {
	if len(in) != ins || len(out) != outs {
		return fmt.Errorf("%d operands and %d results, expected %d and %d", len(in), len(out), ins, outs)
	}
	return nil
}

func gatherKernel(_ *launch, suffix string, params []byte, in, out []*array) error {
	if err := arity(in, out, 2, 1); err != nil {
		return err
	}
	axis := int(binary.LittleEndian.Uint32(params))
	want := slices.Clone(in[0].sizes)
	want[axis] = uint64(len(in[1].x))
	if in[0].typ.String() != suffix || in[1].typ.String() != "i32" || len(in[1].sizes) != 1 || !slices.Equal(want, out[0].sizes) {
		return fmt.Errorf("%v of %v along %d is %v", in[1].sizes, in[0].sizes, axis, out[0].sizes)
	}
	inner := value{sizes: want[:axis]}.elems()
	n, rows := want[axis], in[0].sizes[axis]
	for i := range out[0].x {
		at := uint64(i)
		index := in[1].x[at/inner%n]
		if index < 0 || index >= float64(rows) {
			return fmt.Errorf("index %v of %d", index, rows)
		}
		out[0].x[i] = in[0].x[at/inner/n*inner*rows+uint64(index)*inner+at%inner]
	}
	return nil
}

func embeddingGradKernel(_ *launch, suffix string, params []byte, in, out []*array) error {
	if err := arity(in, out, 2, 1); err != nil {
		return err
	}
	width := out[0].sizes[0]
	if err := wants(suffix, 2, []*array{in[0], out[0]}); err != nil {
		return err
	}
	if rows := binary.LittleEndian.Uint32(params); len(params) != 12 || uint64(rows) != out[0].sizes[1] || in[0].sizes[0] != width {
		return fmt.Errorf("%v and %v to %v", in[0].sizes, in[1].sizes, out[0].sizes)
	}
	for i, row := range in[1].x {
		for j := range width {
			out[0].x[uint64(row)*width+j] += in[0].x[uint64(i)*width+j]
		}
	}
	return nil
}

// rowsOf returns the shape of one element per row.
func rowsOf(a *array) []uint64 { return append([]uint64{1}, a.sizes[1:]...) }

func normKernel(_ *launch, suffix string, params []byte, in, out []*array) error {
	if err := errors.Join(arity(in, out, 2, 2), wants(suffix, 4, append(slices.Clone(in), out...))); err != nil {
		return err
	}
	width := in[0].sizes[0]
	if len(params) != 24 || !slices.Equal(in[1].sizes, []uint64{width}) || len(in[0].sizes) < 3 || !slices.Equal(out[1].sizes, rowsOf(in[0])) {
		return fmt.Errorf("%v and %v to %v", in[0].sizes, in[1].sizes, out[1].sizes)
	}
	eps := math.Float32frombits(binary.LittleEndian.Uint32(params[4:]))
	for r := range out[1].x {
		row := in[0].x[uint64(r)*width:][:width]
		squares := 0.0
		for _, x := range row {
			squares += x * x
		}
		out[1].x[r] = 1 / math.Sqrt(squares/float64(width)+float64(eps))
		for j, x := range row {
			out[0].x[uint64(r)*width+uint64(j)] = x * out[1].x[r] * in[1].x[j]
		}
	}
	return nil
}

func normGradKernel(_ *launch, suffix string, params []byte, in, out []*array) error {
	if err := errors.Join(arity(in, out, 4, 2), wants(suffix, 6, append(slices.Clone(in), out...))); err != nil {
		return err
	}
	dy, x, gamma, inverse := in[0], in[1], in[2], in[3]
	width := x.sizes[0]
	if len(params) != 16 || !slices.Equal(dy.sizes, x.sizes) || !slices.Equal(gamma.sizes, []uint64{width}) ||
		len(x.sizes) < 3 || !slices.Equal(inverse.sizes, rowsOf(x)) || !slices.Equal(out[1].sizes, gamma.sizes) {
		return fmt.Errorf("%v, %v, %v and %v", dy.sizes, x.sizes, gamma.sizes, inverse.sizes)
	}
	for r, inv := range inverse.x {
		at := uint64(r) * width
		mean := 0.0
		for j := range width {
			normed := x.x[at+j] * inv
			mean += dy.x[at+j] * gamma.x[j] * normed / float64(width)
			out[1].x[j] += dy.x[at+j] * normed
		}
		for j := range width {
			out[0].x[at+j] = inv * (dy.x[at+j]*gamma.x[j] - x.x[at+j]*inv*mean)
		}
	}
	return nil
}

// matrices visits the matrices in out's further dimensions with the offsets of each
// operand's matrix; a dimension of size 1 is broadcast.
func matrices(out []uint64, list []*array, visit func(at []int)) error {
	at := make([]int, len(list))
	for i := range (value{sizes: out[2:]}).elems() {
		for k, a := range list {
			if len(a.sizes) != len(out) {
				return fmt.Errorf("%v and %v", a.sizes, out)
			}
			rest, stride := i, a.sizes[0]*a.sizes[1]
			at[k] = 0
			for d, n := range out[2:] {
				if own := a.sizes[d+2]; own != 1 {
					if own != n {
						return fmt.Errorf("%v and %v", a.sizes, out)
					}
					at[k] += int(rest % n * stride)
					stride *= own
				}
				rest /= n
			}
		}
		visit(at)
	}
	return nil
}

func batchGemmKernel(_ *launch, _ string, params []byte, in, out []*array) error {
	if err := arity(in, out, 2, 1); err != nil {
		return err
	}
	x, y := in[0], in[1]
	k, m, n := int(x.sizes[0]), int(x.sizes[1]), int(out[0].sizes[0])
	row, col, inner := n, 1, y.sizes[1]
	if params[1] == 1 {
		row, col, inner = 1, k, y.sizes[0]
	}
	if params[0] == 1 || x.typ != y.typ || int(inner) != k || int(y.elems()) != k*n*int((value{sizes: y.sizes[2:]}).elems()) || int(out[0].sizes[1]) != m {
		return fmt.Errorf("%s%v × %s%v is %v", x.typ, x.sizes, y.typ, y.sizes, out[0].sizes)
	}
	return matrices(out[0].sizes, []*array{x, y, out[0]}, func(at []int) {
		for i := range m {
			for j := range n {
				sum := 0.0
				for c := range k {
					sum += x.x[at[0]+i*k+c] * y.x[at[1]+c*row+j*col]
				}
				out[0].x[at[2]+i*n+j] = sum
			}
		}
	})
}

func (a *array) elems() uint64 { return value{sizes: a.sizes}.elems() }

// causal checks the operand types and parameters that the attention kernels share, and
// returns the scale of the scores. A mask replaces causality.
func causal(suffix string, params []byte, mask *array, in ...*array) (scale float64, err error) {
	if len(params) != 32 || params[4] == 1 != (mask == nil) {
		return 0, fmt.Errorf("%d bytes of parameters, a mask: %v; expected 32, and a mask unless causal", len(params), mask != nil)
	}
	if mask != nil {
		in = append(in, mask)
	}
	return float64(math.Float32frombits(binary.LittleEndian.Uint32(params))), wants(suffix, len(in), in)
}

// visible returns the number of keys of query i: those up to it, or all, of which a mask
// hides some.
func visible(i, rows int, mask *array) int {
	if mask != nil {
		return rows
	}
	return i + 1
}

// attentionKernel has operands and outputs as in PyTorch's bridge. It rounds m before the
// sum, which the bridge suggests, and rounds the probabilities in BF16.
func attentionKernel(l *launch, suffix string, params []byte, in, out []*array) error {
	if len(in) != 12 || slices.ContainsFunc(in[4:], func(a *array) bool { return a != nil }) {
		return fmt.Errorf("%d operands, or one that is too many", len(in))
	}
	q, k, v, mask := in[0], in[1], in[2], in[3]
	scale, err := causal(suffix, params, mask, q, k, v, out[0])
	if err != nil {
		return err
	}
	inference := params[20] == 1
	if inference != (len(out) == 1) || !slices.Equal(q.sizes, out[0].sizes) {
		return fmt.Errorf("%d results of %v, inference %v", len(out), q.sizes, inference)
	}
	if !inference && (out[1].typ != q.typ || out[2].typ.String() != "f32" || !slices.Equal(out[1].sizes, ofRows(value{sizes: q.sizes})) || !slices.Equal(out[1].sizes, out[2].sizes)) {
		return fmt.Errorf("m is %s%v, linv %s%v", out[1].typ, out[1].sizes, out[2].typ, out[2].sizes)
	}
	rows, width := int(q.sizes[1]), int(q.sizes[0])
	return matrices(q.sizes, []*array{q, k, v, out[0], cmp.Or(mask, q)}, func(at []int) {
		for i := range rows {
			scores := make([]float64, visible(i, rows, mask))
			for j := range scores {
				if mask != nil {
					scores[j] = mask.x[at[4]+i*rows+j]
				}
				for c := range width {
					scores[j] += scale * q.x[at[0]+i*width+c] * k.x[at[1]+j*width+c]
				}
			}
			m, sum := l.round(q.typ, slices.Max(scores)), 0.0
			for j, s := range scores {
				scores[j] = math.Exp(s - m)
				sum += scores[j]
			}
			for j, p := range scores {
				for c := range width {
					out[0].x[at[3]+i*width+c] += l.round(q.typ, p) / sum * v.x[at[2]+j*width+c]
				}
			}
			if !inference {
				row := at[3]/width + i
				out[1].x[row], out[2].x[row] = m, 1/sum
			}
		}
	})
}

func attentionGradKernel(l *launch, suffix string, params []byte, in, out []*array) error {
	if err := arity(in, out, 8, 3); err != nil {
		return err
	}
	dOut, q, k, v, m, linv := in[0], in[1], in[2], in[3], in[5], in[6]
	if in[7] != nil || linv.typ.String() != "f32" {
		return fmt.Errorf("a seed, or linv is %s", linv.typ)
	}
	scale, err := causal(suffix, params, in[4], dOut, q, k, v, m, out[0], out[1], out[2])
	if err != nil {
		return err
	}
	for i, a := range []*array{q, k, v} {
		if !slices.Equal(a.sizes, out[i].sizes) {
			return fmt.Errorf("the gradient of %v is %v", a.sizes, out[i].sizes)
		}
	}
	rows, width := int(q.sizes[1]), int(q.sizes[0])
	return matrices(q.sizes, []*array{q, k, v, cmp.Or(in[4], q)}, func(at []int) {
		for i := range rows {
			row, query := at[0]/width+i, at[0]+i*width
			seen := visible(i, rows, in[4])
			p, slope, mean := make([]float64, seen), make([]float64, seen), 0.0
			for j := range p {
				score := 0.0
				if in[4] != nil {
					score = in[4].x[at[3]+i*rows+j]
				}
				for c := range width {
					score += scale * q.x[query+c] * k.x[at[1]+j*width+c]
					slope[j] += dOut.x[query+c] * v.x[at[2]+j*width+c]
				}
				p[j] = math.Exp(score-m.x[row]) * linv.x[row]
				mean += p[j] * slope[j]
			}
			for j := range p {
				d := l.round(q.typ, scale*p[j]*(slope[j]-mean))
				for c := range width {
					out[0].x[query+c] += d * k.x[at[1]+j*width+c]
					out[1].x[at[1]+j*width+c] += d * q.x[query+c]
					out[2].x[at[2]+j*width+c] += l.round(q.typ, p[j]) * dOut.x[query+c]
				}
			}
		}
	})
}
