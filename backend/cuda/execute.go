//go:build cuda && cgo && linux

package cuda

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"octet/backend"
	"octet/csrc/libcuda"
)

// Load connects the ranks of collectives, allocates variables and binds programs to the device. One block holds their temps,
// cuBLASLt's workspace, the scratch memory of kernels and their tables.
func (d *device) Load(programs ...*backend.Program) (list []backend.Executable, err error) {
	if err := d.connectGroups(programs); err != nil {
		return nil, err
	}
	err = d.withChoices(func() error {
		list, err = d.load(programs)
		return err
	})
	return list, err
}

// load is Load of this rank alone.
func (d *device) load(programs []*backend.Program) ([]backend.Executable, error) {
	if err := d.vars.Load(programs, d.allocVars); err != nil {
		return nil, err
	}
	wgmma, err := d.checkWGMMA(programs)
	if err != nil {
		return nil, err
	}
	plan := backend.MakePlan(align, backend.PerOp, programs...)
	// Programs are bound twice: the first time measures the memory that their calls need.
	sizes, err := measure(plan, programs)
	if err != nil {
		return nil, err
	}
	at, err := d.alloc(fmt.Sprintf("temps (%s), workspace and tables", backend.Size(sizes.temps)), sizes.total())
	if err != nil {
		return nil, err
	}
	workspace := at + libcuda.Ptr(sizes.temps)
	scratch := workspace + libcuda.Ptr(sizes.workspace)
	d.blocks = append(d.blocks, at)
	m := memory{device: d, plan: plan, arena: at}
	b := binder{
		address: func(t *backend.Tensor) uint64 { return uint64(m.at(t)) },
		ranks:   d.ranks(), marks: d.marks,
		wgmma: wgmma, scratchAt: uint64(scratch), tableAt: uint64(scratch) + uint64(sizes.scratch),
	}
	calls, err := b.bindAll(programs)
	if err != nil {
		return nil, err
	}
	d.setMarks(b.marks)
	words := make([]byte, 0, 8*len(b.tables))
	for _, w := range b.tables {
		words = binary.LittleEndian.AppendUint64(words, w)
	}
	if err := d.upload(libcuda.Ptr(b.tableAt), words); err != nil {
		return nil, err
	}
	cubins, err := d.gpu.compile(sources(calls)...)
	if err == nil {
		err = d.gpu.load(cubins)
	}
	if err != nil {
		return nil, d.failure("compile or load kernels", 0, err)
	}
	t := newTuner(d, d.chosen)
	t.buffer, t.bytes, t.workspace = at, sizes.temps, workspace
	defer t.close()
	list := make([]backend.Executable, len(programs))
	for i, p := range programs {
		x := &executable{memory: m, nodes: p.Nodes(), what: "run program " + p.Name(), workspace: t.workspace}
		d.executables = append(d.executables, x)
		for j, n := range x.nodes {
			ready, err := t.prepare(calls[i][j])
			x.calls = append(x.calls, ready) // also after an error, so that close frees it
			if errors.Is(err, libcuda.ErrNoAlgorithm) {
				return nil, unsupportedGEMM(n, err)
			}
			if err != nil {
				return nil, d.failure(n.Path(), 0, err)
			}
		}
		if err := x.prepareOverlap(); err != nil {
			return nil, err
		}
		list[i] = x
	}
	d.spec.Arithmetic = d.arithmetic()
	return list, nil
}

// sources returns the sources that define the kernels of calls.
func sources(programs [][][]call) (list []source) {
	for _, nodes := range programs {
		for _, calls := range nodes {
			for _, c := range calls {
				if c.launch != nil {
					list = append(list, c.launch.source)
				}
			}
		}
	}
	return list
}

func (b block) total() int64 { return b.temps + b.workspace + b.scratch + b.tables }

// readyCall is a call that can be issued: a kernel, a GEMM with its algorithm, or a
// collective.
type readyCall struct {
	function   *libcuda.Function
	launch     *launch
	gemm       *libcuda.MatMul
	algo       libcuda.Algo
	collective *collective
}

// executable is a loaded program.
type executable struct {
	memory
	what      string // "run program NAME", for errors
	nodes     []*backend.Node
	calls     [][]readyCall // by node
	workspace libcuda.Ptr
	overlap   *overlap         // nil: all calls are on one stream
	begun     bool             // the first run has begun
	graph     *libcuda.Graph   // of all calls, from the second run on
	clock     []*libcuda.Event // before, between and after the nodes; created by RunTimed
}

// Run enqueues the program and does not wait for it. The first run issues its calls one
// by one: libraries load kernels and connect GPUs on first use, which a capture does not
// allow, and a program that runs once needs no graph. The second run records a graph, and
// later runs launch it.
func (x *executable) Run(ctx context.Context) error {
	if x.stream == nil {
		return backend.ErrClosed
	}
	return x.wait(func() error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !x.begun {
			x.begun = true
			return x.issueAll()
		}
		if x.graph == nil {
			if err := x.record(); err != nil {
				return err
			}
		}
		if err := x.graph.Launch(x.stream); err != nil {
			return x.failure(x.what, 0, err)
		}
		return nil
	})
}

func (x *executable) record() error {
	x.recording.Lock()
	defer x.recording.Unlock()
	var failed error // it names the place already
	graph, err := x.stream.Capture(func() error {
		failed = x.issueAll()
		return failed
	})
	switch {
	case failed != nil:
		return failed
	case err != nil:
		return x.failure(x.what, 0, err)
	}
	x.graph = graph
	return nil
}

