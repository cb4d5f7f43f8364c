package cuda

import (
	"fmt"
	"slices"

	"octet/backend"
	"octet/csrc/libcuda"
	"octet/csrc/libcuda/kernels"
	"octet/fp8"
)

// lower rewrites programs into ops that the device can run, without changing a bit of
// their results:
//
//   - FP8 matrix units of Ada and Hopper require k as the last dimension of both
//     operands (cuBLASLt's TN). Any other operand X is replaced by a transposed
//     copy X.t, which the op that writes X writes in the same pass: in addition
//     to X, or instead of X if no other op reads X. After an all-gather, which
//     casts nothing, a transpose of the codes follows.
//   - What cuBLASLt has no epilogue for (row and column scales, FP8 output, a
//     residual of another format) becomes an Epilogue op after a GEMM with FP32
//     output.
//   - A Quantize op with a source of eight bits reads it dequantized to FP32.
//   - A result with more casts than a kernel supports is stored in several
//     passes.
//
// Weight codes are written by one program (update) and read by others (micro), so the
// programs are lowered together, and the transposed copy of a tensor that outlives its
// program is an additional Stash.
func lower(s backend.Spec, programs []*backend.Program) ([]*backend.Program, error) {
	l := &lowering{spec: s, isTransposed: map[*backend.Tensor]bool{}, copies: map[*backend.Tensor]*backend.Tensor{}}
	for _, p := range programs {
		if err := l.survey(p); err != nil {
			return nil, err
		}
	}
	if err := l.declareCopies(programs); err != nil {
		return nil, err
	}
	lowered := make([]*backend.Program, len(programs))
	for i, p := range programs {
		q, err := l.useCopies(p)
		if err == nil {
			q, err = dequantize(q)
		}
		if err == nil {
			q, err = split(q)
		}
		if err == nil {
			q, err = limitCasts(q)
		}
		if err != nil {
			return nil, err
		}
		lowered[i] = q
	}
	return lowered, nil
}

type lowering struct {
	spec         backend.Spec
	transposed   []*backend.Tensor        // roots that GEMMs read transposed, in the order of their use
	isTransposed map[*backend.Tensor]bool // the set of transposed
	// copies are the transposed copies of tensors that outlive a program, and of the
	// temps of the program that is being rewritten.
	copies map[*backend.Tensor]*backend.Tensor
}

func unsupported(n *backend.Node, format string, args ...any) error {
	return fmt.Errorf("%s: %w by backend cuda: %s", n.Path(), backend.ErrUnsupported, fmt.Sprintf(format, args...))
}

// gemmOperand is A or B of a GEMM.
type gemmOperand struct {
	name string
	t    *backend.Tensor
	swap bool // k is not its last dimension
}

func gemmOperands(o *backend.MatMul) [2]gemmOperand {
	return [2]gemmOperand{{"A", o.A, o.TransA}, {"B", o.B, !o.TransB}}
}

// survey refuses the GEMMs that the device does not support, and collects the operands
// that must be transposed.
func (l *lowering) survey(p *backend.Program) error {
	if err := p.Err(); err != nil {
		return err
	}
	for _, n := range p.Nodes() {
		o, ok := n.Op.(*backend.MatMul)
		if !ok {
			continue
		}
		if err := l.checkGEMM(n, o); err != nil {
			return err
		}
		for _, x := range gemmOperands(o) {
			if !o.A.DType.IsQuantized() || !x.swap {
				continue
			}
			root := x.t.Root()
			if x.t.Base != nil && x.t.Block != backend.PerTensor {
				return unsupported(n, "%s is %s, a view with block scales, which lowering cannot transpose", x.name, x.t)
			}
			if _, _, ok := corner(x.t); !ok {
				return unsupported(n, "%s is %s, a view that is not a rectangle of %s, so lowering cannot transpose it", x.name, x.t, root)
			}
			if !l.isTransposed[root] {
				l.isTransposed[root] = true
				l.transposed = append(l.transposed, root)
			}
		}
	}
	return nil
}

