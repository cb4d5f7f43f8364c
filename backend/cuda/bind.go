package cuda

import (
	"cmp"
	"fmt"
	"math"
	"reflect"
	"slices"

	"octet/backend"
	"octet/csrc/libcuda"
	"octet/csrc/libcuda/kernels"
	"octet/fp8"
)

// call is one step of a node: a kernel launch, a GEMM or a collective. Exactly one field
// is set.
type call struct {
	launch     *launch
	gemm       *gemm
	collective *collective
}

// launch is a kernel and its argument, a struct of 64-bit words passed by value.
type launch struct {
	kernel        string
	source        source
	grid          [3]int
	block, shared int // threads, and bytes of dynamic shared memory
	args          []uint64
}

// source defines kernels: a file of package kernels, or the text of a custom op's.
type source struct{ name, text string }

// gemm is D = op(A)·op(B) + beta·C of row-major matrices.
type gemm struct {
	m, n, k        int
	transA, transB bool
	fast           bool // accumulate in the tensor core, without promotion to FP32 registers
	a, b, c, d     matrix
	beta           float32 // 0: no C
	factors        uint64  // address of alpha and beta; 0: alpha is 1
}

type matrix struct {
	dtype   fp8.DType
	address uint64
	ld      int
	scale   uint64 // address of scale_inv; 0: none
	mode    libcuda.ScaleMode
}

// binder turns the nodes of a set of programs into calls. It does not access a device:
// addresses are integers, so calls can be inspected on any machine.
type binder struct {
	address func(*backend.Tensor) uint64 // address of a tensor's first element

	wgmma bool // attention uses the wgmma kernels

	ranks int      // number of ranks; 0: unknown, only to measure
	marks []string // names of collectives; marks[i] has the marks 2i+1 and 2i+2

	// tables are words that kernels read from device memory at tableAt. They are the same
	// in every run.
	tables  []uint64
	tableAt uint64
	// scratch is the maximum number of scratch bytes that the calls of one node need;
	// scratchAt is the address of that memory.
	scratch   int64
	scratchAt uint64
	hasGEMM   bool // needs cuBLASLt's workspace
}

// bindAll binds every node of every program.
func (b *binder) bindAll(programs []*backend.Program) ([][][]call, error) {
	list := make([][][]call, len(programs))
	for i, p := range programs {
		for _, n := range p.Nodes() {
			calls, err := b.bind(n)
			if err != nil {
				return nil, err
			}
			list[i] = append(list[i], calls)
		}
	}
	return list, nil
}

// bind turns a node into calls, in order.
func (b *binder) bind(n *backend.Node) ([]call, error) {
	row, ok := rowOf(n.Op)
	if !ok {
		return nil, unsupported(n, "no kernel for %T; a custom op must implement backend.Looped, with CUDA source in its Loop", n.Op)
	}
	if err := checkOperands(n, row.blockScaled); err != nil {
		return nil, err
	}
	return row.bind(b, n)
}

// checkOperands refuses operands that the kernels' arguments cannot express.
func checkOperands(n *backend.Node, blockScaled []string) error {
	var control *backend.Tensor
	for c := range backend.Casts(n.Op) {
		if c.Control != nil && control != nil && c.Control != control {
			return unsupported(n, "its casts read two controls, %s and %s", c.Control, control)
		}
		control = cmp.Or(c.Control, control)
		if c.Rule == fp8.Quotient && c.ScaleInv.DType != fp8.E4M3 {
			return unsupported(n, "the block scales of %s are in %s, which the kernels lack: use fp32, e8m0 or e4m3", c.Out, c.ScaleInv.DType)
		}
	}
	if longest := longestCasts(n.Op); longest > maxCasts {
		return unsupported(n, "it stores a result %d times, the maximum is %d: lower the program for this device", longest, maxCasts)
	}
	if q, ok := n.Op.(*backend.Quantize); ok && q.X.DType.IsQuantized() {
		return unsupported(n, "X is %s, a source of eight bits, which the kernels lack", q.X)
	}
	for _, o := range n.Operands() {
		t := o.Tensor
		_, known := formats[t.DType]
		if _, takes := n.Op.(*backend.LinearUpdate); t.DType == fp8.INT8 && !takes {
			known = false
		}
		switch {
		case !known:
			return unsupported(n, "%s is %s, a format that the kernels lack", o.Field, t)
		case t.DType == fp8.I32 && !t.Contiguous():
			return unsupported(n, "%s is %s, a view with gaps: copy it to a contiguous tensor", o.Field, t)
		case slices.Contains(blockScaled, o.FieldName()):
		case t.DType.Size() == 0:
			return unsupported(n, "%s is %s, which only casts of Quantize write and GEMMs read", o.Field, t)
		case t.Outer != nil:
			return unsupported(n, "%s is %s with an outer scale", o.Field, t)
		case t.Block != backend.PerTensor:
			return unsupported(n, "%s is %s with block scales (%s)", o.Field, t, t.Block)
		case t.DType == fp8.E8M0:
			return unsupported(n, "%s is %s", o.Field, t)
		}
	}
	return nil
}

// shaped binds an op to the kernels of a name. The extent is rows, columns and the words
// that the kernels need in addition.
func (b *binder) shaped(name string, op backend.Op, extent ...int) ([]call, error) {
	l, ok := kernels.Of(name, extent[0], extent[1])
	if !ok {
		return nil, fmt.Errorf("%w by backend cuda: package kernels has no %s", backend.ErrUnsupported, name)
	}
	return b.launches(l, b.args(op, extent...)), nil
}

func extent(t *backend.Tensor) []int { return []int{t.Rows(), t.Cols()} }

