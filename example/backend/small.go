// Package small shows how a module of its own adds a backend to Octet. It runs three ops on
// one rank, in plain Go, and refuses the others by name. docs/add-a-backend.md explains it.
package small

import (
	"context"
	"encoding/binary"
	"fmt"

	"octet/backend"
	"octet/fp8"
)

func init() {
	backend.Register(backend.Driver{Name: "small", Priority: -2, Spec: spec, Open: open})
}

func spec(name string) (backend.Spec, error) {
	if name != "" {
		return backend.Spec{}, fmt.Errorf("unknown device %q of backend small, which has one device without a name", name)
	}
	return backend.Spec{
		Backend: "small", Device: "one thread of plain Go", Arithmetic: "small",
		E4M3: fp8.E4M3, HostMemory: true,
	}, nil
}

func open(name string, o backend.Options) (backend.Backend, error) {
	s, err := spec(name)
	if err != nil {
		return nil, err
	}
	if o.Group != nil {
		return nil, fmt.Errorf("%w by backend small: %d ranks, it has one: set train.ranks = 1", backend.ErrUnsupported, o.Group.Size())
	}
	return &device{spec: s, data: map[*backend.Tensor][]byte{}}, nil
}

type device struct {
	spec backend.Spec
	vars backend.DeviceVars
	data map[*backend.Tensor][]byte // of variables and temps, views excluded
}

// Spec implements backend.Backend.
func (d *device) Spec() backend.Spec { return d.spec }

// Load implements backend.Backend. Temps do not share memory.
func (d *device) Load(programs ...*backend.Program) ([]backend.Executable, error) {
	if err := d.vars.Load(programs, d.allocate); err != nil {
		return nil, err
	}
	var list []backend.Executable
	for _, p := range programs {
		for _, n := range p.Nodes() {
			if _, ok := ops.Of(n.Op); !ok {
				return nil, fmt.Errorf("%s: %w by backend small: %T", n.Path(), backend.ErrUnsupported, n.Op)
			}
		}
		_ = d.allocate(p.Temps()) // cannot fail
		list = append(list, &executable{d, p})
	}
	return list, nil
}

func (d *device) allocate(list []*backend.Tensor) error {
	for _, t := range list {
		d.data[t] = make([]byte, t.Bytes())
	}
	return nil
}

// Write implements backend.Backend.
func (d *device) Write(t *backend.Tensor, raw []byte) error {
	if err := d.vars.CheckCopy(t, len(raw)); err != nil {
		return err
	}
	return memory{d}.Write(t, raw)
}

// Read implements backend.Backend.
func (d *device) Read(t *backend.Tensor, raw []byte) error {
	if err := d.vars.CheckCopy(t, len(raw)); err != nil {
		return err
	}
	for r := range t.Rows() {
		copy(raw[r*t.Cols()*t.DType.Size():], d.row(t, r))
	}
	return nil
}

// Close implements backend.Backend.
func (d *device) Close() error {
	d.vars.Close()
	d.data = nil
	return nil
}

// row returns the bytes of row r of t. A view may have gaps between its rows.
func (d *device) row(t *backend.Tensor, r int) []byte {
	from := t.Offset + r*t.LD
	return d.data[t.Root()][from*t.DType.Size():][:t.Cols()*t.DType.Size()]
}

// memory is what ops and observers see: any tensor of a loaded program, temps included.
type memory struct{ d *device }

// Read implements backend.Memory.
func (m memory) Read(t *backend.Tensor) (raw []byte, err error) {
	for r := range t.Rows() {
		raw = append(raw, m.d.row(t, r)...)
	}
	return raw, nil
}

// Write implements backend.Memory.
func (m memory) Write(t *backend.Tensor, raw []byte) error {
	if int64(len(raw)) != t.Bytes() {
		return fmt.Errorf("%s takes %d bytes, got %d", t, t.Bytes(), len(raw))
	}
	for r := range t.Rows() {
		row := m.d.row(t, r)
		copy(row, raw[r*len(row):])
	}
	return nil
}

// store rounds values to t's format and writes them.
func (m memory) store(t *backend.Tensor, values []float64) error {
	var raw []byte
	for _, x := range values {
		code := t.DType.Nearest(float32(x), fp8.NonSaturating)
		raw = append(raw, binary.LittleEndian.AppendUint32(nil, code)[:t.DType.Size()]...)
	}
	return m.Write(t, raw)
}

type executable struct {
	d       *device
	program *backend.Program
}

// Run implements backend.Executable.
func (x *executable) Run(ctx context.Context) error { return x.RunObserved(ctx, nil) }

// RunObserved implements backend.Executable.
func (x *executable) RunObserved(ctx context.Context, observe backend.Observer) error {
	if x.d.data == nil {
		return backend.ErrClosed
	}
	m := memory{x.d}
	for _, n := range x.program.Nodes() {
		err := ctx.Err()
		if err == nil {
			run, _ := ops.Of(n.Op)
			err = run(m, n.Op)
		}
		if err == nil && observe != nil {
			err = observe(n, m)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", n.Path(), err)
		}
	}
	return nil
}
