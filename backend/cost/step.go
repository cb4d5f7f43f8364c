package cost

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"octet/backend"
	"octet/fp8"
)

// Class is a kind of work whose time has one model.
type Class uint8

// The classes, in the order of reports.
const (
	GEMM Class = iota
	Attention
	Casts     // casts, and the maxima that their scales need
	RowOps    // all other ops that move memory
	Optimizer // AdamW, and the sums of squares before it
	Communication
	classes
)

var classNames = [...]string{"GEMMs", "attention", "casts", "row ops", "optimizer", "communication"}

func (c Class) String() string { return classNames[c] }

// Run is a lowered program and how often a training step runs it, a fraction for one that not
// every step runs.
type Run struct {
	Program *backend.Program
	Times   float64
}

// Step is the work of a training step, as [Machine.Predict] needs it.
type Step struct {
	programs []program
	formats  []string // of GEMMs, in order of first use
	doubts   map[string]bool
}

// NotValidated lists what the step has that no published row was compared with, sorted.
func (s *Step) NotValidated() []string { return slices.Sorted(maps.Keys(s.doubts)) }

// program is the work of one program.
type program struct {
	times float64
	work  []work
}

// work is that of one op.
type work struct {
	class    Class
	backward bool   // of attention
	format   string // of a GEMM's operands: the part of the number's name before "_peak"
	key      string // see Key
	flops    float64
	bytes    float64
	m, n, k  int           // of a GEMM
	group    backend.Group // of a collective, its ranks
	passes   int           // over the ring: 2 for an all-reduce
	exchange bool          // of a collective: an all-to-all, in which each device sends to each other
	comm     bool          // on the communication queue
	// waits is the index, within the program, of the last op on the communication queue that
	// writes an operand of this op; -1 for none.
	waits int
}

// NewStep lists the work of programs that backend.Lower returned.
func NewStep(runs ...Run) *Step {
	s := &Step{doubts: map[string]bool{}}
	known := map[string]bool{}
	for _, r := range runs {
		p := program{times: r.Times, work: make([]work, 0, len(r.Program.Nodes()))}
		writers := map[*backend.Tensor]int{} // the last op on the communication queue that writes a tensor
		for i, n := range r.Program.Nodes() {
			w := workOf(n)
			if doubt := doubtOf(n.Op); doubt != "" {
				s.doubts[doubt] = true
			}
			w.comm, w.waits = n.Queue == backend.CommQueue, -1
			if w.format != "" && !known[w.format] {
				known[w.format] = true
				s.formats = append(s.formats, w.format)
			}
			for _, o := range n.Operands() {
				root := o.Tensor.Root()
				if w.comm {
					if o.Access != backend.In {
						writers[root] = i
					}
				} else if last, ok := writers[root]; ok {
					w.waits = max(w.waits, last)
				}
			}
			p.work = append(p.work, w)
		}
		s.programs = append(s.programs, p)
	}
	return s
}

// workOf describes an op without its place in a program.
func workOf(n *backend.Node) work {
	c := n.Cost()
	w := work{class: RowOps, key: Key(n), flops: float64(c.FLOPs), bytes: float64(c.Bytes)}
	if _, whole, g := backend.Exchanged(n.Op); whole != nil {
		w.class, w.bytes, w.group, w.passes = Communication, float64(whole.Bytes()), g, 1
		switch n.Op.(type) {
		case *backend.AllReduce:
			w.passes = 2
		case *backend.AllToAll:
			w.exchange = true
		}
		return w
	}
	switch o := n.Op.(type) {
	case *backend.MatMul:
		w.class, w.format = GEMM, formatOf(o)
		w.m, w.n, w.k = o.Dims()
	case *backend.Attention:
		w.class = Attention
	case *backend.AttentionGrad:
		w.class, w.backward = Attention, true
	case *backend.Quantize, *backend.Amax, *backend.CastHealth, *backend.Hadamard:
		w.class = Casts
	case *backend.AdamW, *backend.SumSquares, *backend.LinearUpdate:
		w.class = Optimizer
	case backend.CustomOp: // of a backend's own lowering: copies in another layout
		if n.Queue == backend.CommQueue {
			w.class = Casts
		}
	}
	return w
}

// doubtOf names what no published row was compared with.
func doubtOf(op backend.Op) string {
	if _, _, g := backend.Exchanged(op); !g.All() {
		return "tensor parallelism"
	}
	switch o := op.(type) {
	case *backend.MatMul:
		switch {
		case o.A.Block != backend.PerTensor || o.B.Block != backend.PerTensor:
			return "GEMMs with scales per row or block"
		case formatOf(o) == "fp4" || formatOf(o) == "int8":
			return "GEMMs in " + formatOf(o)
		}
	case *backend.Route, *backend.AllToAll:
		return "mixtures of experts"
	}
	return ""
}

// formatOf returns the format whose peak limits a GEMM.
func formatOf(o *backend.MatMul) string {
	switch d := o.A.DType; {
	case d.IsInteger():
		return "int8"
	case !d.IsQuantized():
		if d.Size() == 4 {
			return "fp32"
		}
		return "bf16"
	case max(d.Format().Bits, o.B.DType.Format().Bits) <= 4:
		return "fp4"
	}
	return "fp8"
}

// Key names the ops that share a measured curve: the op and the formats of what it reads and
// writes, such as "MatMul NT e4m3 e4m3 > bf16" and "Quantize bf16 > e4m3 e4m3.t". It leaves out
// scales, tensors of one element, and all but the first tensor of a list.
func Key(n *backend.Node) string {
	var in, out []string
	name := strings.TrimPrefix(strings.TrimPrefix(fmt.Sprintf("%T", n.Op), "*"), "backend.")
	if o, ok := n.Op.(*backend.MatMul); ok {
		layout := "NT"
		switch {
		case o.TransA:
			layout = "TN"
		case !o.TransB:
			layout = "NN"
		}
		return fmt.Sprintf("%s %s %s %s > %s", name, layout, describe(o.A), describe(o.B), describe(o.Out))
	}
	for _, o := range n.Operands() {
		list := strings.IndexByte(o.Field, '[')
		if strings.Contains(o.Field, ".") || list >= 0 && o.Field[list:] != "[0]" || o.Tensor.Elems() == 1 {
			continue
		}
		if o.Access != backend.Out {
			in = append(in, describe(o.Tensor))
		}
		if o.Access != backend.In {
			out = append(out, describe(o.Tensor))
		}
	}
	for c := range backend.Casts(n.Op) {
		text := describe(c.Out)
		if c.Transpose {
			text += ".t"
		}
		if c.Rounding == fp8.Stochastic {
			text += "." + c.Rounding.String()
		}
		out = append(out, text)
	}
	if o, ok := n.Op.(*backend.AdamW); ok && o.Rounding == fp8.Stochastic {
		out = append(out, o.Rounding.String())
	}
	return fmt.Sprintf("%s %s > %s", name, strings.Join(in, " "), strings.Join(out, " "))
}

// describe returns a tensor's format with the blocks of its scales: "e4m3.1x128".
func describe(t *backend.Tensor) string {
	if t.Block == backend.PerTensor {
		return t.DType.String()
	}
	return t.DType.String() + "." + t.Block.String()
}
