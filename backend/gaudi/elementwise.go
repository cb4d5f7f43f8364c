package gaudi

import (
	"slices"
	"strings"

	"octet/backend"
	"octet/csrc/libsynapse"
	"octet/fp8"
)

// elementwiseKernels are the kernels that compute each element of the output only from
// the same element of the inputs, so they may write in place.
var elementwiseKernels = []string{
	"add_fwd_", "sub_fwd_", "mult_fwd_", "div_fwd_", "max_fwd_", "min_fwd_",
	"sqrt_fwd_", "exp_fwd_", "log_fwd_", "floor_fwd_", "abs_fwd_",
	"sigmoid_fwd_", "silu_fwd_", "erf_fwd_", "where_fwd_",
}

func elementwise(guid string) bool {
	return slices.ContainsFunc(elementwiseKernels, func(k string) bool { return strings.HasPrefix(guid, k) })
}

// Arithmetic is in F32, or in BF16 if all operands are BF16. Dimensions of size 1 are
// broadcast.

func (b *builder) add(x, y value) value { return b.binary("add_fwd", x, y) }
func (b *builder) sub(x, y value) value { return b.binary("sub_fwd", x, y) }
func (b *builder) mul(x, y value) value { return b.binary("mult_fwd", x, y) }
func (b *builder) div(x, y value) value { return b.binary("div_fwd", x, y) }

// max and min of NaN are undefined, see larger.
func (b *builder) max(x, y value) value { return b.binary("max_fwd", x, y) }
func (b *builder) min(x, y value) value { return b.binary("min_fwd", x, y) }

func (b *builder) sqrt(x value) value    { return b.unary("sqrt_fwd", x) }
func (b *builder) exp(x value) value     { return b.unary("exp_fwd", x) }
func (b *builder) log(x value) value     { return b.unary("log_fwd", x) }
func (b *builder) floor(x value) value   { return b.unary("floor_fwd", x) }
func (b *builder) abs(x value) value     { return b.unary("abs_fwd", x) }
func (b *builder) sigmoid(x value) value { return b.unary("sigmoid_fwd", x) }
func (b *builder) silu(x value) value    { return b.unary("silu_fwd", x) }
func (b *builder) erf(x value) value     { return b.unary("erf_fwd", x) }

// Comparisons return I8 masks, 1 where true. A comparison with NaN is false.

func (b *builder) greater(x, y value) value   { return b.compare("greater_fwd", x, y) }
func (b *builder) less(x, y value) value      { return b.compare("less_fwd", x, y) }
func (b *builder) lessEqual(x, y value) value { return b.compare("less_equal_fwd", x, y) }
func (b *builder) equal(x, y value) value     { return b.compare("equal_fwd", x, y) }

// isNaN and isFinite also return masks.
func (b *builder) isNaN(x value) value    { return b.predicate("isnan_fwd", x) }
func (b *builder) isFinite(x value) value { return b.predicate("isfinite_fwd", x) }

func (b *builder) predicate(kernel string, x value) value {
	return b.node(kernel+"_"+x.typ.String(), nil, libsynapse.I8, x.sizes, x)
}

func (b *builder) unary(kernel string, x value) value {
	return b.node(kernel+"_"+x.typ.String(), nil, x.typ, x.sizes, x)
}

func (b *builder) binary(kernel string, x, y value) value {
	x, y = b.common(x, y)
	return b.node(kernel+"_"+x.typ.String(), nil, x.typ, b.broadcast(x, y), x, y)
}

func (b *builder) compare(kernel string, x, y value) value {
	x, y = b.common(x, y)
	return b.node(kernel+"_"+x.typ.String(), nil, libsynapse.I8, b.broadcast(x, y), x, y)
}

// where returns x where the mask is set, else y.
func (b *builder) where(mask, x, y value) value {
	x, y = b.common(x, y)
	return b.node("where_fwd_"+x.typ.String(), nil, x.typ, b.broadcast(mask, x, y), mask, x, y)
}

// common casts two operands to a common type.
func (b *builder) common(x, y value) (value, value) {
	if x.typ == y.typ {
		return x, y
	}
	return b.cast(x, libsynapse.F32), b.cast(y, libsynapse.F32)
}

// broadcast returns the common shape of operands.
func (b *builder) broadcast(list ...value) []uint64 {
	var sizes []uint64
	for _, v := range list {
		for d, n := range v.sizes {
			switch {
			case d == len(sizes):
				sizes = append(sizes, n)
			case sizes[d] == 1:
				sizes[d] = n
			case n != 1 && n != sizes[d]:
				b.fail(b.unsupported("an elementwise kernel on shapes %v and %v", sizes, v.sizes))
			}
		}
	}
	return sizes
}

// cast converts to another type, rounding to nearest even.
func (b *builder) cast(x value, to libsynapse.DataType) value {
	return b.castRounded(x, to, libsynapse.Nearest)
}

func (b *builder) castRounded(x value, to libsynapse.DataType, r libsynapse.Rounding) value {
	if x.typ == to {
		return x
	}
	return b.node("cast_"+x.typ.String()+"_to_"+to.String(), libsynapse.CastParams(r), to, x.sizes, x)
}

// sum adds along the first dimension, which stays with size 1.
func (b *builder) sum(x value) value { return b.reduce("reduce_sum", x, 0) }

// maximum returns the maximum along a dimension; undefined for NaN.
func (b *builder) maximum(x value, dim int) value { return b.reduce("reduce_max", x, dim) }

// minimum returns the minimum along the first dimension; undefined for NaN.
func (b *builder) minimum(x value) value { return b.reduce("reduce_min", x, 0) }

