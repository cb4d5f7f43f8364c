package runs

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGroups(t *testing.T) {
	newOne := func(recipe, seed, lr, backend string, loss float64) *Run {
		r := newRun(recipe + seed)
		r.Config = map[string]string{"recipe": recipe, "seed": seed, "optimizer.lr": lr}
		r.Backend = backend
		r.Metrics["val_loss"] = &Series{[]float64{9}, []float64{loss}}
		return r
	}
	list := []*Run{
		newOne("bf16", "10", "1", "emu, avx2", 2), newOne("fp8", "2", "1", "emu, avx512", 3), newOne("bf16", "2", "1", "emu", 1),
		newOne("fp8", "2", "0.5", "emu", 7), newOne("fp8", "2", "1", "emu, h100+avx2", 5), newOne("fp8", "3", "1", "emu", 9),
	}
	groups := GroupsOf(list)
	var names []string
	for _, g := range groups {
		names = append(names, g.Name)
	}
	require.Equal(t, []string{"bf16", "fp8 lr=1 on emu", "fp8 lr=0.5 on emu", "fp8 lr=1 on emu:h100"}, names)
	require.Equal(t, []*Run{list[2], list[0]}, groups[0].Runs)
	require.Nil(t, groups[0].Baseline)
	require.Equal(t, []Pair{{list[1], list[2]}}, groups[1].Pairs()) // seed 3 has no partner
	require.Empty(t, groups[0].Pairs())
	unknown := &Group{Runs: []*Run{newRun("a")}, Baseline: &Group{Runs: []*Run{newRun("b")}}}
	require.Empty(t, unknown.Pairs(), "runs without a known seed")
	require.Equal(t, []string{"optimizer.lr", "recipe"}, Differing(list))
}

// Copies of a run are no further evidence.
func TestPairsOfCopies(t *testing.T) {
	run := func(recipe, seed string) *Run {
		return &Run{Config: map[string]string{"recipe": recipe, "seed": seed}}
	}
	groups := GroupsOf([]*Run{run("bf16", "1"), run("fp8", "1"), run("bf16", "1"), run("fp8", "1"), run("fp8", "2"), run("bf16", "2")})
	require.Len(t, groups[1].Runs, 3)
	require.Len(t, groups[1].Distinct(), 2)
	require.Len(t, groups[1].Pairs(), 2)
	require.Equal(t, "2", groups[1].Pairs()[1].Baseline.Seed())
}
