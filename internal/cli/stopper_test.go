package cli

import (
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// A text in parts of any size is passed on up to the first stop text, in whole characters.
func TestStopper(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 0))
	const text = "ab aab aé→\U0001f600 aabb xyz é xy"
	for _, stops := range [][]string{nil, {"aabb"}, {"xyz", "bb x"}, {"→"}, {"ab"}, {"zz"}, {"é x", "é xz"}, {"xy!"}} {
		want := text
		for _, stop := range stops {
			if i := strings.Index(text, stop); i >= 0 && i < len(want) {
				want = text[:i]
			}
		}
		for range 200 {
			got := ""
			s := &stopper{stops: stops, to: func(part []byte) {
				require.True(t, utf8.Valid(part), "%q", part)
				got += string(part)
			}}
			goes, rest := true, text
			for len(rest) > 0 && goes {
				n := min(1+rng.IntN(7), len(rest))
				goes = s.write([]byte(rest[:n]))
				rest = rest[n:]
			}
			s.flush()
			require.Equal(t, want, got, "%q", stops)
			require.Equal(t, want == text, goes)
		}
	}
}

// Bytes that are not UTF-8 are passed on.
func TestStopperOfBytes(t *testing.T) {
	var got []byte
	s := &stopper{to: func(part []byte) { got = append(got, part...) }}
	for _, b := range []byte("\xff\xc3\xc3\xa9\xe2\x86") {
		require.True(t, s.write([]byte{b}))
	}
	require.Equal(t, "\xff\xc3\xc3\xa9", string(got))
	s.flush()
	require.Equal(t, "\xff\xc3\xc3\xa9\xe2\x86", string(got))
}
