package gaudi

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"octet/backend"
	"octet/csrc/libsynapse"
	"octet/fp8"
)

// interpreter is a backend that runs the graphs of units in Go: as slowly as can
// be, and as unkindly as a device may. Nodes run in any order that data and
// control edges allow, what the compiler places is NaN before it is written, a
// maximum loses NaN, and every section is memory of its own that a launch binds.
type interpreter struct {
	spec  backend.Spec
	rng   *rand.Rand
	host  map[*backend.Tensor][]byte // the variables, side by side
	units int                        // launched
}

func interpreterDriver(model string) backend.Driver {
	return backend.Driver{
		Name:  "gaudi",
		Spec:  func(string) (backend.Spec, error) { return spec(model) },
		Lower: lower,
		Open: func(_ string, o backend.Options) (backend.Backend, error) {
			if o.Group != nil {
				return nil, fmt.Errorf("one rank: %w", backend.ErrUnsupported)
			}
			s, err := spec(model)
			return &interpreter{spec: s, rng: rand.New(rand.NewPCG(1, 2)), host: map[*backend.Tensor][]byte{}}, err
		},
	}
}

func (d *interpreter) Spec() backend.Spec { return d.spec }
func (d *interpreter) Close() error       { return nil }

func (d *interpreter) Write(t *backend.Tensor, raw []byte) error {
	d.rows(t, func(root, own []byte) { copy(root, own) }, raw)
	return nil
}

func (d *interpreter) Read(t *backend.Tensor, raw []byte) error {
	d.rows(t, func(root, own []byte) { copy(own, root) }, raw)
	return nil
}

func (d *interpreter) rows(t *backend.Tensor, visit func(root, own []byte), raw []byte) {
	size := t.DType.Size()
	n := t.Cols() * size
	for r := range t.Rows() {
		visit(d.host[t.Root()][(t.Offset+r*t.LD)*size:][:n], raw[r*n:][:n])
	}
}

func (d *interpreter) Load(programs ...*backend.Program) ([]backend.Executable, error) {
	for t := range programs[0].Vars().All() {
		d.host[t] = make([]byte, t.Bytes())
	}
	c := newCutter(d.spec, false, programs...)
	var list []backend.Executable
	for _, p := range programs {
		s, err := c.cut(p)
		if err != nil {
			return nil, err
		}
		list = append(list, &interpreted{d, c.layouts, s, c.planOf(s)})
	}
	return list, nil
}

type interpreted struct {
	d       *interpreter
	layouts layouts
	s       *schedule
	plan    *backend.Plan
}

func (e *interpreted) Close() error { return nil }

func (e *interpreted) RunObserved(context.Context, backend.Observer) error {
	return errors.ErrUnsupported
}

// Run scatters the variables to their layouts, launches, and gathers.
func (e *interpreted) Run(context.Context) error {
	device := map[*backend.Tensor][]byte{}
	for t, host := range e.d.host {
		l := e.layouts.of(t)
		device[t] = slices.Repeat([]byte{0xff}, int(l.Bytes())) // NaN where no launch writes
		l.scatter(device[t], host)
	}
	arena := slices.Repeat([]byte{0xff}, int(e.plan.Bytes))
	for t, at := range e.plan.Offsets {
		device[t] = arena[at:][:e.layouts.of(t).Bytes()]
	}
	for _, s := range e.s.steps {
		if s.collective != nil {
			return fmt.Errorf("a collective: %w", backend.ErrUnsupported)
		}
		sections := make([][]byte, len(s.sections))
		for i, r := range s.sections {
			if r.offset%int64(own(e.d.spec).align) != 0 {
				return fmt.Errorf("section %d of %s begins at %d of %s", i, s.unit.name, r.offset, r.root)
			}
			sections[i] = device[r.root][r.offset:][:r.bytes]
		}
		if err := (&launch{spec: e.d.spec, rng: e.d.rng, g: s.unit.graph, sections: sections}).run(); err != nil {
			return fmt.Errorf("%s: %w", s.unit.name, err)
		}
		e.d.units++
	}
	for t, host := range e.d.host {
		e.layouts.of(t).gather(host, device[t])
	}
	return nil
}

// launch runs one graph.
type launch struct {
	spec     backend.Spec
	rng      *rand.Rand
	g        *libsynapse.Graph
	sections [][]byte
	local    [][]float64 // of tensors without a section
}

