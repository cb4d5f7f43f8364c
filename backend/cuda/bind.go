package cuda

import (
	"cmp"
	"fmt"
	"math"
	"reflect"
	"strings"

	"octet/backend"
	"octet/csrc/libcuda/kernels"
	"octet/fp8"
)

// call is one thing that a node asks of the device: a launch, a product or a
// collective.
type call struct {
	launch     *launch
	product    *product
	collective *collective
}

// launch is a kernel and its argument, a struct of words passed by value.
type launch struct {
	kernel        string
	source        string // that has the kernel
	grid          [3]int
	block, shared int // threads, and bytes of dynamic shared memory
	args          []uint64
}

// product is D = op(A)·op(B) + beta·C of row-major matrices.
type product struct {
	m, n, k        int
	transA, transB bool
	fast           bool // partial sums stay in the matrix unit
	a, b, c, d     matrix
	beta           float32 // 0: there is no C
}

type matrix struct {
	dtype   fp8.DType
	address uint64
	ld      int
	scale   uint64 // of the dequantising factor; 0: none
}

// binder turns the nodes of a set of programs into calls. It does not talk to a
// device: addresses are numbers, so that what would run can be looked at on any
// machine.
type binder struct {
	address func(*backend.Tensor) uint64 // of a tensor's first element

	wgmma bool // attention takes the kernels that are Hopper's alone

	rank, ranks int      // whose calls these are, of how many; 0: of any number, not to be made
	meetings    []string // names of collectives, in the order of their marks

	// tables are words that kernels read from device memory, where they will be
	// at tableAt. They do not change from run to run.
	tables  []uint64
	tableAt uint64
	// scratch is how many bytes the calls of one node need beside their operands,
	// at most; scratchAt is where they will be.
	scratch   int64
	scratchAt uint64
	products  bool // there are any
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

// bind turns a node into calls, in order. The switch is complete: the op set is
// closed.
func (b *binder) bind(n *backend.Node) ([]call, error) {
	if err := checkOperands(n); err != nil {
		return nil, err
	}
	switch o := n.Op.(type) {
	case *backend.MatMul:
		return b.matMul(n, o)
	case *backend.Epilogue:
		return b.plain("epilogue", o, o.X)
	case *backend.Quantize:
		var scales []int
		for _, c := range o.Out {
			count := 0
			if c.ScaleInv != nil {
				count = c.ScaleInv.Elems()
			}
			scales = append(scales, count)
		}
		return b.launches(kernels.Quantize(o.X.Rows(), o.X.Cols(), scales), b.args(o, extent(o.X)...)), nil
	case *backend.Amax:
		if o.Out.Elems() == 1 {
			return b.plain("amax", o, o.X)
		}
		return b.plain("amax_columns", o, o.X)
	case *backend.UpdateScale:
		h := *o
		h.History = asMatrix(o.History, o.Scale.Elems())
		return b.plain("update_scale", &h, h.History)
	case *backend.PushHistory:
		return b.plain("push_history", o, o.History)
	case *backend.Fill:
		return b.plain("fill", o, o.Out)
	case *backend.Embed:
		return b.shaped("embed", o, o.IDs.Elems(), o.Table.Cols(), o.Table.Rows())
	case *backend.EmbedGrad:
		return b.shaped("embed_grad", o, o.DOut.Rows(), o.DOut.Cols(), o.DTable.Rows())
	case *backend.Add:
		return b.plain("add", o, o.A)
	case *backend.RMSNorm:
		return b.plain("rms_norm", o, o.X)
	case *backend.RMSNormGrad:
		return b.plain("rms_norm_grad", o, o.DOut)
	case *backend.Rope:
		return b.launches(kernels.Rope(o.X.Rows(), o.X.Cols(), o.HeadDim), b.args(o, extent(o.X)...)), nil
	case *backend.Attention:
		s := b.attentionShape(o.Q, o.K, o.Batch, o.HeadDim, o.Q, o.K, o.V)
		return b.launches(kernels.Attention(s), append(b.operands(o), s.Words()...)), nil
	case *backend.AttentionGrad:
		s := b.attentionShape(o.Q, o.K, o.Batch, o.HeadDim, o.DOut, o.Q, o.K, o.V, o.O)
		return b.launches(kernels.AttentionGrad(s), append(b.operands(o), s.Words()...)), nil
	case *backend.CacheWrite:
		return b.shaped("cache_write", o, o.X.Rows(), o.X.Cols(), o.Cache.Rows())
	case *backend.SwiGLU:
		if o.RowFactor != nil {
			return b.plain("swiglu_by_row", o, o.Up)
		}
		return b.plain("swiglu", o, o.Up)
	case *backend.SwiGLUAmax:
		return b.plain("swiglu_amax", o, o.Up)
	case *backend.SwiGLUGrad:
		return b.plain("swiglu_grad", o, o.DOut)
	case *backend.SmoothScale:
		s := *o
		s.Factor, s.ChannelMax = asMatrix(o.Factor, o.WeightMax.Elems()), asMatrix(o.ChannelMax, o.WeightMax.Elems())
		return b.shaped("smooth_scale", &s, s.Factor.Rows(), s.Factor.Cols(), s.ChannelMax.Rows())
	case *backend.Activation:
		return b.plain("activation", o, o.X)
	case *backend.ActivationGrad:
		return b.plain("activation_grad", o, o.DOut)
	case *backend.CrossEntropy:
		return b.plain("cross_entropy", o, o.Logits)
	case *backend.Sum:
		return b.shaped("sum", o, 1, o.X.Elems())
	case *backend.SumSquares:
		return b.sumSquares(o), nil
	case *backend.StepGate:
		amaxes := 0
		if o.Amax != nil {
			amaxes = o.Amax.Elems()
		}
		return b.shaped("step_gate", o, 1, amaxes)
	case *backend.AdamW:
		return b.adamW(n, o)
	case *backend.CastHealth:
		rows, cols := o.X.Rows(), o.X.Cols()
		e8m0 := 0
		if o.Codes.Scale.DType == fp8.E8M0 {
			e8m0 = 1
		}
		return b.shaped("cast_health", o, rows, cols, o.Codes.Scale.Elems(),
			cmp.Or(o.Codes.Block.Rows, rows), cmp.Or(o.Codes.Block.Cols, cols), e8m0)
	case *backend.RowCosine:
		return b.plain("row_cosine", o, o.A)
	case *backend.AllReduce, *backend.ReduceScatter, *backend.AllGather, *backend.Send, *backend.Recv:
		return b.collective(n)
	}
	return nil, unsupported(n, "there is no kernel for %T", n.Op)
}

// checkOperands refuses what the kernels' arguments have no room for.
func checkOperands(n *backend.Node) error {
	var control *backend.Tensor
	for c := range backend.Casts(n.Op) {
		if c.Control != nil && control != nil && c.Control != control {
			return unsupported(n, "its casts read two controls, %s and %s", c.Control, control)
		}
		control = cmp.Or(c.Control, control)
	}
	if most := mostCasts(n.Op); most > maxCasts {
		return unsupported(n, "it stores a result %d times, %d are possible: it is not lowered for this device", most, maxCasts)
	}
	for _, o := range n.Operands() {
		t := o.Tensor
		switch {
		case t.DType == fp8.I32 && !t.Contiguous():
			return unsupported(n, "%s is %s, a view with gaps: make it a tensor of its own", o.Field, t)
		case knowsBlocks(n.Op, o.Field):
		case t.Block != backend.PerTensor:
			return unsupported(n, "%s is %s with scales by block (%s)", o.Field, t, t.Block)
		case t.DType == fp8.E8M0:
			return unsupported(n, "%s is %s", o.Field, t)
		}
	}
	return nil
}

// knowsBlocks reports whether the op's kernel takes scales by block in a field.
func knowsBlocks(op backend.Op, field string) bool {
	switch op.(type) {
	case *backend.Quantize:
		return strings.HasPrefix(field, "Out[")
	case *backend.AdamW:
		return strings.HasPrefix(field, "M1") || strings.HasPrefix(field, "M2")
	case *backend.CastHealth:
		return strings.HasPrefix(field, "Codes")
	default:
		return false
	}
}

// plain is an op whose kernels need no more than the extent of an operand.
func (b *binder) plain(name string, op backend.Op, of *backend.Tensor) ([]call, error) {
	return b.shaped(name, op, of.Rows(), of.Cols())
}

// shaped is an op with an extent, and more words behind it where its kernels
// want them.
func (b *binder) shaped(name string, op backend.Op, rows, cols int, more ...int) ([]call, error) {
	l, ok := kernels.Of(name, rows, cols)
	if !ok {
		return nil, fmt.Errorf("%w by backend cuda: package kernels has no %s", backend.ErrUnsupported, name)
	}
	return b.launches(l, b.args(op, append([]int{rows, cols}, more...)...)), nil
}

func extent(t *backend.Tensor) []int { return []int{t.Rows(), t.Cols()} }

// asMatrix is t with rows of n elements.
func asMatrix(t *backend.Tensor, n int) *backend.Tensor {
	if t.Cols() == n {
		return t
	}
	m := *t
	m.Shape, m.LD = []int{t.Elems() / n, n}, n
	return &m
}

// launches gives every kernel of an op the same arguments, the last of which is
// the scratch memory.
func (b *binder) launches(l kernels.Launches, args []uint64) []call {
	scratch := uint64(0)
	if l.Scratch > 0 {
		b.scratch, scratch = max(b.scratch, l.Scratch), b.scratchAt
	}
	args = append(args, scratch)
	var calls []call
	for _, k := range l.Kernels {
		calls = append(calls, call{launch: &launch{kernel: k.Name, source: k.Source, grid: k.Grid, block: k.Block, shared: k.Shared, args: args}})
	}
	return calls
}

// args are the words of an op: its operands, its extent, its plain fields.
func (b *binder) args(op backend.Op, extent ...int) []uint64 {
	args := b.operands(op)
	for _, n := range extent {
		args = append(args, uint64(n))
	}
	return append(args, settings(op)...)
}

// operands are the words of an op's tensors and casts, in the order of its
// fields. Lists of tensors are for tables.
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

// settings are the words of an op's plain fields.
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
		case reflect.Uint8:
			words = append(words, f.Uint())
		case reflect.Float32, reflect.Float64:
			words = append(words, math.Float64bits(f.Float()))
		}
	}
	return words
}

