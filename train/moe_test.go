package train

import (
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/nn"
	"octet/recipe"
)

// withExperts is small with experts in place of each MLP, of which some drop tokens.
func withExperts(t *testing.T, recipeName string) Config {
	c := small(t, recipeName)
	c.Model.Experts, c.Model.ExpertsPerToken, c.Model.ExpertCapacity = 4, 2, 0.9
	return c
}

// The programs of every recipe are valid with experts, with and without recomputation.
func TestExpertsRecord(t *testing.T) {
	for _, name := range recipe.Names() {
		c := withExperts(t, name)
		c.Train.Recompute = "block"
		j, err := NewJob(c, specOf(t, "emu"))
		require.NoError(t, err, name)
		for _, p := range j.Programs() {
			require.NoError(t, p.Err(), name)
		}
	}
}

// Models with experts learn. Recomputation changes no bit, nor does a stop: after a restore steps,
// routing and evaluation are those of a run without it.
func TestExpertsTrain(t *testing.T) {
	for _, name := range []string{"bf16", "fp8-smooth", "fp8-smooth-token", "fp8-delayed"} {
		c := withExperts(t, name)
		c.Train.Steps, c.Train.Accumulate = 8, 2
		whole := newTrainer(t, c, 2, false)
		want := steps(t, whole, 8)
		require.Less(t, want[7].Loss, want[0].Loss, name)
		require.NotEqual(t, Routing{}, want[7].Routing)

		c.Train.Recompute = "block"
		stopped := newTrainer(t, c, 1, false)
		require.Equal(t, want[:4], steps(t, stopped, 4), name)
		resumed := newTrainer(t, c, 1, false)
		require.NoError(t, resumed.Restore(t.Context(), snapshot(t, stopped)))
		require.Equal(t, want[4:], steps(t, resumed, 4), name)
		a, err := whole.Evaluate(t.Context())
		require.NoError(t, err)
		b, err := resumed.Evaluate(t.Context())
		require.NoError(t, err)
		require.Equal(t, a, b, name)
	}
}

// Ranks that share the optimizer state train as those that do not, and report the routing of all.
func TestExpertsOnRanks(t *testing.T) {
	c := withExperts(t, "fp8-smooth")
	c.Train.Ranks, c.Train.Steps = 2, 3
	want := steps(t, newTrainer(t, c, 1, false), 3)
	c.Train.ZeroStage = 1
	got := newTrainer(t, c, 1, false)
	require.Equal(t, want, steps(t, got, 3))
	stats := values(t, got.ranks[0], got.ranks[0].Model.RouteStats)
	require.Equal(t, stats, values(t, got.ranks[1], got.ranks[1].Model.RouteStats))
	require.Equal(t, float64(got.ranks[0].TokensPerStep()), stats[backend.RouteTokens])
}

// One expert that takes all tokens computes what the MLP does: in FP32 losses and gradients have
// the same bits. (Elsewhere the expert's result is rounded before the residual is added.)
func TestOneExpertIsTheMLP(t *testing.T) {
	c := small(t, "fp32")
	c.Train.Steps = 4
	dense := newTrainer(t, c, 1, false)
	initial := map[string][]float32{}
	for _, p := range dense.ranks[0].Model.Params {
		initial[p.Name] = p.Init(1)
	}
	want := steps(t, dense, 4)

	c.Model.Experts, c.Model.ExpertsPerToken, c.Model.ExpertCapacity = 1, 1, 1
	expert := newTrainer(t, c, 1, false)
	names := strings.NewReplacer("block_sparse_moe.experts.0.w1", "mlp.gate_proj", "block_sparse_moe.experts.0.w2", "mlp.down_proj", "block_sparse_moe.experts.0.w3", "mlp.up_proj")
	require.NoError(t, expert.ranks[0].initWith(t.Context(), func(p *nn.Param) ([]float32, error) {
		if x, ok := initial[names.Replace(p.Name)]; ok {
			return x, nil
		}
		require.Contains(t, p.Name, "block_sparse_moe.gate.weight")
		return p.Init(1), nil
	}))
	got := steps(t, expert, 4)
	for i := range got {
		require.Equal(t, Routing{MaxLoad: 1, AuxLoss: 1}, got[i].Routing)
		got[i].Routing = Routing{}
	}
	require.Equal(t, want, got)
}

// Training drops tokens beyond the capacity and reports their share; evaluation drops none.
func TestCapacity(t *testing.T) {
	c := withExperts(t, "bf16")
	var dropped, losses []float64
	for _, capacity := range []float64{0.25, 2} {
		c.Model.ExpertCapacity = capacity
		tr := newTrainer(t, c, 1, false)
		loss, err := tr.Evaluate(t.Context())
		require.NoError(t, err)
		losses, dropped = append(losses, loss), append(dropped, steps(t, tr, 1)[0].Routing.Dropped)
	}
	require.Equal(t, losses[0], losses[1])
	require.InDelta(t, 0.75, dropped[0], 1e-9, "every expert is full")
	require.Zero(t, dropped[1])
}