// checkGEMM checks cuBLASLt's rules for FP8 (its documentation of cublasLtMatmul and of
// tensor cores): operands and output begin at multiples of 16 bytes, and so do their
// rows. Beyond its documentation, cuBLASLt requires n, which it calls M, in multiples of
// 16 (its log: "Unsupported M dimension for FP8 matrix multiplication. M must be
// divisible by 16").
func (l *lowering) checkGEMM(n *backend.Node, o *backend.MatMul) error {
	if !o.A.DType.IsQuantized() {
		if o.A.Scale != nil || o.B.Scale != nil {
			return unsupported(n, "A is %s, B is %s: only FP8 operands have scales", o.A, o.B)
		}
		return nil
	}
	if a, b := o.Encodings(); !l.spec.Multiplies(a, b) {
		return unsupported(n, "%s × %s, A is %s and B is %s", a, b, o.A, o.B)
	}
	rows, cols, k := o.Dims()
	const unit, bytes = 16, 16
	switch mode, _ := scaleModes(o); {
	case (mode == libcuda.Vec128 || mode == libcuda.Block128) && rows%4 != 0:
		return unsupported(n, "m is %d, A is %s and Out is %s: with scales of 128 elements, the m of an FP8 GEMM must be a multiple of 4, such as %s", rows, o.A, o.Out, nearest(rows, 4))
	case mode.Elements() > 0 && mode.Elements() < 128 && k%32 != 0:
		return unsupported(n, "k is %d, A is %s and B is %s: with scales of %d elements, k must be a multiple of 32, such as %s", k, o.A, o.B, mode.Elements(), nearest(k, 32))
	}
	if k%unit != 0 {
		return unsupported(n, "k is %d, A is %s and B is %s: the k of an FP8 GEMM must be a multiple of %d, such as %s", k, o.A, o.B, unit, nearest(k, unit))
	}
	if cols%unit != 0 {
		return unsupported(n, "n is %d, B is %s and Out is %s: the n of an FP8 GEMM must be a multiple of %d, such as %s", cols, o.B, o.Out, unit, nearest(cols, unit))
	}
	list := []*backend.Tensor{o.A, o.B}
	if hasEpilogue(o) { // otherwise the GEMM writes a temp of its own, see split
		list = append(list, o.Out)
		if o.Residual != nil {
			list = append(list, o.Residual)
		}
	}
	for _, t := range list {
		if t.DType.Bytes(t.LD)%bytes != 0 || t.DType.Bytes(t.Offset)%bytes != 0 {
			return unsupported(n, "%s is a view whose rows do not begin on multiples of %d bytes", t, bytes)
		}
	}
	return nil
}

// nearest returns the multiples of unit next to n, as text.
func nearest(n, unit int) string {
	below := n / unit * unit
	if below == 0 {
		return fmt.Sprint(unit)
	}
	return fmt.Sprintf("%d or %d", below, below+unit)
}

// declareCopies checks that every op that writes a transposed tensor can write its copy
// too, and declares the copies that outlive a program.
func (l *lowering) declareCopies(programs []*backend.Program) error {
	written := map[*backend.Tensor]bool{}
	for _, p := range programs {
		for _, n := range p.Nodes() {
			for _, o := range n.Operands() {
				root := o.Tensor.Root()
				if o.Access == backend.In || !l.isTransposed[root] {
					continue
				}
				gather, ok := n.Op.(*backend.AllGather)
				gathered := ok && gather.Out == root
				if !gathered && !casts(n.Op, func(t *backend.Tensor) bool { return t == root }) {
					return unsupported(n, "an FP8 GEMM reads %s transposed, but the op that writes it has no cast that could write a transposed copy", o.Tensor)
				}
				written[root] = true
			}
		}
	}
	for _, t := range l.transposed {
		if !written[t] {
			return fmt.Errorf("%w by backend cuda: an FP8 GEMM reads %s transposed, and no op of these programs casts to it: store it with k as the last dimension", backend.ErrUnsupported, t)
		}
		if t.Class == backend.Temp {
			continue
		}
		name, vars := t.Name+".t", programs[0].Vars()
		c := vars.Lookup(name)
		if c == nil {
			stash := func(name string, d fp8.DType, shape ...int) *backend.Tensor {
				return vars.Tensor(backend.Stash, name, d, shape...)
			}
			c = stash(name, t.DType, t.Cols(), t.Rows())
			scaleAs(c, t, stash)
		}
		l.copies[t] = c
	}
	return programs[0].Vars().Err()
}

