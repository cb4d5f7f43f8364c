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
	for _, device := range []string{"", "0", "12", "1,attention=mma", "attention=mma", "sm_90", "0,sm_100,attention=mma", "0,collectives=overlap", "collectives=overlap,attention=mma"} {
		s, err := spec(device)
		require.NoError(t, err)
		require.Equal(t, fp8.E4M3, s.E4M3)
		e4m3, e5m2 := fp8.Encoding{DType: fp8.E4M3, Scale: fp8.F32}, fp8.Encoding{DType: fp8.E5M2, Scale: fp8.F32}
		require.True(t, s.Multiplies(e5m2, e4m3))
		require.False(t, s.Multiplies(e5m2, e5m2))
	}
	for _, device := range []string{"h100", "-1", "0,1", "65536", "0,attention=", "attention=wgmma", "sm_80", "sm_", "collectives", "collectives=program"} {
		_, err := spec(device)
		require.ErrorContains(t, err, "known: ", device)
		_, err = open(device, backend.Options{})
		require.NotErrorIs(t, err, backend.ErrNoDevice, device)
	}
}

// GEMMs of a device multiply what cuBLASLt documents for its compute capability and version:
// E4M3 by E4M3 with these scales, or E2M1.
func TestGEMMPairs(t *testing.T) {
	fp32 := fp8.Encoding{DType: fp8.E4M3, Scale: fp8.F32}
	row, vector, block, mx, nvfp4 := fp32, fp32, fp32, fp32, fp32
	row.Across = 1
	vector.Across, vector.Along = 1, 128
	block.Across, block.Along = 128, 128
	mx.Across, mx.Along, mx.Scale = 1, 32, fp8.E8M0
	mxfp4 := mx
	mxfp4.DType = fp8.E2M1
	nvfp4.DType, nvfp4.Across, nvfp4.Along, nvfp4.Scale, nvfp4.Outer = fp8.E2M1, 16, 16, fp8.E4M3, true
	hopper := [][2]fp8.Encoding{{row, row}, {row, fp32}, {vector, vector}, {vector, block}, {block, vector}, {block, block}}
	blackwell := [][2]fp8.Encoding{{mx, mx}, {nvfp4, nvfp4}}
	never := [][2]fp8.Encoding{{row, vector}, {mx, vector}, {mx, nvfp4}, {mxfp4, mxfp4}}
	for _, c := range []struct {
		capability, version int
		hopper, blackwell   bool
	}{
		{0, 0, false, false},
		{89, 1300, false, false},
		{90, 1208, false, false},
		{90, 1209, true, false},
		{90, 1300, true, false},
		{100, 1206, false, false},
		{100, 1208, false, true},
		{103, 1300, false, true},
		{120, 1300, false, true},
	} {
		s := specOf(c.capability, c.version)
		multiplies := func(want bool, pairs ...[2]fp8.Encoding) {
			for _, p := range pairs {
				require.Equal(t, want, s.Multiplies(p[0], p[1]), "%+v: %s × %s", c, p[0], p[1])
			}
		}
		multiplies(true, [2]fp8.Encoding{fp32, fp32})
		multiplies(c.hopper, hopper...)
		multiplies(c.blackwell, blackwell...)
		multiplies(false, never...)
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