// formats are the kernels' numbers.
var formats = map[fp8.DType]kernels.Format{
	fp8.F32: kernels.F32, fp8.BF16: kernels.BF16, fp8.F16: kernels.F16,
	fp8.E4M3: kernels.E4M3, fp8.E4M3IEEE: kernels.E4M3IEEE, fp8.E5M2: kernels.E5M2,
	fp8.I32: kernels.I32, fp8.E8M0: kernels.E8M0,
}

// of is the address of a tensor's first element, 0 for none.
func (b *binder) of(t *backend.Tensor) uint64 {
	if t == nil {
		return 0
	}
	return b.address(t)
}

// tensor is struct Tensor. Kernels read one scale for a tensor.
func (b *binder) tensor(t *backend.Tensor) []uint64 {
	if t == nil {
		return make([]uint64, kernels.TensorWords)
	}
	return []uint64{b.address(t), uint64(t.LD), uint64(formats[t.DType]), b.of(t.Scale)}
}

// casts is struct Casts.
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

// cast is struct Cast.
func (b *binder) cast(c backend.Cast) []uint64 {
	var flags kernels.Flag
	for flag, set := range map[kernels.Flag]bool{
		kernels.Stochastic: c.Rounding == fp8.Stochastic, kernels.Tokens: c.Tokens, kernels.Transpose: c.Transpose, kernels.Pow2: c.Pow2,
		kernels.ScaleE8M0: c.ScaleInv != nil && c.ScaleInv.DType == fp8.E8M0,
	} {
		if set {
			flags |= flag
		}
	}
	return []uint64{
		b.address(c.Out), uint64(c.Out.LD), uint64(formats[c.Out.DType]), b.of(c.Scale), b.of(c.Amax),
		uint64(flags), fp8.NameKey(c.StreamName()), b.of(c.ScaleInv), uint64(c.Out.Block.Rows), uint64(c.Out.Block.Cols),
		math.Float64bits(float64(c.Limit)), 0,
	}
}

// table puts words where kernels will find them, and says where that is.
func (b *binder) table(words []uint64) uint64 {
	at := b.tableAt + uint64(8*len(b.tables))
	b.tables = append(b.tables, words...)
	return at
}