// casts reports whether op casts to a tensor that satisfies wanted.
func casts(op backend.Op, wanted func(*backend.Tensor) bool) bool {
	for c := range backend.Casts(op) {
		if wanted(c.Out) {
			return true
		}
	}
	return false
}

// useCopies makes GEMMs read transposed copies, and casts and all-gathers write them.
func (l *lowering) useCopies(p *backend.Program) (*backend.Program, error) {
	read := map[*backend.Tensor]bool{} // by ops other than GEMMs that read the copy
	for _, n := range p.Nodes() {
		o, isMatMul := n.Op.(*backend.MatMul)
		for _, x := range n.Operands() {
			replaced := isMatMul && (x.Field == "A" && o.TransA || x.Field == "B" && !o.TransB)
			if x.Access != backend.Out && !replaced {
				read[x.Tensor.Root()] = true
			}
		}
	}
	return backend.Rewrite(p, func(r *backend.Rewriter, n *backend.Node) {
		op := n.Op
		if o, ok := op.(*backend.MatMul); ok && o.A.DType.IsQuantized() {
			transposed := *o
			if o.TransA {
				transposed.A, transposed.TransA = l.copyOf(o.A), false
			}
			if !o.TransB {
				transposed.B, transposed.TransB = l.copyOf(o.B), true
			}
			op = &transposed
		} else if casts(n.Op, func(t *backend.Tensor) bool { return l.isTransposed[t] }) {
			op = backend.MapCasts(n.Op, func(casts []backend.Cast) []backend.Cast {
				var list []backend.Cast
				for _, c := range casts {
					list = append(list, l.withCopy(r, c, read)...)
				}
				return list
			})
		}
		r.Add(n, op)
		if o, ok := op.(*backend.AllGather); ok {
			if c := l.gatheredCopy(r, o.Out); c != nil {
				r.Add(n, &transpose{X: o.Out, Out: c})
			}
		}
	})
}

// gatheredCopy returns the transposed copy of t, the result of an all-gather: of codes, or of
// their block scales; nil if there is none.
func (l *lowering) gatheredCopy(r *backend.Rewriter, t *backend.Tensor) *backend.Tensor {
	for _, root := range l.transposed {
		scales := root.Block != backend.PerTensor && root.Scale == t
		if root != t && !scales {
			continue
		}
		c := l.copies[root]
		if c == nil { // of a temp
			c = r.Temp(root.Name+".t", root.DType, root.Cols(), root.Rows())
			scaleAs(c, root, r.Temp)
			l.copies[root] = c
		}
		if scales {
			return c.Scale
		}
		return c
	}
	return nil
}

// copyOf returns the transposed copy of t; if t is a view, the corresponding view of its
// base's copy.
func (l *lowering) copyOf(t *backend.Tensor) *backend.Tensor {
	c := l.copies[t.Root()]
	if t.Base == nil {
		return c
	}
	row, col, _ := corner(t)
	return c.RowRange(col, t.Cols()).Columns(t.Name+".t", row, t.Rows())
}

// scaleAs gives u, a transposed copy of t, the scales of t: per tensor the same, per block
// transposed ones of its own.
func scaleAs(u, t *backend.Tensor, declare func(name string, d fp8.DType, shape ...int) *backend.Tensor) {
	u.Scale, u.Outer = t.Scale, t.Outer
	if t.Block == backend.PerTensor {
		return
	}
	u.Block = backend.ScaleBlock{Rows: t.Block.Cols, Cols: t.Block.Rows}
	rows, cols := u.Block.ScaleShape(u.Rows(), u.Cols())
	u.Scale = declare(u.Name+".scale_inv", t.Scale.DType, rows, cols)
}

