package data

import (
	"fmt"
	"math"
)

// ngramSmoothing is added to the count of every cell.
const ngramSmoothing = 0.02

// NGramLoss is the cross-entropy of val, in nats per byte, under the byte
// n-grams counted in train: order 1 looks at no context, order 2 at the byte
// before, order 3 (which takes 128 MB for its counts) at two. It is the baseline
// that a model has to beat.
//
// The probability of byte b after context c is (N(cb) + 0.02) / (N(c) + 256 ×
// 0.02), N(c) being how often c was followed by a byte. Bytes of val with a whole
// context before them are scored; without any, the result is NaN.
func NGramLoss(train, val []byte, order int) (float64, error) {
	if order < 1 || order > 3 {
		return 0, fmt.Errorf("data: n-grams of order %d: 1, 2 or 3 are counted", order)
	}
	cells := 1 << (8 * order)
	counts := make([]uint64, cells)
	totals := make([]uint64, cells/TextVocab)
	eachGram(train, order, func(gram int) {
		counts[gram]++
		totals[gram/TextVocab]++
	})
	var sum float64
	var scored int
	eachGram(val, order, func(gram int) {
		n := float64(totals[gram/TextVocab]) + TextVocab*ngramSmoothing
		sum += math.Log(n / (float64(counts[gram]) + ngramSmoothing))
		scored++
	})
	return sum / float64(scored), nil
}

// eachGram yields every run of order bytes as one big-endian number.
func eachGram(text []byte, order int, yield func(gram int)) {
	cells := 1 << (8 * order)
	gram := 0
	for i, b := range text {
		gram = (gram*TextVocab + int(b)) % cells
		if i >= order-1 {
			yield(gram)
		}
	}
}
