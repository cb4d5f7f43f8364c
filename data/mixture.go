package data

import "sort"

// mixture draws the source of each row. The source of row i is a function of the seed, i and the
// weights, so that it needs no state.
type mixture struct {
	seed uint64
	sums []float64 // of the weights up to each source
}

func (m *mixture) add(weight float64) {
	sum := weight
	if n := len(m.sums); n > 0 {
		sum += m.sums[n-1]
	}
	m.sums = append(m.sums, sum)
}

// mixtureKey makes the draws independent of the order of rows, which has the same seed.
const mixtureKey = 0x6d69787475726573

// at returns the source of row i.
func (m *mixture) at(i int64) int {
	u := float64(mix(m.seed^mixtureKey, uint64(i))>>11) * 0x1p-53 // in [0, 1)
	x := u * m.sums[len(m.sums)-1]
	return sort.Search(len(m.sums)-1, func(k int) bool { return x < m.sums[k] })
}
