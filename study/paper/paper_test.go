package main

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The lines of the memory table are all of the memory.
func TestLines(t *testing.T) {
	for _, recipe := range []string{"bf16", "fp8-smooth"} {
		p, err := planOf("recipe=" + recipe)
		require.NoError(t, err)
		sum := p.memory.Arena
		for _, l := range p.memory.Lines {
			sum += l.Layers + l.Rest
		}
		for _, g := range p.memory.Beside {
			sum += g.N
		}
		require.Equal(t, sum, p.total())
	}
}

// scoresOf returns scores of five seeds, whose loss and accuracies differ from those of shift 0.
func scoresOf(shift float64) map[string]*score {
	list := map[string]*score{}
	for seed := range 5 {
		noise := 0.01 * float64(seed)
		list[fmt.Sprint(seed)] = &score{ValLoss: 2*(1+shift) + noise, Metrics: map[string]float64{
			"continuation acc": 0.5 - shift + noise, "lastword acc": 0.1 - shift + noise, "lastword perplexity": 1000 * (1 + 10*shift),
		}}
	}
	return list
}

// A recipe equal to bf16 holds every prediction, and a control as good as bf16 refutes its own.
func TestOutcomes(t *testing.T) {
	refuted := func(recipe, failing float64) int {
		base := scoresOf(0)
		all := make([]map[string]result, len(measures))
		for i, m := range measures {
			all[i] = map[string]result{"bf16": resultOf(m, base, base), "fp8": resultOf(m, scoresOf(recipe), base), control: resultOf(m, scoresOf(failing), base)}
		}
		var b strings.Builder
		require.NoError(t, outcomes(&b, []string{"bf16", "fp8", control}, all))
		return strings.Count(b.String(), "**refuted**")
	}
	require.Zero(t, refuted(0, 0.05))
	require.Equal(t, len(measures), refuted(0, 0))
	require.Equal(t, len(measures)+1, refuted(0.05, 0.05))
	require.Zero(t, refuted(0.006, 0.05))
	require.Equal(t, 2, refuted(0.0105, 0.05), "1.05 % of the loss, 1.4 % of the ln perplexity, 1.05 points")
}

func TestRefusals(t *testing.T) {
	require.ErrorContains(t, study(t.Context(), io.Discard, "runs", "", 1), "belong together")
	_, _, err := readTasks(t.TempDir())
	require.ErrorContains(t, err, "continuation.jsonl")
}
