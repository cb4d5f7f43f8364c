package backend

import "fmt"

// DeviceVars is the part of a Backend that all backends share: the variables that have
// memory on the device, and the checks of Load, Write and Read. Package ref shows its use.
// The zero DeviceVars has no variables.
type DeviceVars struct {
	*Vars     // of the first Load; nil before it
	allocated map[*Tensor]bool
	closed    bool
}

// Load checks programs before a backend loads them. It calls allocate with the variables
// that have no memory yet, if there are any: at first all, later those declared since.
// allocate gives each of them zeroed memory; if it fails, the next Load calls it again.
func (b *DeviceVars) Load(programs []*Program, allocate func(fresh []*Tensor) error) error {
	if b.closed {
		return ErrClosed
	}
	if len(programs) == 0 {
		return nil
	}
	for _, p := range programs {
		if err := p.Err(); err != nil {
			return fmt.Errorf("program %s: %w", p.Name(), err)
		}
		if b.Vars == nil {
			b.Vars, b.allocated = p.Vars(), map[*Tensor]bool{}
		}
		if p.Vars() != b.Vars {
			return fmt.Errorf("program %s: its variables are not those of the programs loaded before; open another backend for them", p.Name())
		}
	}
	var fresh []*Tensor
	for t := range b.All() {
		if !b.allocated[t] {
			fresh = append(fresh, t)
		}
	}
	if len(fresh) == 0 {
		return nil
	}
	if err := allocate(fresh); err != nil {
		return err
	}
	for _, t := range fresh {
		b.allocated[t] = true
	}
	return nil
}

// CheckCopy returns why Write or Read cannot copy n bytes to or from t, nil if they can. t
// is a variable that has memory, or a view of one. It has n bytes, no gaps between its rows,
// and does not reach outside its base.
func (b *DeviceVars) CheckCopy(t *Tensor, n int) error {
	if b.closed {
		return ErrClosed
	}
	if !b.allocated[t.Root()] {
		return fmt.Errorf("tensor %s has no memory: load a program over its variables first", t)
	}
	if err := t.validate(); err != nil {
		return err
	}
	if int64(n) != t.Bytes() || !t.Contiguous() {
		return fmt.Errorf("tensor %s has %d contiguous bytes, got a buffer of %d", t, t.Bytes(), n)
	}
	return nil
}

// Close drops the variables. Load and CheckCopy then return errors. Close reports whether
// this was its first call: closing a backend again does nothing.
func (b *DeviceVars) Close() (first bool) {
	first = !b.closed
	*b = DeviceVars{closed: true}
	return first
}
