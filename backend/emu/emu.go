package emu

import (
	"fmt"
	"runtime"

	"octet/backend"
	"octet/backend/arith"
	"octet/backend/emu/gemm"
	"octet/backend/emu/optimizer"
	"octet/backend/emu/pool"
	"octet/fp8"
)

func init() {
	backend.Register(backend.Driver{
		Name:    "emu",
		Spec:    spec,
		Open:    Open,
		Outline: outline,
		Probe:   probe,
	})
}

// modelAMX is the device model with the arithmetic of AMX in GEMMs and attention.
const modelAMX = "amx"

func spec(model string) (backend.Spec, error) {
	s := backend.Spec{Backend: "emu", Model: model, E4M3: fp8.E4M3, F16: true, Masked: true, BlockMoments: true, BlockSources: true, SeedSigns: true, Experts: true, Stochastic: true, HostMemory: true, Threads: runtime.GOMAXPROCS(0)}
	accumulator, err := arith.LookupAccumulator(model)
	if err != nil {
		return backend.Spec{}, fmt.Errorf("backend emu: %w", err)
	}
	if model != "" && model != modelAMX && accumulator == nil {
		m, err := arith.Lookup(model)
		if err != nil {
			return backend.Spec{}, fmt.Errorf("backend emu: %w; without a model, emu multiplies with FP32 FMA, emu:%s like the matrix unit of Intel's server processors, and emu:accum16 adds up products of integers in 16 bits", err, modelAMX)
		}
		s.E4M3, s.Pairs, s.Library = m.E4M3, m.GEMMs, m.Library
	}
	s.AttentionBF16 = model == modelAMX
	if accumulator != nil {
		s.IntegerBits = accumulator.Bits
	}
	return s, nil
}

// device is one rank: a thread pool and the memory of one set of variables.
type device struct {
	name        string // "emu", "emu:h100"
	spec        backend.Spec
	amx         bool               // GEMMs and attention use the arithmetic of gemm/amx.go
	model       *arith.Model       // of FP8 GEMMs (fuse.go); nil: FP32 FMA
	accumulator *arith.Accumulator // of integers; nil: I32
	pool        *pool.Pool
	group       *group
	exchanger   *exchanger // runs collectives beside other nodes; nil: they run alone
	collectives []string   // of programs since the last checkCollectives
	vars        backend.DeviceVars
	memory      map[*backend.Tensor][]byte             // persistent tensors, views excluded
	extents     map[*backend.Tensor]*optimizer.Extents // same keys
	rope        []*angleTable

	buffers map[bufferKey][][]float32
	common  map[int][]float32 // by length
}

func Open(model string, o backend.Options) (backend.Backend, error) {
	s, err := spec(model)
	if err != nil {
		return nil, err
	}
	if o.Threads > 0 {
		s.Threads = o.Threads
	}
	g, err := newGroup(o.Group)
	if err != nil {
		return nil, err
	}
	sharing, err := sharingProcessors(o.Group)
	if err != nil {
		return nil, err
	}
	p := pool.New(max(1, s.Threads/sharing))
	s.Threads = p.Size() // the pool has no more workers than there are processors
	var beside *exchanger
	if g.processes != nil {
		if g.processes.pool = p; overlaps {
			// Sums of collectives run beside the pool's work.
			g.processes.pool, beside = pool.New(1), newExchanger()
		}
	}
	d := &device{
		exchanger: beside,
		name:      s.Backend, pool: p, group: g,
		memory:  map[*backend.Tensor][]byte{},
		extents: map[*backend.Tensor]*optimizer.Extents{},
		buffers: map[bufferKey][][]float32{}, common: map[int][]float32{},
	}
	if model != "" {
		d.name += ":" + model
	}
	if d.accumulator, err = arith.LookupAccumulator(model); err != nil {
		return nil, err
	}
	kernel := gemm.Kernels()[0]
	s.Arithmetic = kernel.Name // the pair kernels (gemm/pairs.go) give the same bits
	s.Device = kernel.Label()
	switch model {
	case modelAMX:
		d.amx = true
		s.Arithmetic = modelAMX + "+" + s.Arithmetic
		s.Device = s.Arithmetic
		if reason := gemm.AMXAvailable(); reason != nil {
			s.Device += fmt.Sprintf(", AMX computed in plain Go because %s", reason)
		}
	case "":
		if gemm.AMXProcessor() == nil {
			s.Hint = "--backend emu:" + modelAMX + " uses this processor's matrix unit: faster, but results differ in the last bits"
		}
	default:
		if d.accumulator == nil {
			m, err := arith.Lookup(model)
			if err != nil {
				return nil, err
			}
			d.model = &m
		}
		s.Arithmetic = model + "+" + s.Arithmetic
		s.Device = s.Arithmetic
	}
	unit := "threads"
	if s.Threads == 1 {
		unit = "thread"
	}
	s.Device = fmt.Sprintf("%d %s, %s", s.Threads, unit, s.Device)
	d.spec = s
	return d, nil
}

func (d *device) Spec() backend.Spec { return d.spec }

// persistent returns the n bytes of a contiguous persistent tensor or view.
func (d *device) persistent(t *backend.Tensor, n int) ([]byte, error) {
	if err := d.vars.CheckCopy(t, n); err != nil {
		return nil, err
	}
	from := t.DType.Bytes(t.Offset)
	return d.memory[t.Root()][from : from+n], nil
}

func (d *device) Write(t *backend.Tensor, src []byte) error {
	dst, err := d.persistent(t, len(src))
	if err == nil {
		d.changed(t)
		copy(dst, src)
	}
	return err
}

func (d *device) Read(t *backend.Tensor, dst []byte) error {
	src, err := d.persistent(t, len(dst))
	if err == nil {
		copy(dst, src)
	}
	return err
}

func (d *device) Close() error {
	if d.vars.Close() {
		d.pool.Close()
		if d.exchanger != nil {
			d.exchanger.close()
			d.group.processes.pool.Close()
		}
	}
	return nil
}

func (d *device) Load(programs ...*backend.Program) ([]backend.Executable, error) {
	err := d.vars.Load(programs, func(fresh []*backend.Tensor) error {
		for _, t := range fresh {
			d.memory[t], d.extents[t] = pool.Bytes(t.Bytes()), new(optimizer.Extents)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	together := grouped(programs...)
	plan := backend.MakePlan(pool.CacheLine, together, programs...)
	arena := pool.Bytes(plan.Bytes)
	list := make([]backend.Executable, len(programs))
	for i, p := range programs {
		b := &binder{device: d, plan: plan, arena: arena}
		if list[i], err = b.load(p, together); err != nil {
			return nil, err
		}
	}
	return list, d.checkCollectives()
}

// unsupported returns the error of an op that the device does not run.
func (d *device) unsupported(format string, args ...any) error {
	return fmt.Errorf("%w by backend %s: %w", backend.ErrUnsupported, d.name, fmt.Errorf(format, args...))
}
