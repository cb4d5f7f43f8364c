package gaudi

import (
	"octet/backend"
)

// A layout says how the elements of a root are placed on the device. The device reads and
// writes only at multiples of an alignment (details.align), while packed vectors
// (scales, amaxes) hold single scalars side by side. So a root with unaligned views is
// divided into runs of grain elements, the largest length of which every view consists,
// each padded to the alignment. The padding is never read. A root with only aligned views
// is one run without padding.
type layout struct {
	elems, size int // elements, and bytes per element
	grain       int // elements per run
	pitch       int // elements from one run to the next: grain plus padding
	// wholeRows makes column views read whole rows, instead of starting at the view's
	// offset, see pieces.
	wholeRows bool
}

// layoutOf returns the layout of a root of which programs touch the views. Column views
// start at runs of their own unless that takes more than twice the memory.
func layoutOf(root *backend.Tensor, views []*backend.Tensor, align int) layout {
	l := layoutBy(root, views, align, false)
	if l.pitch > 2*l.grain {
		l = layoutBy(root, views, align, true)
	}
	return l
}

func layoutBy(root *backend.Tensor, views []*backend.Tensor, align int, wholeRows bool) layout {
	l := layout{elems: root.Elems(), size: root.DType.Size(), grain: root.Elems(), wholeRows: wholeRows}
	aligned := true
	for _, v := range views {
		for _, p := range l.pieces(v) {
			aligned = aligned && p.from*l.size%align == 0
			l.grain = gcd(l.grain, gcd(p.from, p.elems()))
		}
	}
	if aligned {
		l.grain, l.pitch = l.elems, l.elems
		return l
	}
	l.pitch = (l.grain*l.size + align - 1) / align * align / l.size
	return l
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// plain reports whether the layout has no padding.
func (l layout) plain() bool { return l.pitch == l.grain }

// Bytes returns the size of the root on the device.
func (l layout) Bytes() int64 { return int64(l.elems/l.grain) * int64(l.pitch) * int64(l.size) }

// at returns the byte offset of element i, which starts a run if there are several.
func (l layout) at(i int) int64 {
	return (int64(i/l.grain)*int64(l.pitch) + int64(i%l.grain)) * int64(l.size)
}

// scatter copies the root's elements from host, without padding, to device, of length
// Bytes.
func (l layout) scatter(device, host []byte) {
	l.runs(func(d, h, n int) { copy(device[d:d+n], host[h:h+n]) })
}

// gather is the inverse of scatter.
func (l layout) gather(host, device []byte) {
	l.runs(func(d, h, n int) { copy(host[h:h+n], device[d:d+n]) })
}

// runs visits every run with its byte offsets on the device and on the host, and its
// length in bytes.
func (l layout) runs(visit func(device, host, n int)) {
	n, pitch := l.grain*l.size, l.pitch*l.size
	for i := range l.elems / l.grain {
		visit(i*pitch, i*n, n)
	}
}
