package run

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each checkpoint has one result; without a checkpoint being written, result returns at once.
func TestResultsOfCheckpoints(t *testing.T) {
	var s saver
	none := func() {
		t.Helper()
		for _, wait := range []bool{false, true} {
			w, ok := s.result(wait)
			require.False(t, ok)
			require.Zero(t, w)
		}
	}
	none()
	s.writing = make(chan saveResult, 1)
	w, ok := s.result(false)
	require.False(t, ok, "the checkpoint is still being written")
	require.Zero(t, w)

	whole := saveResult{path: "step-7", step: 7}
	s.writing <- whole
	w, ok = s.result(false)
	require.True(t, ok)
	require.Equal(t, whole, w)
	require.Equal(t, whole, s.last)
	none()

	failed := saveResult{path: "step-8", step: 8, err: errors.New("disk full")}
	s.writing = make(chan saveResult, 1)
	s.writing <- failed
	w, ok = s.result(true)
	require.True(t, ok)
	require.Equal(t, failed, w)
	require.Equal(t, whole, s.last, "the newest intact checkpoint")
	none()
}
