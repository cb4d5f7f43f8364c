package train

import (
	"encoding/json"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// writtenState returns a state.json as a run writes it.
func writtenState(t testing.TB, change func(*State)) []byte {
	t.Helper()
	s := State{Version: stateVersion, Octet: "devel", Backend: "emu, avx2", Recipe: "fp8-smooth", Step: 200, Skipped: 1, Seed: 1}
	s.Position.Epoch, s.Position.Index = 1, 7
	s.Spikes = spikes{Losses: []float64{2.5, 2.25}, Begin: 90, Last: 95, Reported: true}
	change(&s)
	text, err := json.Marshal(s)
	require.NoError(t, err)
	return text
}

func TestParseStateRefuses(t *testing.T) {
	for want, change := range map[string]func(*State){
		"it has version 3, this octet reads":  func(s *State) { s.Version = 3 },
		"step is -1: expected 0 to":           func(s *State) { s.Step = -1 },
		"step is 2147483648":                  func(s *State) { s.Step = 1 << 31 },
		"skipped is 201: expected 0 to 200":   func(s *State) { s.Skipped = 201 },
		"skipped is -1":                       func(s *State) { s.Skipped = -1 },
		"rewinds is 4: expected 0 to 3":       func(s *State) { s.Rewinds = 4 },
		"spikes.begin is 201":                 func(s *State) { s.Spikes.Begin = 201 },
		"spikes.last is -5":                   func(s *State) { s.Spikes.Last = -5 },
		"spikes.losses is 129: expected 0 to": func(s *State) { s.Spikes.Losses = make([]float64, 129) },
	} {
		_, err := parseState(writtenState(t, change))
		require.ErrorContains(t, err, want)
	}
	for _, bad := range []string{"", "[]", "null", `{"step":1e3}`, `{"step":"1"}`, strings.Repeat(`{"spikes":`, 20_000)} {
		_, err := parseState([]byte(bad))
		require.Error(t, err)
		require.NotContains(t, err.Error(), "\n")
	}
	s, err := parseState(writtenState(t, func(s *State) { s.Spikes.Losses = make([]float64, spikeWindow) }))
	require.NoError(t, err)
	require.Equal(t, 200, s.Step)
}

// FuzzState: a state that parseState accepts is equal after writing and reading, and its
// spike detector can continue.
func FuzzState(f *testing.F) {
	f.Add(writtenState(f, func(*State) {}))
	f.Add(writtenState(f, func(s *State) { s.Step, s.Spikes = 0, spikes{} }))
	f.Add(writtenState(f, func(s *State) { s.Spikes.Losses = make([]float64, spikeWindow) }))
	f.Add(writtenState(f, func(s *State) { s.Step = math.MaxInt64 }))
	f.Add([]byte(`{"version":2,"step":1,"STEP":2,"step":3,"spikes":{"losses":[1e308,-1e308,5e-324]},"data":{"epoch":-1}}`))
	f.Add([]byte(`{"version":2,"step":-0,"seed":9223372036854775807,"data":null,"spikes":{"losses":null}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := parseState(text)
		if err != nil {
			require.NotContains(t, err.Error(), "\n")
			return
		}
		require.GreaterOrEqual(t, s.Step, s.Skipped)
		again, err := json.Marshal(s)
		require.NoError(t, err)
		second, err := parseState(again)
		require.NoError(t, err)
		require.Equal(t, s, second)
		for i := range 2 * spikeWindow {
			s.Spikes.observe(s.Step+1+i, 3, 0)
			require.LessOrEqual(t, len(s.Spikes.Losses), spikeWindow)
		}
	})
}

// FuzzRows: any rows give phases or an error. Of accepted rows each has an effect, and
// every operand's cast is valid.
func FuzzRows(f *testing.F) {
	f.Add("fp8-smooth", "layers.0.mlp.*", "", "", "bf16", "", "", "", "", "layers.*", "wgrad")
	f.Add("fp8-delayed", "layers.*.self_attn.[qk]_proj", "fprop", "input", "e4m3", "current", "1x128", "fp32", "nearest", "", "dgrad")
	f.Add("mxfp8", "*", "", "weight", "e5m2", "current", "1x32", "e8m0", "stochastic", "lm_head", "")
	f.Add("bf16", "[", "dgrad", "grad", "fp32", "unit", "tensor", "pow2", "", "\\", "x")
	f.Add("fp32", "lm_head", "", "grad", "e4m3", "delayed", "row", "", "", "layers.9.*", "wgrad")
	f.Fuzz(func(t *testing.T, name, scope, gemm, operand, format, scaling, granularity, scale, rounding, scope2, gemm2 string) {
		c := Default()
		c.Recipe = name
		c.Precision.Rows = []PrecisionRow{
			{Scope: scope, GEMM: gemm, Operand: operand, Format: format, Scaling: scaling, Granularity: granularity, Scale: scale, Rounding: rounding},
			{Scope: scope2, GEMM: gemm2, Format: "e5m2"},
		}
		phases, err := c.Phases()
		if err != nil {
			require.NotEmpty(t, err.Error())
			return
		}
		r, err := phases[0].Config.ResolvedRecipe()
		require.NoError(t, err)
		layers, err := c.ModelConfig().Linears()
		require.NoError(t, err)
		for i := range c.Precision.Rows {
			require.True(t, r.RowHasEffect(i, layers), "row %d of %+v", i, c.Precision.Rows)
		}
		require.NoError(t, r.Describe(io.Discard, layers))
	})
}
