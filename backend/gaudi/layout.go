package gaudi

import (
	"octet/backend"
)

// A layout is how a root lies on the device. The device reads and writes at
// multiples of an alignment only (backend.Spec.Align), while the records of
// packed vectors (scales, amaxes) are single numbers side by side. So a root
// whose views begin elsewhere is cut into runs of grain elements, the largest
// that every view consists of, each of them padded to the alignment. Nobody
// reads the padding. A root whose views are aligned is one run, as it is.
type layout struct {
	elems, size int // elements, and the bytes of one
	grain       int // elements of a run
	pitch       int // elements from one run to the next: grain and padding
	// wholeRows says that columns of a matrix are read with the rest of their rows.
	// Else they are read from where they begin, see pieces.
	wholeRows bool
}

// layoutOf is the layout of a root of which programs touch the views. Columns
// begin on runs of their own unless that took more than twice the memory.
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

// plain reports whether the elements lie side by side.
func (l layout) plain() bool { return l.pitch == l.grain }

// Bytes is what the root takes on the device.
func (l layout) Bytes() int64 { return int64(l.elems/l.grain) * int64(l.pitch) * int64(l.size) }

// at is the byte at which element i, the first of a run if there are several, lies.
func (l layout) at(i int) int64 {
	return (int64(i/l.grain)*int64(l.pitch) + int64(i%l.grain)) * int64(l.size)
}

// scatter copies the root's elements, side by side in host, to where they lie
// on the device; device has Bytes.
func (l layout) scatter(device, host []byte) {
	l.runs(func(d, h, n int) { copy(device[d:d+n], host[h:h+n]) })
}

// gather is the inverse of scatter.
func (l layout) gather(host, device []byte) {
	l.runs(func(d, h, n int) { copy(host[h:h+n], device[d:d+n]) })
}

// runs visits the bytes of every run: where they begin on the device and on the
// host, and how many they are.
func (l layout) runs(visit func(device, host, n int)) {
	n, pitch := l.grain*l.size, l.pitch*l.size
	for i := range l.elems / l.grain {
		visit(i*pitch, i*n, n)
	}
}