// The auxiliary loss balances experts; without it they stay further from balance.
func TestAuxLossBalances(t *testing.T) {
	load := func(aux float64) float64 {
		c := withExperts(t, "bf16")
		c.Train.Steps, c.Model.RouterAuxLoss = 30, aux
		return steps(t, newTrainer(t, c, 2, false), 30)[29].Routing.MaxLoad
	}
	with, without := load(1), load(0)
	t.Logf("largest load over the even one: %.3f, without the auxiliary loss %.3f", with, without)
	require.Less(t, with, without)
}

// A token takes the parameters of its experts alone.
func TestActiveParameters(t *testing.T) {
	c := withExperts(t, "bf16")
	j, err := NewJob(c, specOf(t, "emu"))
	require.NoError(t, err)
	d := Default().Model
	c.Model.Experts, c.Model.ExpertCapacity = 0, d.ExpertCapacity
	dense, err := NewJob(c, specOf(t, "emu"))
	require.NoError(t, err)
	m := int64(c.Model.Layers * c.Model.Dim)
	require.Equal(t, dense.ActiveParameters()+m*int64(3*c.Model.FFN+4), j.ActiveParameters())
}

func TestExpertsAreChecked(t *testing.T) {
	for want, edit := range map[string]func(m *Model){
		"model.experts = -1 is out of range; use 0":                                                       func(m *Model) { m.Experts = -1 },
		"model.experts_per_token = 5 is not from 1 to model.experts = 4; use model.experts_per_token = 4": func(m *Model) { m.ExpertsPerToken = 5 },
		"model.expert_capacity = 0 is not a positive number; use 1.25":                                    func(m *Model) { m.ExpertCapacity = 0 },
		"model.router_aux_loss = -1 is not a finite number of at least 0; use 0.01":                       func(m *Model) { m.RouterAuxLoss = -1 },
		`model.experts = 4 needs gated experts, as in Mixtral, and model.activation = "g`:                 func(m *Model) { m.Activation = "gelu" },
	} {
		c := Default()
		c.Model.Experts = 4
		edit(&c.Model)
		require.ErrorContains(t, c.Validate([]string{c.Recipe}), want)
	}
}

// config.json holds the experts: it implies the same tensors and the same model.
func TestExpertsInConfigJSON(t *testing.T) {
	for _, k := range []int{1, 2} {
		c := withExperts(t, "bf16")
		c.Model.Activation, c.Model.ExpertsPerToken = "swiglu", k
		m, hf := c.ModelConfig(), HFConfig(c)
		require.Equal(t, k == 2, hf.Foreign(), "Mixtral makes a single weight 1")
		text, err := hf.MarshalJSON()
		require.NoError(t, err)
		read := hf
		require.NoError(t, read.UnmarshalJSON(text))
		require.Equal(t, hf, read)
		got, err := FromHF(read)
		require.NoError(t, err)
		got.InitStd, got.MoE.Capacity = m.InitStd, m.MoE.Capacity
		require.Equal(t, m, got)

		bf16, err := recipe.Lookup("bf16")
		require.NoError(t, err)
		model, err := nn.New(got, bf16, backend.NewVars())
		require.NoError(t, err)
		want := map[string][]int{}
		for _, p := range model.Params {
			want[p.Name] = append([]int{p.Rows}, p.Shape[1:]...)
		}
		require.Equal(t, want, maps.Collect(hf.Layout()))
	}
}

// With a router of zeros all logits are equal: ties go to the experts with lower numbers, and the
// others have no token. Their rows are 0: no gradient, and casts that keep the scale 1.
func TestExpertsWithoutTokens(t *testing.T) {
	for _, name := range []string{"fp8-smooth", "fp8-smooth-token", "te-block", "nvfp4", "coat"} {
		c := withExperts(t, name)
		c.Model.ExpertCapacity = 2
		tr := newTrainer(t, c, 1, false)
		one := tr.ranks[0]
		require.NoError(t, one.initWith(t.Context(), func(p *nn.Param) ([]float32, error) {
			if strings.HasSuffix(p.Name, "block_sparse_moe.gate.weight") {
				return make([]float32, p.Elems()), nil
			}
			return p.Init(1), nil
		}))
		step := steps(t, tr, 1)[0]
		require.False(t, step.Skipped, name)
		require.Equal(t, Routing{MaxLoad: 2, AuxLoss: 1}, step.Routing, name)
		idle := func(path string) bool {
			return strings.Contains(path, "experts.2.") || strings.Contains(path, "experts.3.")
		}
		for _, p := range one.Model.Params {
			require.Equal(t, idle(p.Name), norm(values(t, one, p.Grad)) == 0, "%s %s", name, p.Name)
		}
		if one.Model.Scales.Empty() {
			continue
		}
		scales := values(t, one, one.Model.Scales.Scale)
		for i, cast := range one.Model.CastNames() {
			if idle(cast) && !strings.Contains(cast, ".weight.") {
				require.Equal(t, 1.0, scales[i], "%s %s", name, cast)
			}
		}
		loss, err := tr.Evaluate(t.Context())
		require.NoError(t, err)
		require.Less(t, loss, 7.0, name)
	}
}