// asMatrix returns t reshaped to rows of n elements.
func asMatrix(t *backend.Tensor, n int) *backend.Tensor {
	if t.Cols() == n {
		return t
	}
	m := *t
	m.Shape, m.LD = []int{t.Elems() / n, n}, n
	return &m
}

// launches passes the same arguments to every kernel of an op; the last one is the
// scratch address.
func (b *binder) launches(l kernels.Launches, args []uint64) []call {
	scratch := uint64(0)
	if l.Scratch > 0 {
		b.scratch, scratch = max(b.scratch, l.Scratch), b.scratchAt
	}
	args = append(args, scratch)
	var calls []call
	for _, k := range l.Kernels {
		calls = append(calls, call{launch: &launch{kernel: k.Name, source: source{name: k.Source}, grid: k.Grid, block: k.Block, shared: k.Shared, args: args}})
	}
	return calls
}

// args returns the words of an op: operands, extent, plain fields.
func (b *binder) args(op backend.Op, extent ...int) []uint64 {
	args := b.operands(op)
	for _, n := range extent {
		args = append(args, uint64(n))
	}
	return append(args, settings(op)...)
}

// operands returns the words of an op's tensors and casts, in the order of its fields.
// Lists of tensors are passed in tables.
func (b *binder) operands(op backend.Op) (words []uint64) {
	v := reflect.ValueOf(op).Elem()
	for i := range v.NumField() {
		switch x := v.Field(i).Interface().(type) {
		case *backend.Tensor:
			words = append(words, b.tensor(x)...)
		case []backend.Cast:
			words = append(words, b.casts(x)...)
		}
	}
	return words
}

// settings returns the words of an op's plain fields.
func settings(op backend.Op) (words []uint64) {
	v := reflect.ValueOf(op).Elem()
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.Bool:
			word := uint64(0)
			if f.Bool() {
				word = 1
			}
			words = append(words, word)
		case reflect.Int:
			words = append(words, uint64(f.Int()))
		case reflect.Uint8, reflect.Uint16:
			words = append(words, f.Uint())
		case reflect.Float32, reflect.Float64:
			words = append(words, math.Float64bits(f.Float()))
		case reflect.Struct:
			if g, ok := f.Interface().(backend.Group); ok {
				words = append(words, uint64(g.Size), uint64(g.Stride))
			}
		}
	}
	return words
}

// formats are the codes of the formats in the kernels.
var formats = map[fp8.DType]kernels.Format{
	fp8.F32: kernels.F32, fp8.BF16: kernels.BF16, fp8.F16: kernels.F16,
	fp8.E4M3: kernels.E4M3, fp8.E4M3IEEE: kernels.E4M3IEEE, fp8.E5M2: kernels.E5M2,
	fp8.I32: kernels.I32, fp8.E8M0: kernels.E8M0, fp8.E2M1: kernels.E2M1, fp8.INT8: kernels.INT8,
}

// of returns the address of a tensor's first element, 0 for nil.
func (b *binder) of(t *backend.Tensor) uint64 {
	if t == nil {
		return 0
	}
	return b.address(t)
}

// tensor returns the words of struct Tensor. Kernels read one scale per tensor.
func (b *binder) tensor(t *backend.Tensor) []uint64 {
	if t == nil {
		return make([]uint64, kernels.TensorWords)
	}
	return []uint64{b.address(t), uint64(t.LD), uint64(formats[t.DType]), b.of(t.Scale)}
}

// casts returns the words of struct Casts.
func (b *binder) casts(list []backend.Cast) []uint64 {
	words := make([]uint64, 0, kernels.CastsWords)
	control := uint64(0)
	for _, c := range list {
		control = max(control, b.of(c.Control))
	}
	words = append(words, uint64(len(list)), control)
	for _, c := range list {
		words = append(words, b.cast(c)...)
	}
	return words[:kernels.CastsWords]
}

// cast returns the words of struct Cast.
func (b *binder) cast(c backend.Cast) []uint64 {
	var flags kernels.Flag
	for flag, set := range map[kernels.Flag]bool{
		kernels.Stochastic: c.Rounding == fp8.Stochastic, kernels.Tokens: c.Tokens, kernels.Transpose: c.Transpose, kernels.Pow2: c.Rule == fp8.Pow2Down,
		kernels.ScaleE8M0: c.ScaleInv != nil && c.ScaleInv.DType == fp8.E8M0, kernels.ScaleE4M3: c.ScaleInv != nil && c.ScaleInv.DType == fp8.E4M3,
		kernels.ScaleDown: c.Rule == fp8.RoundDown,
	} {
		if set {
			flags |= flag
		}
	}
	return []uint64{
		b.address(c.Out), uint64(c.Out.LD), uint64(formats[c.Out.DType]), b.of(c.Scale), b.of(c.Amax),
		uint64(flags), fp8.NameKey(c.StreamName()), b.of(c.ScaleInv), uint64(c.Out.Block.Rows), uint64(c.Out.Block.Cols),
		math.Float64bits(float64(c.Limit)), precisionWord(c.Precision),
	}
}

// precisionWord returns the argument of the function reduced in formats.cuh; 0 for Invalid.
func precisionWord(d fp8.DType) uint64 {
	if d == fp8.Invalid {
		return 0
	}
	f := d.Format()
	word := uint64(23-f.Mantissa) | uint64(128-f.Bias)<<8 | uint64(math.Float32bits(d.Max()))<<32
	if f.Mask {
		word |= 1 << 16
	}
	return word
}

// table appends words to the tables and returns their device address.
func (b *binder) table(words []uint64) uint64 {
	at := b.tableAt + uint64(8*len(b.tables))
	b.tables = append(b.tables, words...)
	return at
}
