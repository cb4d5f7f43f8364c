//go:build gaudi && cgo && linux

package gaudi

import (
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
)

// examine finds the options that a Gaudi 3 needs, whichever it was opened with.
func TestExamineOptions(t *testing.T) {
	const mixes, refuses = "E5M2 × E4M3 compiles", "E5M2 × E4M3 does not compile"
	for _, c := range []struct {
		mixed, top string // of the stand-in
		device     string
		pairs      backend.Finding
		e4m3       backend.Finding
	}{
		{"0", "448", "", backend.Finding{Optional: true, Detail: refuses + ", so leave this option out: "}, backend.Finding{OK: true, Detail: "0x78 × 1 is 256 in an E4M3 GEMM"}},
		{"1", "448", "", backend.Finding{OK: true, Detail: mixes + ": with this option"}, backend.Finding{OK: true, Detail: "is 256"}},
		{"1", "448", "pairs=mixed", backend.Finding{OK: true, Detail: mixes}, backend.Finding{OK: true, Detail: "is 256"}},
		{"0", "448", "pairs=mixed", backend.Finding{Detail: refuses, Fix: "leave pairs=mixed out"}, backend.Finding{OK: true, Detail: "is 256"}},
		{"0", "240", "", backend.Finding{Optional: true, Detail: refuses}, backend.Finding{Detail: "0x78 × 1 is +Inf", Fix: "e4m3=240"}},
		{"0", "240", "e4m3=240", backend.Finding{Optional: true, Detail: refuses}, backend.Finding{OK: true, Detail: "is +Inf in an E4M3 GEMM"}},
		{"0", "448", "e4m3=240", backend.Finding{Optional: true, Detail: refuses}, backend.Finding{OK: true, Detail: "is 256 in an E4M3 GEMM: this option is not needed here"}},
	} {
		devices(t, "gaudi3", "1")
		t.Setenv("STANDIN_MIXED", c.mixed)
		t.Setenv("STANDIN_E4M3", c.top)
		var list []backend.Finding
		for f := range examine(c.device, nil) {
			list = append(list, f)
		}
		require.GreaterOrEqual(t, len(list), 2)
		for i, want := range []backend.Finding{c.pairs, c.e4m3} {
			got := list[len(list)-2+i]
			require.Equal(t, []string{"pairs=mixed", "e4m3=240"}[i], got.What)
			require.Contains(t, got.Detail, want.Detail)
			require.Contains(t, got.Fix, want.Fix)
			require.Equal(t, want.Fix == "", got.Fix == "", "%+v", got)
			require.Equal(t, []bool{want.OK, want.Optional}, []bool{got.OK, got.Optional}, "%+v", got)
		}
		require.NoError(t, forgetDevice())
	}
}
