package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The status line appears before the first report of the command.
func TestProgressBeforeTheFirstReport(t *testing.T) {
	defer func(d time.Duration) { progressAfter = d }(progressAfter)
	progressAfter = 0
	var stderr syncBuffer
	p := (&terminal{err: &stderr}).startProgress(1_999, "tokens")
	waitFor(t, func() bool { return strings.Contains(stderr.String(), "\n") })
	require.Equal(t, "0 of 1,999 tokens  ETA -:--\n", stderr.String())
	p.set(1_999, new(1.5))
	p.close()
	require.Regexp(t, `^.*\n1,999 of 1,999 tokens  loss 1.5000  [\d,]+ tok/s  ETA 0:00\n$`, stderr.String())
	p.set(0, nil)
	require.NotRegexp(t, `(?s)\n0 of`, stderr.String())

	progressAfter = time.Hour
	var quiet syncBuffer
	p = (&terminal{err: &quiet}).startProgress(2, "B")
	p.set(1, nil)
	p.close()
	require.Empty(t, quiet.String())
}
