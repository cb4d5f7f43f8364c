//go:build cuda && cgo && linux

package cuda

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/csrc/standin"
	"octet/fp8"
)

// sourceOfAttention loads a small attention and returns the file of its kernel.
func sourceOfAttention(t *testing.T, d *device) string {
	vars := backend.NewVars()
	p := vars.Program("test")
	tensor := func(name string) *backend.Tensor { return vars.Tensor(backend.Stash, name, fp8.BF16, 16, 64) }
	p.Add(&backend.Attention{Q: tensor("q"), K: tensor("k"), V: tensor("v"), Out: []backend.Cast{{Out: tensor("o")}}, Batch: 1, HeadDim: 64})
	list, err := d.Load(p)
	require.NoError(t, err)
	return list[0].(*executable).calls[0][0].launch.source.name
}

// Attention uses wgmma on compute capability 9.0 only, unless the device asks for
// mma.sync. Spec.Arithmetic names the choice.
func TestAttentionByWGMMA(t *testing.T) {
	for _, c := range []struct{ capability, device, source string }{
		{"90", "0", "attention_wgmma.cu"},
		{"90", "0,attention=mma", "attention.cu"},
		{"89", "0", "attention.cu"},
		{"100", "0", "attention.cu"},
	} {
		t.Run(c.capability+":"+c.device, func(t *testing.T) {
			standIns(t)
			standin.Set(t, "STANDIN_CAPABILITY", c.capability)
			b, err := open(c.device, backend.Options{})
			require.NoError(t, err)
			d := b.(*device)
			t.Cleanup(func() { require.NoError(t, d.Close()) })
			require.Equal(t, c.source, sourceOfAttention(t, d))
			if c.device == "0" {
				require.NotContains(t, d.Spec().Arithmetic, "attention")
			} else {
				require.Contains(t, d.Spec().Arithmetic, "+attention-mma")
			}
		})
	}
}

// If the wgmma kernels fail their trial, attention uses mma.sync.
func TestAttentionThatFailsItsTrial(t *testing.T) {
	standIns(t)
	d := openOne(t)
	if !d.wgmma() {
		t.Skip("this GPU has no wgmma")
	}
	require.NoError(t, d.tryWGMMA())
	d.trial = func() error { return errors.New("it is off") }
	require.Equal(t, "attention.cu", sourceOfAttention(t, d))
	require.Contains(t, d.Spec().Arithmetic, "+attention-mma")
	require.Contains(t, d.Spec().Hint, "by mma.sync, slower than wgmma: it is off")
}

func TestDoctorReportsAttention(t *testing.T) {
	standIns(t)
	d := openOne(t)
	if !d.wgmma() {
		t.Skip("this GPU has no wgmma")
	}
	for _, c := range []struct {
		device string
		trial  error
		want   backend.Finding
	}{
		{"0", nil, backend.Finding{What: "attention", OK: true, Detail: "by wgmma, results agree with mma.sync", Optional: true}},
		{"0", errors.New("it is off"), backend.Finding{What: "attention", Detail: "by mma.sync, slower than wgmma: it is off", Fix: "the device cuda:N,attention=mma skips this trial", Optional: true}},
		{"0,attention=mma", nil, backend.Finding{What: "attention", OK: true, Detail: "by mma.sync"}},
	} {
		d.trial = func() error { return c.trial }
		require.Equal(t, []backend.Finding{c.want}, slices.Collect(examine(c.device, nil)))
	}
}

// One wrong element, or NaN, fails the trial.
func TestRelativeError(t *testing.T) {
	want := make([]float64, 10000)
	for i := range want {
		want[i] = float64(i%2)*2 - 1
	}
	got := slices.Clone(want)
	require.Zero(t, relativeError(got, want))
	got[77] = 0
	require.InDelta(t, 1, relativeError(got, want), 0)
	got[78] = math.NaN()
	require.True(t, math.IsNaN(relativeError(got, want)))
}