func (b *builder) reduce(kernel string, x value, dim int) value {
	if dim >= len(x.sizes) || x.sizes[dim] == 1 {
		return x
	}
	sizes := slices.Clone(x.sizes)
	sizes[dim] = 1
	return b.node(kernel+"_multi_dim_fwd_"+x.typ.String(), libsynapse.ReductionParams(1<<dim, true), x.typ, sizes, x)
}

// overAll reduces all dimensions to a scalar.
func (b *builder) overAll(kernel string, x value) value {
	return b.node(kernel+"_multi_dim_fwd_"+x.typ.String(), libsynapse.ReductionParams(0, false), x.typ, []uint64{1}, x)
}

// reshape returns the same elements with other sizes.
func (b *builder) reshape(x value, sizes ...uint64) value {
	if slices.Equal(x.sizes, sizes) {
		return x
	}
	if elems := (value{sizes: sizes}).elems(); elems != x.elems() {
		b.fail(b.unsupported("reshape %v to %v", x.sizes, sizes))
	}
	return b.node("reshape", nil, x.typ, sizes, x)
}

// transpose permutes dimensions: dimension d of the result is perm[d] of x.
func (b *builder) transpose(x value, perm ...int) value {
	sizes := make([]uint64, len(perm))
	for d, from := range perm {
		sizes[d] = x.sizes[from]
	}
	return b.node("transpose", libsynapse.TransposeParams(perm), x.typ, sizes, x)
}

// slice returns elements [from, to) of a dimension.
func (b *builder) slice(x value, dim int, from, to uint64) value {
	if from == 0 && to == x.sizes[dim] {
		return x
	}
	sizes := slices.Clone(x.sizes)
	sizes[dim] = to - from
	return b.node("slice", libsynapse.SliceParams(dim, from, to), x.typ, sizes, x)
}

// concat concatenates values along a dimension.
func (b *builder) concat(dim int, list ...value) value {
	if len(list) == 1 {
		return list[0]
	}
	sizes := slices.Clone(list[0].sizes)
	for _, v := range list[1:] {
		sizes[dim] += v.sizes[dim]
	}
	return b.node("concat", libsynapse.AxisParams(dim), list[0].typ, sizes, list...)
}

// bits reinterprets x as another type of the same width.
func (b *builder) bits(x value, typ libsynapse.DataType) value {
	if x.typ == typ {
		return x
	}
	return b.node("reinterpret_cast", nil, typ, x.sizes, x)
}

// zeros returns zeros of any type.
func (b *builder) zeros(typ libsynapse.DataType, sizes ...uint64) value {
	if typ == libsynapse.F32 {
		return b.filled(0, sizes...)
	}
	v := value{typ: typ, sizes: sizes}
	return b.data(typ, sizes, make([]byte, v.elems()*uint64(typ.Size())))
}

var _ = implement((*builder).addition)

// addition stores the sum of two matrices, or of a matrix and a bias.
func (b *builder) addition(o *backend.Add) error {
	other := b.wide(o.B)
	if o.Bias() {
		other = b.reshape(other, uint64(o.A.Cols()), 1)
	}
	b.store(o.Out, b.add(b.wide(o.A), other))
	return nil
}

var _ = implement((*builder).sumParts)

// sumParts adds the parts of X one after another: a reduction kernel has an order of its own.
func (b *builder) sumParts(o *backend.SumParts) error {
	x, rows := b.in(o.X), uint64(o.Out.Rows())
	x = b.reshape(x, uint64(o.X.Cols()), uint64(o.X.Rows()))
	parts, scales := uint64(o.X.Rows())/rows, absent
	scale := func(uint64) value { return scales }
	if o.X.Scale != nil {
		scales = b.in(o.X.Scale)
	}
	if o.X.Block != backend.PerTensor && parts > 1 {
		scales = b.reshape(scales, parts)
		scale = func(i uint64) value { return b.slice(scales, 0, i, i+1) }
	}
	if n := o.X.Scale; n != nil && n.Elems() != 1 && uint64(n.Elems()) != parts {
		return b.unsupported("%s is of granularity %s: Gaudi takes per-tensor scales only", o.X, o.X.Block)
	}
	if o.Rounded {
		scale = func(uint64) value { return b.constant(1) }
	}
	var sum value
	for i := range parts {
		part := b.dequantized(b.slice(x, 1, i*rows, (i+1)*rows), scale(i))
		if i > 0 {
			part = b.add(sum, part)
		}
		if sum = part; o.Each || o.Rounded && i == parts-1 {
			sum = b.rounded(sum, o.X.DType)
		}
	}
	if o.AtMax != nil {
		top := b.equal(b.abs(sum), b.constant(o.X.DType.Max()))
		b.out(o.AtMax, b.add(b.in(o.AtMax), b.overAll("reduce_sum", b.where(top, b.constant(1), b.constant(0)))))
	}
	if o.Rounded {
		sum = b.mul(sum, scales)
	}
	if o.Accumulate {
		sum = b.add(b.in(o.Out), sum)
	}
	b.out(o.Out, sum)
	return nil
}

// rounded returns v in F32, rounded to the FP8 format d by a cast there and back.
func (b *builder) rounded(v value, d fp8.DType) value {
	if own(b.spec).clip && d == b.spec.E4M3 {
		v = b.clipped(v, d.Max())
	}
	codes := b.nodes("convert_to_fp8_"+v.typ.String(), libsynapse.CastParams(libsynapse.Nearest), outputs(v, false, b.typeOf(d)), v)
	return b.dequantized(codes[0], b.constant(1))
}