func (l *launch) run() error {
	l.local = make([][]float64, len(l.g.Tensors))
	producer := make([]int, len(l.g.Tensors))
	for k := range producer {
		producer[k] = -1
	}
	for i, n := range l.g.Nodes {
		for _, k := range n.Out {
			if k >= 0 {
				producer[k] = i
			}
		}
	}
	done := make([]bool, len(l.g.Nodes))
	ready := func(i int) bool {
		n := l.g.Nodes[i]
		return !done[i] &&
			!slices.ContainsFunc(n.After, func(j int) bool { return !done[j] }) &&
			!slices.ContainsFunc(n.In, func(k int) bool { return k >= 0 && producer[k] >= 0 && !done[producer[k]] })
	}
	for range l.g.Nodes {
		var list []int
		for i := range l.g.Nodes {
			if ready(i) {
				list = append(list, i)
			}
		}
		if len(list) == 0 {
			return errors.New("the nodes wait for each other")
		}
		i := list[l.rng.IntN(len(list))]
		if err := l.node(&l.g.Nodes[i]); err != nil {
			return fmt.Errorf("node %d, %s: %w", i, l.g.Nodes[i].GUID, err)
		}
		done[i] = true
	}
	return nil
}

// array is a tensor's contents.
type array struct {
	typ   libsynapse.DataType
	sizes []uint64
	x     []float64
}

func (l *launch) read(k int) *array {
	if k < 0 {
		return nil
	}
	t := &l.g.Tensors[k]
	a := &array{t.Type, t.Sizes, nil}
	switch {
	case t.Const != nil:
		a.x = l.decode(t.Type, t.Const)
	case t.Section >= 0:
		a.x = l.decode(t.Type, l.sections[t.Section][t.Offset:][:t.Bytes()])
	default:
		a.x = l.local[k]
	}
	return a
}

func (l *launch) write(k int, x []float64) {
	t := &l.g.Tensors[k]
	if t.Section < 0 {
		l.local[k] = x
		return
	}
	copy(l.sections[t.Section][t.Offset:], l.encode(t.Type, x))
}

func (l *launch) format(t libsynapse.DataType) fp8.DType {
	if t == libsynapse.E4M3 && own(l.spec).clip {
		return fp8.E4M3 // but in products
	}
	return map[libsynapse.DataType]fp8.DType{
		libsynapse.F32: fp8.F32, libsynapse.BF16: fp8.BF16, libsynapse.F16: fp8.F16,
		libsynapse.E4M3: l.spec.E4M3, libsynapse.E5M2: fp8.E5M2,
	}[t]
}

func (l *launch) decode(t libsynapse.DataType, raw []byte) []float64 {
	x := make([]float64, len(raw)/t.Size())
	for i := range x {
		switch part := raw[i*t.Size():]; t {
		case libsynapse.I8:
			x[i] = float64(int8(part[0]))
		case libsynapse.I32:
			x[i] = float64(int32(binary.LittleEndian.Uint32(part)))
		default:
			var code [4]byte
			copy(code[:], part[:t.Size()])
			x[i] = float64(l.format(t).Float32(binary.LittleEndian.Uint32(code[:])))
		}
	}
	return x
}

func (l *launch) encode(t libsynapse.DataType, x []float64) []byte {
	var raw []byte
	for _, v := range x {
		var code [4]byte
		switch t {
		case libsynapse.I8:
			code[0] = byte(int8(v))
		case libsynapse.I32:
			binary.LittleEndian.PutUint32(code[:], uint32(int32(v)))
		default:
			binary.LittleEndian.PutUint32(code[:], l.format(t).Nearest(float32(v), fp8.NonSaturating))
		}
		raw = append(raw, code[:t.Size()]...)
	}
	return raw
}

// round is what a kernel that computes x stores in type t.
func (l *launch) round(t libsynapse.DataType, x float64) float64 {
	switch t {
	case libsynapse.F32:
		return float64(float32(x))
	case libsynapse.I8, libsynapse.I32:
		return math.Trunc(x)
	}
	d := l.format(t)
	return float64(d.Float32(d.Nearest(float32(x), fp8.NonSaturating)))
}

// node runs a node, once its operands have the types and sizes that the kernel
// of this name wants.
func (l *launch) node(n *libsynapse.Node) error {
	in := make([]*array, len(n.In))
	for i, k := range n.In {
		in[i] = l.read(k)
	}
	outs := make([]*array, len(n.Out))
	for i, k := range n.Out {
		t := &l.g.Tensors[k]
		outs[i] = &array{t.Type, t.Sizes, make([]float64, value{sizes: t.Sizes}.elems())}
	}
	base, suffix := n.GUID, ""
	run, ok := kernels[base]
	for !ok && strings.Contains(base, "_") {
		at := strings.LastIndex(base, "_")
		base, suffix = base[:at], base[at+1:]
		run, ok = kernels[base]
	}
	if !ok {
		return errors.New("there is no such kernel")
	}
	if err := run(l, suffix, n.Params, in, outs); err != nil {
		return err
	}
	for i, k := range n.Out {
		for j := range outs[i].x {
			outs[i].x[j] = l.round(outs[i].typ, outs[i].x[j])
		}
		l.write(k, outs[i].x)
	}
	return nil
}
