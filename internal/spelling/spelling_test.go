package spelling

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNearest(t *testing.T) {
	known := []string{"model.layers", "model.hidden", "train.micro_batch", "seed", "hide"}
	for name, want := range map[string]string{
		"model.layer": "model.layers",
		"layers":      "model.layers",
		"hidden":      "model.hidden", // two letters from hide
		"train.seed":  "seed",
		"seeds":       "seed",
		"micro_batch": "train.micro_batch",
	} {
		require.Equal(t, "; did you mean "+want+"?", DidYouMean(name, known), name)
	}
	for _, far := range []string{"model.dropout", "train.zzz", "warmup_ratio", "train."} {
		require.Empty(t, DidYouMean(far, known), far)
	}
}

func TestDidYouMean(t *testing.T) {
	known := []string{"cuda", "gaudi", "emu", "ref"}
	for name, want := range map[string]string{
		"cudaa": "; did you mean cuda?",
		"cud":   "; did you mean cuda?",
		"guadi": "; did you mean gaudi?",
		"emuu":  "; did you mean emu?",
		"CUDA":  "; did you mean cuda?",
		"gpu":   "", // two letters from emu
		"nvcc":  "",
		"":      "",
	} {
		require.Equal(t, want, DidYouMean(name, known), name)
	}
	require.Empty(t, DidYouMean("cuda", nil))
}

func TestDistance(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"", "abc", 3}, {"kitten", "sitting", 3}, {"flaw", "lawn", 2}, {"lr", "lr", 0}} {
		require.Equal(t, test.want, distance(test.a, test.b))
		require.Equal(t, test.want, distance(test.b, test.a))
	}
}
