package cuda

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

func TestSpec(t *testing.T) {
	for _, device := range []string{"", "0", "12", "1,attention=mma", "attention=mma"} {
		s, err := spec(device)
		require.NoError(t, err)
		require.Equal(t, fp8.E4M3, s.E4M3)
		e4m3, e5m2 := fp8.Encoding{DType: fp8.E4M3, Scale: fp8.F32}, fp8.Encoding{DType: fp8.E5M2, Scale: fp8.F32}
		require.True(t, s.Multiplies(e5m2, e4m3))
		require.False(t, s.Multiplies(e5m2, e5m2))
	}
	for _, device := range []string{"h100", "-1", "0,1", "65536", "0,attention=", "attention=wgmma"} {
		_, err := spec(device)
		require.ErrorContains(t, err, "known: ", device)
		_, err = open(device, backend.Options{})
		require.NotErrorIs(t, err, backend.ErrNoDevice, device)
	}
}

// A build with the tag has findings on any machine. The test hides NVML: a real one would
// stay bound to this process and block the stand-in of other tests.
func TestProbeAlwaysHasFindings(t *testing.T) {
	t.Setenv("OCTET_LIBNVML", filepath.Join(t.TempDir(), "missing.so"))
	list := probe()
	if !errors.Is(available(""), backend.ErrNotBuilt) { // ErrNotBuilt explains the lack of findings
		require.NotEmpty(t, list)
	}
	for _, f := range list {
		require.NotEmpty(t, f.What)
		require.NotEmpty(t, f.Detail)
		require.False(t, f.OK && f.Fix != "", "%+v", f)
	}
}