// RunObserved issues the same calls node by node, all on one stream: it waits after each node, so
// that none could run beside another. When its context ends or its observer
// stops it, it ends the group, because the other ranks wait for this one in collectives.
func (x *executable) RunObserved(ctx context.Context, observe backend.Observer) error {
	if x.stream == nil {
		return backend.ErrClosed
	}
	defer context.AfterFunc(ctx, x.stopper(ctx))()
	for i, n := range x.nodes {
		err := ctx.Err()
		if err == nil {
			err = x.wait(func() error { return x.issue(i, x.stream) })
		}
		if err == nil {
			err = x.synchronize(n.Path())
		}
		if err == nil {
			if err = observe(n, x.memory); err != nil {
				x.fail(err)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// stopper returns a function that ends the group because the context ended. The executable may
// be closed then.
func (x *executable) stopper(ctx context.Context) func() {
	m := x.member
	return func() { m.fail(ctx.Err()) }
}

// RunTimed implements backend.Timed with events between the nodes. A node's time includes
// the gaps between its kernels; where launches take longer than kernels, it is the time
// of the launches. BenchmarkOutside bounds both. All nodes run on one stream, so that these times
// do not overlap.
func (x *executable) RunTimed(ctx context.Context, took func(n *backend.Node, start, end time.Duration)) error {
	if x.stream == nil {
		return backend.ErrClosed
	}
	defer context.AfterFunc(ctx, x.stopper(ctx))()
	for len(x.clock) <= len(x.nodes) {
		e, err := x.gpu.NewEvent()
		if err != nil {
			return x.failure(x.what, 0, err)
		}
		x.clock = append(x.clock, e)
	}
	record := func(i int) error {
		if err := x.stream.Record(x.clock[i]); err != nil {
			return x.failure(x.what, 0, err)
		}
		return ctx.Err()
	}
	err := x.wait(func() error {
		err := record(0)
		for i := 0; err == nil && i < len(x.nodes); i++ {
			if err = x.issue(i, x.stream); err == nil {
				err = record(i + 1)
			}
		}
		return err
	})
	if err == nil {
		err = x.synchronize(x.what)
	}
	if err != nil {
		return err
	}
	start := time.Duration(0)
	for i, n := range x.nodes {
		end, err := x.clock[i+1].Since(x.clock[0])
		if err != nil {
			return x.failure(x.what, 0, err)
		}
		took(n, start, end)
		start = end
	}
	return nil
}

// issueAll enqueues all calls.
func (x *executable) issueAll() error {
	if x.overlap != nil {
		return x.issueBeside()
	}
	for i := range x.nodes {
		if err := x.issue(i, x.stream); err != nil {
			return err
		}
	}
	return nil
}

// issue enqueues the calls of node i on a stream.
func (x *executable) issue(i int, s *libcuda.Stream) error {
	for j := range x.calls[i] {
		c := &x.calls[i][j]
		var err error
		switch {
		case c.gemm != nil:
			err = c.gemm.Run(s, &c.algo, x.workspace, workspaceBytes)
		case c.collective != nil:
			err = x.runCollective(c.collective, s)
		default:
			l := c.launch
			err = c.function.Launch(s, l.grid, l.block, l.shared, l.args)
		}
		if err != nil {
			return x.failure(x.nodes[i].Path(), 0, err)
		}
	}
	return nil
}

func (x *executable) close() error {
	for _, calls := range x.calls {
		for _, c := range calls {
			if c.gemm != nil {
				c.gemm.Close()
			}
		}
	}
	err := errors.Join(closeEvents(x.clock...), x.overlap.close())
	if x.graph != nil {
		err = errors.Join(err, x.graph.Close())
	}
	return err
}

// memory gives the addresses of loaded programs' operands, and implements what an
// observer sees of them.
type memory struct {
	*device
	plan  *backend.Plan
	arena libcuda.Ptr
}

// at returns the address of a tensor's first element.
func (m memory) at(t *backend.Tensor) libcuda.Ptr {
	root, ok := m.addresses[t.Root()]
	if !ok {
		root = m.arena + libcuda.Ptr(m.plan.Offsets[t.Root()])
	}
	return root + libcuda.Ptr(t.DType.Bytes(t.Offset))
}

// span returns the bytes from a tensor's first element to its last, including gaps
// between rows.
func (m memory) span(t *backend.Tensor) ([]byte, error) {
	raw := make([]byte, t.DType.Bytes((t.Rows()-1)*t.LD+t.Cols()))
	return raw, m.download(raw, m.at(t))
}

func (m memory) Read(t *backend.Tensor) ([]byte, error) {
	raw, err := m.span(t)
	if err != nil || t.Contiguous() {
		return raw, err
	}
	row, ld := t.DType.Bytes(t.Cols()), t.DType.Bytes(t.LD)
	out := make([]byte, 0, t.Bytes())
	for r := range t.Rows() {
		out = append(out, raw[r*ld:r*ld+row]...)
	}
	return out, nil
}

func (m memory) Write(t *backend.Tensor, src []byte) error {
	if int64(len(src)) != t.Bytes() {
		return fmt.Errorf("cuda: %s needs %d bytes, got %d", t, t.Bytes(), len(src))
	}
	if !t.Contiguous() {
		row, ld := t.DType.Bytes(t.Cols()), t.DType.Bytes(t.LD)
		raw, err := m.span(t)
		if err != nil {
			return err
		}
		for r := range t.Rows() {
			copy(raw[r*ld:], src[r*row:(r+1)*row])
		}
		src = raw
	}
	return m.upload(m.at(t), src)
}
