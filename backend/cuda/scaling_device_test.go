//go:build cuda && cgo && linux

package cuda

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/conformance"
	"octet/csrc/standin"
)

// capable replaces CUDA by stand-ins of a compute capability, 90 for 9.0, and a version of
// cuBLASLt, 120900 for 12.9.0.
func capable(t *testing.T, capability, version int) {
	t.Helper()
	standIns(t)
	standin.Set(t, "STANDIN_CAPABILITY", fmt.Sprint(capability))
	standin.Set(t, "STANDIN_CUBLASLT", fmt.Sprint(version))
}

// GEMMs whose sizes suit cuBLASLt run with the scales that it documents for the GPU and its
// version, and equal ref's; others are refused.
func TestScalesOfGEMMs(t *testing.T) {
	hopper := []string{"rows", "rows-tensor", "1x128-128x128", "128x128-1x128", "128x128-128x128", "1x128-1x128"}
	for _, of := range []struct {
		capability, version int
		run                 []string
	}{
		{89, 130102, nil},
		{90, 120899, nil},
		{90, 120900, hopper},
		{100, 120799, nil},
		{100, 120800, []string{"mx", "nvfp4"}},
		{120, 130102, []string{"mx", "nvfp4"}},
	} {
		t.Run(fmt.Sprintf("%d/%d", of.capability, of.version), func(t *testing.T) {
			capable(t, of.capability, of.version)
			d, _, err := backend.Find("cuda")
			require.NoError(t, err)
			passed := map[string]int{}
			for c := range conformance.Cases() {
				name, ok := strings.CutPrefix(c.Name, "matmul/blocks/")
				kind, size, _ := strings.Cut(name, "/")
				if !ok || strings.HasPrefix(size, "t") || kind == "epilogue" { // others have n = 130
					continue
				}
				err := c.Run(t.Context(), d, "")
				if slices.Contains(of.run, kind) {
					require.NoError(t, err, c.Name)
					passed[kind]++
				} else if !errors.Is(err, backend.ErrUnsupported) {
					require.ErrorIs(t, err, backend.ErrUnsupported, c.Name)
				}
			}
			require.Len(t, passed, len(of.run))
			for kind, n := range passed {
				require.GreaterOrEqual(t, n, 2, kind)
			}
		})
	}
}

// A device name with a compute capability opens only a GPU that has it.
func TestCapabilityInTheName(t *testing.T) {
	capable(t, 90, 130102)
	_, err := open("sm_100", backend.Options{})
	require.ErrorIs(t, err, backend.ErrNoDevice)
	require.ErrorContains(t, err, "GPU 0 has compute capability 9.0, not that of sm_100: name it cuda:0")
	d, err := open("sm_90", backend.Options{})
	require.NoError(t, err)
	require.NoError(t, d.Close())
}

// Recipes with block scales train on the GPUs whose cuBLASLt multiplies them, like on emu.
func TestTrainingWithBlockScalesAgreesWithEmu(t *testing.T) {
	for name, devices := range only {
		if len(devices) == 0 {
			continue
		}
		t.Run(name, func(t *testing.T) {
			var capability int
			_, err := fmt.Sscanf(devices[0], "sm_%d", &capability)
			require.NoError(t, err)
			capable(t, capability, 130102)
			c := compared(name)
			c.Model.Dim, c.Model.FFN, c.Data.Seq = 64, 160, 32 // k in multiples of 32, blocks that are not full
			agree(t, c, steps(t, c, "emu", 3), steps(t, c, "cuda", 3))
		})
	}
}
