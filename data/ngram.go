package data

import (
	"fmt"
	"math"
)

// ngramSmoothing is added to the count of every n-gram.
const ngramSmoothing = 0.02

// NGramLoss returns the cross-entropy of val, in nats per byte, under the byte
// n-grams counted in train. It is a baseline that a model has to beat. The context
// is empty for order 1, one byte for order 2, two bytes for order 3, whose counts
// take 256 MB.
//
// The probability of byte b after context c is (N(cb) + 0.02) / (N(c) + 256 ×
// 0.02), where N(c) is the number of times a byte follows c. NGramLoss scores the
// bytes of val that have a full context; without any, the result is NaN.
func NGramLoss(train, val []byte, order int) (float64, error) {
	if order < 1 || order > 3 {
		return 0, fmt.Errorf("data: n-grams of order %d: the order must be 1, 2 or 3", order)
	}
	return crossEntropy(countGrams(train, order), countGrams(val, order)), nil
}

// countGrams returns the counts of all n-grams of the given order, indexed by their
// bytes as one big-endian number.
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

// pairCounts are the counts of all pairs of bytes: [first byte, second byte].
type pairCounts []uint64

func newPairCounts() pairCounts { return make(pairCounts, TextVocab*TextVocab) }

func (c pairCounts) add(first, second byte) { c[int(first)*TextVocab+int(second)]++ }

// addAll counts the pairs within a non-empty text.
func (c pairCounts) addAll(text []byte) {
	cells := (*[TextVocab * TextVocab]uint64)(c)
	last := uint16(text[0])
	for _, b := range text[1:] {
		pair := last<<8 | uint16(b)
		cells[pair]++
		last = uint16(b)
	}
}

// singles returns the counts of single bytes in the stream that c counts. first is the
// stream's first byte, which is not the second byte of any pair.
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

// baselinesOf computes the baselines from the pair counts of both streams.
func baselinesOf(train, val *streamScan) baselines {
	if train.stream.n == 0 || val.stream.n < 2 { // one byte has no pair
		return baselines{}
	}
	first := func(s *streamScan) byte { return s.stream.segments[0].head }
	return baselines{
		bytes: crossEntropy(train.pairs.singles(first(train)), val.pairs.singles(first(val))),
		pairs: crossEntropy(train.pairs, val.pairs),
		known: true,
	}
}

// crossEntropy returns the loss of the n-grams counted in val under the counts train. The
// 256 counts of one context are contiguous.
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
