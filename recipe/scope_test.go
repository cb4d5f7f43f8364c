package recipe

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/fp8"
)

// The numbers are those of Python's list(range(n))[from:to].
func TestSlicesAreThoseOfPython(t *testing.T) {
	for scope, want := range map[string][2]string{ // of models with one and four layers
		"layers[:].*":    {"0", "0123"},
		"layers[:2].*":   {"0", "01"},
		"layers[-1:].*":  {"0", "3"},
		"layers[-2:].*":  {"0", "23"},
		"layers[1:3].*":  {"", "12"},
		"layers[1:-1].*": {"", "12"},
		"layers[-8:].*":  {"0", "0123"},
		"layers[9:].*":   {"", ""},
		"layers[3:9].*":  {"", "3"},
		"layers[-3:2].*": {"0", "1"},
		"layers[:-1].*":  {"", "012"},
		"layers[:-4].*":  {"", ""},
		"layers[-9:1].*": {"0", "0"},
	} {
		require.NoError(t, CheckScope(scope))
		for i, n := range []int{1, 4} {
			got := ""
			for _, l := range Select(scope, decoder(n)) {
				path, number := l.fold()
				require.Contains(t, path, "layers.*.")
				if !strings.HasSuffix(got, number) {
					got += number
				}
			}
			require.Equal(t, want[i], got, "%s of %d layers", scope, n)
		}
	}
}

// A slice is a part of the pattern: what precedes and follows it must match too, each stack
// of layers has its own depth, and brackets without a colon stay classes of characters.
func TestSelect(t *testing.T) {
	layers := []Layer{{Scope: "up"}, {Scope: "7"}}
	for _, path := range []string{"encoder.0", "encoder.1", "encoder.2", "decoder.0", "decoder.1"} {
		layers = append(layers, Layer{Scope: path + ".mlp.up"}, Layer{Scope: path + ".experts.0"}, Layer{Scope: path + ".experts.1"})
	}
	for scope, want := range map[string]string{
		"*[-1:].mlp.up":                "encoder.2.mlp.up decoder.1.mlp.up",
		"encoder[-1:].*":               "encoder.2.mlp.up encoder.2.experts.0 encoder.2.experts.1",
		"decoder.0.experts[-1:]":       "decoder.0.experts.1",
		"*.experts[1:]":                "encoder.0.experts.1 encoder.1.experts.1 encoder.2.experts.1 decoder.0.experts.1 decoder.1.experts.1",
		"coder[:].*":                   "",
		"decoder[1:].up":               "",
		"decoder[1:]*up":               "decoder.1.mlp.up",
		"encoder.[12].mlp.up":          "encoder.1.mlp.up encoder.2.mlp.up",
		"[de][en]coder[:1].mlp.[tuv]p": "encoder.0.mlp.up decoder.0.mlp.up",
		"up":                           "up",
	} {
		require.NoError(t, CheckScope(scope))
		var got []string
		for _, l := range Select(scope, layers) {
			got = append(got, l.Scope)
		}
		require.Equal(t, want, strings.Join(got, " "), scope)
	}
}

func TestCheckScopeRefuses(t *testing.T) {
	for scope, want := range map[string]string{
		"layers.[":                        "is not a valid glob pattern",
		"layers[-1].*":                    "write a slice as in layers[-1:].*",
		"layers[::2].*":                   "[::2] is not a slice from:to",
		"layers[-:2].*":                   "[-:2] is not a slice from:to",
		"layers[1:9999999999999999999].*": "is not a slice from:to",
		"layers.[1:3].*":                  `use "layers[1:3].*"`,
		"[1:3].*":                         "a slice must follow a name",
		"layers[1:3].*[2:4].up":           "has two slices",
		"layers[2:2].*":                   "the slice [2:2] is empty in every model",
		"layers[:0].*":                    "is empty in every model",
		"layers[-3:0].*":                  "is empty in every model",
		"layers[-1:-2].*":                 "is empty in every model",
		"layers[1:3].[":                   "is not a valid glob pattern",
	} {
		require.ErrorContains(t, CheckScope(scope), want)
		r := lookup(t, "fp8-current")
		r.Rows = append(r.Rows, Row{Scope: scope, DType: fp8.BF16})
		require.ErrorContains(t, r.Validate(), "recipe fp8-current, row 4: scope")
	}
}

// The methods that take a model's layers count them; Cast needs Over or For.
func TestSlicesOfARecipe(t *testing.T) {
	r := lookup(t, "fp8-current")
	require.False(t, r.NeedsLayers())
	r.Rows = append([]Row{{Scope: "layers[-1:].mlp.*", DType: fp8.BF16}, {Scope: "layers[4:].*", DType: fp8.BF16}}, r.Rows...)
	require.True(t, r.NeedsLayers())
	require.NoError(t, r.Validate())
	const last = "layers.3.mlp.up_proj"
	for _, of := range []func([]Layer) Recipe{r.Over, func(layers []Layer) Recipe {
		r, _, err := r.For(fp8.E4M3, nil, layers)
		require.NoError(t, err)
		return r
	}} {
		require.False(t, of(decoder(4)).NeedsLayers())
		require.Equal(t, fp8.BF16, of(decoder(4)).Cast(at(last), Fprop, Input).DType)
		require.Equal(t, fp8.E4M3, of(decoder(5)).Cast(at(last), Fprop, Input).DType)
	}
	require.Equal(t, fp8.E4M3, r.Over(decoder(4)).Over(decoder(5)).Cast(at(last), Fprop, Weight).DType)
	require.Equal(t, []string{"layers[4:].*"}, r.Unmatched(decoder(4)))
	require.True(t, r.RowHasEffect(0, decoder(4)))
	require.False(t, r.RowHasEffect(1, decoder(4)))
	require.True(t, r.RowHasEffect(1, decoder(5)))
	var b strings.Builder
	require.NoError(t, r.Describe(&b, decoder(6)))
	for _, want := range []string{"\nlayers.0-3.mlp.up,gate,down\n", "\nlayers.4-5.mlp.up,gate,down\n", "\nlayers.4-5.self_attn.q,k,v,o\n"} {
		require.Contains(t, b.String(), want)
	}
}

// The experts of a layer are one path, unless a row treats one of them otherwise.
func TestDescribeFoldsExperts(t *testing.T) {
	var layers []Layer
	for _, path := range []string{"layers.0.mlp", "layers.1.mlp"} {
		layers = append(layers, Layer{Scope: path + ".gate", Router: true})
		for _, expert := range []string{"0", "1", "2"} {
			layers = append(layers, Layer{Scope: path + ".experts." + expert + ".up_proj"}, Layer{Scope: path + ".experts." + expert + ".down_proj", Hidden: true})
		}
	}
	named := func(rows ...Row) (names []string) {
		r, err := Lookup("fp8-current")
		require.NoError(t, err)
		r.Rows = append(rows, r.Rows...)
		for _, g := range r.groups(layers) {
			names = append(names, describePaths(g, layers)...)
		}
		return names
	}
	require.Equal(t, []string{"layers.*.mlp.gate", "layers.*.mlp.experts.*.up,down"}, named())
	require.Equal(t, []string{
		"layers.*.mlp.gate",
		"layers.*.mlp.experts.*.up", "layers.*.mlp.experts.0.down", "layers.0.mlp.experts.1.down", "layers.*.mlp.experts.2.down",
		"layers.1.mlp.experts.1.down",
	}, named(Row{Scope: "layers.1.mlp.experts.1.down_proj", Scaling: Delayed}))
}