// corner returns where t begins in its base, and whether t is a rectangle of it.
func corner(t *backend.Tensor) (row, col int, ok bool) {
	width := t.Root().Cols()
	row, col = t.Offset/width, t.Offset%width
	return row, col, t.LD == width && col+t.Cols() <= width
}

// withCopy returns the cast, its transposed copy's cast if there is a copy, or the latter
// alone if no op reads the original. A tensor that outlives the program is always
// written: another program, or the host, may read it.
func (l *lowering) withCopy(r *backend.Rewriter, c backend.Cast, read map[*backend.Tensor]bool) []backend.Cast {
	if !l.isTransposed[c.Out] {
		return []backend.Cast{c}
	}
	transposed := c
	transposed.Transpose = !c.Transpose
	if c.Rounding == fp8.Stochastic {
		transposed.Stream = c.StreamName()
	}
	temp := c.Out.Class == backend.Temp
	if temp {
		t := r.Temp(c.Out.Name+".t", c.Out.DType, c.Out.Cols(), c.Out.Rows())
		scaleAs(t, c.Out, r.Temp)
		l.copies[c.Out] = t
	}
	transposed.Out = l.copies[c.Out]
	if c.ScaleInv != nil {
		transposed.ScaleInv = transposed.Out.Scale
	}
	if temp && !read[c.Out] {
		return []backend.Cast{transposed}
	}
	transposed.Amax = nil
	return []backend.Cast{c, transposed}
}

// split splits MatMuls that cuBLASLt cannot compute in one call into a GEMM and an
// Epilogue.
func split(p *backend.Program) (*backend.Program, error) {
	return backend.Rewrite(p, func(r *backend.Rewriter, n *backend.Node) {
		o, ok := n.Op.(*backend.MatMul)
		if !ok || hasEpilogue(o) {
			r.Add(n, n.Op)
			return
		}
		rows, cols, _ := o.Dims()
		matMul := backend.MatMul{
			A: o.A, B: o.B, TransA: o.TransA, TransB: o.TransB, Accum: o.Accum,
			Out: r.Temp(o.Out.Name+".product", fp8.F32, rows, cols),
		}
		r.Add(n, &matMul)
		r.Add(n, o.Epilogue(matMul.Out))
	})
}

// hasEpilogue reports whether cuBLASLt computes the whole op: D = α·A·B + β·C with C and
// D of one format, which is FP32 for FP32 operands, and BF16 or FP32 for others. cuBLASLt
// could also store FP8, which only tests request.
func hasEpilogue(o *backend.MatMul) bool {
	d := o.Out.DType
	return o.RowScale == nil && o.ColScale == nil && !d.IsQuantized() &&
		(o.Residual == nil || o.Residual.DType == d) &&
		(o.A.DType != fp8.F32 || d == fp8.F32)
}

// maxCasts is the length of the list of casts in the kernels' arguments.
const maxCasts = kernels.MaxCasts

// limitCasts splits longer lists of casts by way of an FP32 temp.
func limitCasts(p *backend.Program) (*backend.Program, error) {
	fits := func(op backend.Op) bool { return longestCasts(op) <= maxCasts }
	if !slices.ContainsFunc(p.Nodes(), func(n *backend.Node) bool { return !fits(n.Op) }) {
		return p, nil
	}
	p, err := backend.Unfuse(p, fits)
	if err != nil {
		return nil, err
	}
	return backend.Rewrite(p, func(r *backend.Rewriter, n *backend.Node) {
		q, ok := n.Op.(*backend.Quantize)
		if !ok {
			r.Add(n, n.Op)
			return
		}
		for casts := range slices.Chunk(q.Out, maxCasts) {
			part := *q
			part.Out = casts
			r.Add(n, &part)
		}
	})
}

// longestCasts returns the length of an op's longest list of casts.
func longestCasts(op backend.Op) (longest int) {
	backend.MapCasts(op, func(casts []backend.Cast) []backend.Cast {
		longest = max(longest, len(casts))
		return casts
	})
	return longest
}
