package data

import (
	"fmt"
	"math"
)

// ngramSmoothing is added to the count of every cell.
const ngramSmoothing = 0.02

// NGramLoss is the cross-entropy of val, in nats per byte, under the byte
// n-grams counted in train: order 1 looks at no context, order 2 at the byte
// before, order 3 (which takes 256 MB for its counts) at two. It is the baseline
// that a model has to beat.
//
// The probability of byte b after context c is (N(cb) + 0.02) / (N(c) + 256 ×
// 0.02), N(c) being how often c was followed by a byte. Bytes of val with a whole
// context before them are scored; without any, the result is NaN.
func NGramLoss(train, val []byte, order int) (float64, error) {
	if order < 1 || order > 3 {
		return 0, fmt.Errorf("data: n-grams of order %d: 1, 2 or 3 are counted", order)
	}
	return crossEntropy(countGrams(train, order), countGrams(val, order)), nil
}

// countGrams counts every run of order bytes, as one big-endian number.
func countGrams(text []byte, order int) []uint64 {
	counts := make([]uint64, 1<<(8*order))
	gram := 0
	for i, b := range text {
		gram = (gram*TextVocab + int(b)) % len(counts)
		if i >= order-1 {
			counts[gram]++
		}
	}
	return counts
}

// pairCounts counts how often each byte follows each other one: [256, 256].
type pairCounts []uint64

func newPairCounts() pairCounts { return make(pairCounts, TextVocab*TextVocab) }

func (c pairCounts) add(first, second byte) { c[int(first)*TextVocab+int(second)]++ }

// addAll counts the pairs within a text.
func (c pairCounts) addAll(text []byte) {
	cells := (*[TextVocab * TextVocab]uint64)(c)
	last := uint16(text[0])
	for _, b := range text[1:] {
		pair := last<<8 | uint16(b)
		cells[pair]++
		last = uint16(b)
	}
}

// singles counts the bytes of a stream whose pairs are counted, by its first byte.
func (c pairCounts) singles(first byte) []uint64 {
	counts := make([]uint64, TextVocab)
	counts[first]++
	for i, n := range c {
		counts[i%TextVocab] += n
	}
	return counts
}

// baselines are losses in nats per byte, as NGramLoss defines them.
type baselines struct {
	bytes, pairs float64
	known        bool
}

// baselinesOf scores the validation stream by the counts of both.
func baselinesOf(train, val *scanned) baselines {
	if train.stream.n == 0 || val.stream.n < 2 { // the first byte is in no pair
		return baselines{}
	}
	first := func(s *scanned) byte { return s.stream.segments[0].head }
	return baselines{
		bytes: crossEntropy(train.pairs.singles(first(train)), val.pairs.singles(first(val))),
		pairs: crossEntropy(train.pairs, val.pairs),
		known: true,
	}
}

// crossEntropy is the loss of the grams that val counts under those that train counts;
// cells of one context are 256 in a row.
func crossEntropy(train, val []uint64) float64 {
	var sum float64
	var scored uint64
	for context := 0; context < len(val); context += TextVocab {
		var total uint64
		for _, n := range train[context:][:TextVocab] {
			total += n
		}
		smoothed := float64(total) + TextVocab*ngramSmoothing
		for i, n := range val[context:][:TextVocab] {
			if n > 0 {
				sum += float64(n) * math.Log(smoothed/(float64(train[context+i])+ngramSmoothing))
				scored += n
			}
		}
	}
	return sum / float64(scored)
}
