package data

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNGramLossByHand compares with losses computed by hand for the training text
// "abab": a and b twice, ab twice, ba once.
func TestNGramLossByHand(t *testing.T) {
	train := []byte("abab")
	loss := func(val string, order int) float64 {
		l, err := NGramLoss(train, []byte(val), order)
		require.NoError(t, err)
		return l
	}
	const all = 256 * 0.02
	require.InDelta(t, -math.Log(2.02/(4+all)), loss("a", 1), 1e-12)
	require.InDelta(t, -(2*math.Log(2.02/(4+all))+math.Log(0.02/(4+all)))/3, loss("abz", 1), 1e-12)
	require.InDelta(t, -math.Log(2.02/(2+all)), loss("ab", 2), 1e-12)
	require.InDelta(t, -(math.Log(1.02/(1+all))+math.Log(0.02/(2+all)))/2, loss("baa", 2), 1e-12)
	require.InDelta(t, -math.Log(1.02/(1+all)), loss("aba", 3), 1e-12)
	require.InDelta(t, math.Log(256), loss("zz", 2), 1e-12, "an unknown context gives a uniform distribution")
}

// TestNGramLossAgainstMaps compares with a reference that counts in maps of strings.
func TestNGramLossAgainstMaps(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	text := make([]byte, 20000)
	for i := range text {
		text[i] = byte(r.IntN(r.IntN(255) + 1))
	}
	train, val := text[:18000], text[18000:]
	for order := 1; order <= 3; order++ {
		grams, contexts := map[string]float64{}, map[string]float64{}
		for i := order; i <= len(train); i++ {
			gram := string(train[i-order : i])
			grams[gram]++
			contexts[gram[:order-1]]++
		}
		var sum float64
		for i := order; i <= len(val); i++ {
			gram := string(val[i-order : i])
			sum -= math.Log((grams[gram] + 0.02) / (contexts[gram[:order-1]] + 256*0.02))
		}
		got, err := NGramLoss(train, val, order)
		require.NoError(t, err)
		require.InEpsilon(t, sum/float64(len(val)-order+1), got, 1e-12)
	}
}

func TestNGramLossEdges(t *testing.T) {
	for _, order := range []int{0, 4, -1} {
		_, err := NGramLoss([]byte("a"), []byte("a"), order)
		requireSentence(t, err, "1, 2 or 3")
	}
	l, err := NGramLoss(nil, []byte("ab"), 2)
	require.NoError(t, err)
	require.InDelta(t, math.Log(256), l, 1e-12)
	l, err = NGramLoss([]byte("ab"), []byte("a"), 2)
	require.NoError(t, err)
	require.True(t, math.IsNaN(l))
}
