package gaudi

import (
	"fmt"

	"octet/backend"
	"octet/csrc/libsynapse"
)

// memory maps tensors to device addresses: variables, and the temps of loaded programs in
// the arena. It implements backend.Memory.
type memory struct {
	*device
	temps layouts // nil: variables only
	plan  *backend.Plan
	arena libsynapse.Ptr
}

func (d *device) variables() memory { return memory{device: d} }

// of returns a root's address and layout.
func (m memory) of(root *backend.Tensor) (libsynapse.Ptr, layout) {
	if at, ok := m.addresses[root]; ok {
		return at, m.layouts[root]
	}
	return m.arena + libsynapse.Ptr(m.plan.Offsets[root]), m.temps.of(root)
}

// spanOf returns the byte range of a collective's operand.
func (m memory) spanOf(t *backend.Tensor) (span, error) {
	at, l := m.of(t.Root())
	if !t.Contiguous() {
		return span{}, fmt.Errorf("%s is not contiguous", t)
	}
	n := t.Elems()
	s := span{at: at + libsynapse.Ptr(l.at(t.Offset)), bytes: t.Bytes(), runs: 1}
	if !l.plain() && n > l.grain {
		s.runs = n / l.grain
		s.bytes = int64(s.runs*l.pitch) * int64(l.size)
	}
	return s, nil
}

// Read returns an operand's bytes.
func (m memory) Read(t *backend.Tensor) ([]byte, error) {
	raw := make([]byte, t.Bytes())
	return raw, m.fetch(t, raw)
}

// fetch is Read into dst. Contiguous data without padding needs no intermediate buffer.
func (m memory) fetch(t *backend.Tensor, dst []byte) error {
	at, l := m.of(t.Root())
	if l.plain() && t.Contiguous() {
		return m.download(dst, at+libsynapse.Ptr(l.at(t.Offset)))
	}
	raw, err := m.span(t)
	row, ld := rowBytes(t)
	for r := 0; err == nil && r < t.Rows(); r++ {
		copy(dst[r*row:][:row], raw[r*ld:])
	}
	return err
}

// Write replaces an operand's bytes.
func (m memory) Write(t *backend.Tensor, src []byte) error {
	if int64(len(src)) != t.Bytes() {
		return fmt.Errorf("gaudi: %s takes %d bytes, got %d", t, t.Bytes(), len(src))
	}
	at, l := m.of(t.Root())
	if l.plain() && t.Contiguous() {
		return m.upload(at+libsynapse.Ptr(l.at(t.Offset)), src)
	}
	raw, err := m.span(t)
	if err != nil {
		return err
	}
	row, ld := rowBytes(t)
	for r := range t.Rows() {
		copy(raw[r*ld:][:row], src[r*row:])
	}
	if l.plain() {
		return m.upload(at+libsynapse.Ptr(l.at(t.Offset)), raw)
	}
	host, err := m.whole(at, l)
	if err != nil {
		return err
	}
	copy(host[t.Offset*l.size:], raw)
	padded := make([]byte, l.Bytes())
	l.scatter(padded, host)
	return m.upload(at, padded)
}

func rowBytes(t *backend.Tensor) (row, ld int) {
	return t.Cols() * t.DType.Size(), t.LD * t.DType.Size()
}

// span returns the bytes from a tensor's first element to its last, in the host's layout.
func (m memory) span(t *backend.Tensor) ([]byte, error) {
	at, l := m.of(t.Root())
	n := ((t.Rows()-1)*t.LD + t.Cols()) * l.size
	if l.plain() {
		raw := make([]byte, n)
		return raw, m.download(raw, at+libsynapse.Ptr(l.at(t.Offset)))
	}
	host, err := m.whole(at, l)
	if err != nil {
		return nil, err
	}
	return host[t.Offset*l.size:][:n], nil
}

// whole returns all elements of a padded root, without the padding.
func (m memory) whole(at libsynapse.Ptr, l layout) ([]byte, error) {
	padded, host := make([]byte, l.Bytes()), make([]byte, l.elems*l.size)
	if err := m.download(padded, at); err != nil {
		return nil, err
	}
	l.gather(host, padded)
	return host, nil
}
