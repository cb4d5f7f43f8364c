package cli

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"octet/train"
)

// planOf returns the JSON of a plan.
func planOf(t *testing.T, args ...string) (p planned) {
	t.Helper()
	text, _ := succeed(t, append(append([]string{"plan", "--json"}, small...), args...)...)
	require.NoError(t, json.Unmarshal([]byte(text), &p))
	return p
}

// The sum follows the second moments, also where Muon's weights have none.
func TestPlanLinesOfMuon(t *testing.T) {
	out, _ := succeed(t, append([]string{"plan", "--recipe", "bf16", "optimizer.kind=muon"}, small...)...)
	require.Regexp(t, `\n  m1 +4\.00 .*\n  m2 +0\.00 .*\n  sum +12\.00 +12\.00 .*\n  cast weights `, out)
}

// plan tells the bytes of each part of the state, beside those of an optimizer in FP32, and the
// traffic between ranks, in 80 columns and in JSON.
func TestPlanLines(t *testing.T) {
	args := []string{"--recipe", "ms-amp-adam", "precision.grad_accum=e4m3"}
	out, _ := succeed(t, append(append([]string{"plan"}, small...), args...)...)
	for _, want := range []string{
		`master weights +4\.00 +2\.\d\d +fp16 `, `gradients +4\.00 +1\.\d\d +e4m3 `, `m1 +4\.00 +1\.\d\d +e4m3 `,
		`m2 +4\.00 +2\.\d\d +fp16 `, `sum +16\.00 +6\.\d\d `, `cast weights +2\.00 +bf16 `,
	} {
		require.Regexp(t, `\n  `+want, out)
	}
	require.NotContains(t, out, "sent by one rank")
	p := planOf(t, args...)
	require.EqualValues(t, 32*32+2*32*16+32*32+3*32*48, p.LayerParameters)
	total := int64(0)
	for _, l := range p.Memory.Lines {
		total += l.Layers + l.Rest
	}
	require.Equal(t, totalOf(p.Memory.Persistent), total)

	wide := []string{"--backend", "gaudi:gaudi2", "--recipe", "fp8-smooth", "train.ranks=4", "train.zero_stage=1", "precision.grad_accum=e5m2"}
	out, _ = succeed(t, append(append([]string{"plan"}, small...), wide...)...)
	_, table, ok := strings.Cut(out, "\npersistent, by use: ")
	require.True(t, ok)
	require.Regexp(t, `sent by one rank in a step +usual +here\n  gradients .*\n  weights .*\n  other .*\n  sum `, table)
	for line := range strings.Lines(table) {
		require.LessOrEqual(t, utf8.RuneCountInString(line), 81, line)
	}
	require.Len(t, planOf(t, wide...).Traffic, 3)
}

// The transposed copies that lowering adds for GPUs are cast weights, too.
func TestPlanLinesOfALoweredProgram(t *testing.T) {
	cast := func(backend string) (list []train.Line) {
		return planOf(t, "--recipe", "fp8-delayed", "--backend", backend).Memory.Lines
	}
	emu, cuda := cast("emu"), cast("cuda")
	at := len(emu) - 2
	require.Equal(t, "cast weights", emu[at].Name)
	require.Equal(t, 2*emu[at].Layers, cuda[at].Layers)
	emu[at] = cuda[at]
	require.Equal(t, emu, cuda)
}
