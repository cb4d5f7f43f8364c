package cast

import "math"

// Maxima holds the largest magnitude that each worker has found, as bits without sign, so
// that NaN > Inf > finite. Workers share no cache lines. Clear it before use.
type Maxima [][16]uint32

// Include includes a magnitude in a worker's maximum.
func (m Maxima) Include(worker int, magnitude float32) {
	bits := &m[worker][0]
	*bits = max(*bits, math.Float32bits(magnitude)&^(1<<31))
}

// Largest returns the largest of the workers' maxima. A maximum does not depend on the
// order, so the result does not depend on the threads.
func (m Maxima) Largest() float32 {
	bits := uint32(0)
	for i := range m {
		bits = max(bits, m[i][0])
	}
	return math.Float32frombits(bits)
}
