package train

import (
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var someRecipes = []string{"bf16", "fp8-smooth"}

func TestValidate(t *testing.T) {
	p := func(i int) *int { return &i }
	rows := func(r PrecisionRow) func(*Config) {
		return func(c *Config) { c.Precision.Rows = []PrecisionRow{{Scope: "*", Format: "bf16"}, r} }
	}
	schedule := func(entries ...any) func(*Config) {
		return func(c *Config) {
			for i := 0; i < len(entries); i += 2 {
				c.Precision.Schedule = append(c.Precision.Schedule, RecipeChange{entries[i].(int), entries[i+1].(string)})
			}
		}
	}
	for _, test := range []struct {
		edit func(*Config)
		want string // parts of the message, in order, separated by …
	}{
		{func(c *Config) { c.Recipe = "fp8-smoth" }, `recipe = "fp8-smoth" … bf16, fp8-smooth`},
		{func(c *Config) { c.Model.Preset = "2b" }, `model.preset = "2b" … tiny, small`},
		{func(c *Config) { c.Model.Layers = 0 }, "model.layers = 0 … use 1 ("},
		{func(c *Config) { c.Model.Layers = 1025 }, "model.layers = 1025 … use 1024 ("},
		{func(c *Config) { c.Model.FFN = math.MaxInt }, "model.ffn = 9223372036854775807 … use 16777216 ("},
		{func(c *Config) { c.Model.Dim = 120 }, "model.dim = 120 … multiple of 16 … use 128"},
		{func(c *Config) { c.Model.Dim = 3 }, "model.dim = 3 … use 16"},
		{func(c *Config) { c.Model.FFN = 350 }, "model.ffn = 350 … use 352"},
		{func(c *Config) { c.Model.Heads = 5 }, "model.heads = 5 does not divide model.dim = 128 … use model.heads = 4"},
		{func(c *Config) { c.Model.Heads, c.Model.KVHeads = 128, 128 }, "model.heads = 128 … head size of 1 … model.heads = 64"},
		{func(c *Config) { c.Model.KVHeads = 3 }, "model.kv_heads = 3 does not divide model.heads = 4; use model.kv_heads = 2"},
		{func(c *Config) { c.Model.KVHeads = -1 }, "model.kv_heads = -1 … use 1"},
		{func(c *Config) { c.Model.Heads, c.Model.KVHeads = 32, 2 }, "model.kv_heads = 2 … width 8 … use model.kv_heads = 4"},
		{func(c *Config) { c.Model.Vocab = -4 }, "model.vocab = -4"},
		{func(c *Config) { c.Model.Activation = "silu" }, `model.activation: unknown activation "silu" … swiglu, smooth-swiglu, gelu, relu`},
		{func(c *Config) { c.Model.RopeTheta = 1 }, "model.rope_theta = 1"},
		{func(c *Config) { c.Model.NormEps = math.NaN() }, "model.norm_eps = NaN … use 1e-05"},
		{func(c *Config) { c.Model.InitStd = math.Inf(1) }, "model.init_std = +Inf"},
		{func(c *Config) { c.Model.Init = "\xff" }, `model.init = "\xff" is not UTF-8`},
		{func(c *Config) { c.Data.Paths = []string{"a", "\xff"} }, `data.paths = "\xff" is not UTF-8`},
		{func(c *Config) { c.Data.Paths = []string{""} }, "data.paths holds an empty path"},
		{func(c *Config) { c.Data.Tokenizer = "\xff" }, `data.tokenizer = "\xff" is not UTF-8`},
		{func(c *Config) { c.Data.Packing = "best-fit" }, `data.packing = "best-fit" … stream, documents`},
		{func(c *Config) { c.Data.Loss = "answer" }, `data.loss = "answer" … all, answers`},
		{func(c *Config) { c.Data.Sources = []DataSource{{"a", 0}, {"b", 0}} }, "data.sources: all weights are 0"},
		{func(c *Config) { c.Data.Sources = []DataSource{{"a", 1}, {"b", -1}} }, `data.sources: the weight of "b" is -1`},
		{func(c *Config) { c.Data.Sources = []DataSource{{"", 1}} }, "data.sources: entry 1 has no path"},
		{func(c *Config) { c.Data.Paths, c.Data.Sources = []string{"a"}, []DataSource{{"a", 1}} }, "data.paths and data.sources"},
		{func(c *Config) { c.Data.Seq, c.Train.MicroBatch = 100, 3 }, "train.micro_batch = 3 … data.seq = 100 … 300 tokens … data.seq = 96 or train.micro_batch = 4"},
		{func(c *Config) { c.Data.Seq = 0 }, "data.seq = 0"},
		{func(c *Config) { c.Data.ValBytes = -1 }, "data.val_bytes = -1 … use 0"},
		{func(c *Config) { c.Data.Attention = "documents" }, `data.attention = "documents" is unknown; use one of causal, document …`},
		{func(c *Config) { c.Train.Steps = 0 }, "train.steps = 0"},
		{func(c *Config) { c.Train.MicroBatch = 0 }, "train.micro_batch = 0"},
		{func(c *Config) { c.Train.Accumulate = 0 }, "train.accumulate = 0"},
		{func(c *Config) { c.Train.Ranks = 0 }, "train.ranks = 0"},
		{func(c *Config) { c.Train.Ranks = 1<<20 + 1 }, "train.ranks = 1048577 … use 1048576 ("},
		{func(c *Config) { c.Train.EvalEvery = -1 }, "train.eval_every = -1"},
		{func(c *Config) { c.Train.OnNonfinite = -1 }, "train.on_nonfinite = -1"},
		{func(c *Config) { c.Train.Objective = "ppo" }, `train.objective = "ppo" … cross-entropy, dpo`},
		{func(c *Config) { c.Train.DPOBeta = 0 }, "train.dpo_beta = 0 … use 0.1"},
		{func(c *Config) { c.Train.DPOBeta = 1e7 }, "train.dpo_beta = 1e+07 … use 0.1"},
		{func(c *Config) { c.Train.Objective, c.Train.MicroBatch = "dpo", 3 }, `train.objective = "dpo" … train.micro_batch = 3 is odd … train.micro_batch = 4`},
		{func(c *Config) { c.Train.Objective, c.Data.Packing = "dpo", "documents" }, `train.objective = "dpo" … data.packing = "stream"`},
		{func(c *Config) { c.Train.Objective, c.Data.Sources = "dpo", []DataSource{{"a", 1}} }, `train.objective = "dpo" … data.paths in place of data.sources`},
		{func(c *Config) { c.Train.OnSpike = "stop" }, `train.on_spike = "stop" … log, rewind, off`},
		{func(c *Config) { c.Train.OnSpike, c.Checkpoint.Every = "rewind", 0 }, "train.on_spike … checkpoint.every = 0 … use checkpoint.every = 200 and checkpoint.keep_last = 2"},
		{func(c *Config) { c.Train.OnSpike, c.Checkpoint.KeepLast = "rewind", 1 }, "checkpoint.keep_last = 1 … use checkpoint.every = 200 and checkpoint.keep_last = 2"},
		{schedule(0, "bf16"), "precision.schedule[0].step = 0 … use 1 ("},
		{schedule(7, "fp9"), `precision.schedule[0].recipe = "fp9" … bf16, fp8-smooth`},
		{schedule(7, "fp8smooth"), "precision.schedule[0].recipe … did you mean fp8-smooth?"},
		{schedule(7, "fp8-smooth"), `precision.schedule[0].recipe = "fp8-smooth" … already`},
		{schedule(7, "bf16", 7, "fp8-smooth"), "precision.schedule[1].step = 7 is not after step 7"},
		{func(c *Config) { c.Train.Recompute = "all" }, `train.recompute = "all" … none, attention, block`},
		{func(c *Config) { c.Optimizer.LR = 0 }, "optimizer.lr = 0 … use 0.002"},
		{func(c *Config) { c.Optimizer.LR = 1e-4 }, "optimizer.min_lr = 0.0002 is not below optimizer.lr = 0.0001; use optimizer.min_lr = 1e-05"},
		{func(c *Config) { c.Optimizer.MinLR = -1 }, "optimizer.min_lr = -1"},
		{func(c *Config) { c.Optimizer.Warmup = 20 }, "optimizer.warmup = 20 … use 1 ("},
		{func(c *Config) { c.Optimizer.Warmup = math.NaN() }, "optimizer.warmup = NaN"},
		{func(c *Config) { c.Optimizer.Schedule = "linear" }, `optimizer.schedule = "linear" … cosine, wsd, constant`},
		{func(c *Config) { c.Optimizer.Betas[1] = 1 }, "optimizer.betas holds 1 … 0.95"},
		{func(c *Config) { c.Optimizer.Eps = 0 }, "optimizer.eps = 0"},
		{func(c *Config) { c.Optimizer.EpsForm = "" }, `optimizer.eps_form = "" … hat, corrected`},
		{func(c *Config) { c.Optimizer.WeightDecay = -0.1 }, "optimizer.weight_decay = -0.1"},
		{func(c *Config) { c.Optimizer.Clip = -1 }, "optimizer.clip = -1"},
		{func(c *Config) { c.Optimizer.LossScale = 1000 }, "optimizer.loss_scale = 1000 is no power of two … use 65536"},
		{func(c *Config) { c.Optimizer.LossScale = 0 }, "optimizer.loss_scale = 0"},
		{func(c *Config) { c.Optimizer.LossScale = math.Inf(1) }, "optimizer.loss_scale = +Inf"},
		{func(c *Config) { c.Precision.Master = "e4m3" }, `precision.master = "e4m3" … fp32 fp16`},
		{func(c *Config) { c.Precision.M1 = "fp9" }, `precision.m1 = "fp9" … e5m2`},
		{func(c *Config) { c.Precision.M2 = "i32" }, `precision.m2 = "i32"`},
		{func(c *Config) { c.Precision.M1 = "e2m1fn" }, `precision.m1 = "e2m1fn" … of five to eight bits that has NaN`},
		{func(c *Config) { c.Precision.M1, c.Precision.M2 = "e4m3ieee", "e4m3" }, `precision.m2 = "e4m3" … precision.m1 = "e4m3ieee" … use precision.m2 = "e4m3ieee"`},
		{func(c *Config) { c.Precision.M1, c.Precision.M2 = "E4M3", "e4m3ieee" }, `precision.m2 = "e4m3ieee" … use precision.m2 = "E4M3"`},
		{func(c *Config) { c.Precision.GradAccum = "fp16" }, "precision.grad_accum: weight gradients in fp16 … use fp32, bf16"},
		{func(c *Config) { c.Precision.GradAccum = "e2m1" }, "precision.grad_accum: weight gradients in e2m1"},
		{func(c *Config) { c.Precision.Rounding = "up" }, `precision.rounding = "up" … nearest, stochastic`},
		{func(c *Config) { c.Precision.History = p(0) }, "precision.history = 0 … use 1 ("},
		{func(c *Config) { c.Precision.Margin = p(33) }, "precision.margin = 33 … use 32 ("},
		{func(c *Config) { c.Precision.GradMargin = p(-1) }, "precision.grad_margin = -1"},
		{rows(PrecisionRow{Format: "bf16"}), "precision.rows[1]: scope is missing"},
		{rows(PrecisionRow{Scope: "[", Format: "bf16"}), `precision.rows[1]: scope "["`},
		{rows(PrecisionRow{Scope: "layers[-1].*", Format: "bf16"}), `precision.rows[1]: scope "layers[-1].*" … layers[-1:].*`},
		{rows(PrecisionRow{Scope: "layers[2:1].*", Format: "bf16"}), "precision.rows[1]: scope … [2:1] is empty in every model"},
		{rows(PrecisionRow{Scope: "*", History: p(0)}), "precision.rows[1].history = 0 … use 1 ("},
		{rows(PrecisionRow{Scope: "*", Margin: p(33)}), "precision.rows[1].margin = 33 … use 32 ("},
		{rows(PrecisionRow{Scope: "*", Margin: p(1), Scaling: "current"}), `precision.rows[1]: margin = 1 does not apply to scaling = "current"`},
		{rows(PrecisionRow{Scope: "*", History: p(8), Format: "bf16"}), `precision.rows[1]: history = 8 does not apply to format = "bf16"`},
		{rows(PrecisionRow{Scope: "*"}), "precision.rows[1] sets nothing"},
		{rows(PrecisionRow{Scope: "*", Format: "i32"}), `precision.rows[1].format = "i32"`},
		{rows(PrecisionRow{Scope: "*", Scaling: "mx"}), `precision.rows[1].scaling = "mx"`},
		{rows(PrecisionRow{Scope: "*", Granularity: "2by2"}), `precision.rows[1].granularity: unknown granularity "2by2"`},
		{rows(PrecisionRow{Scope: "*", Rounding: "up"}), `precision.rows[1].rounding = "up"`},
		{rows(PrecisionRow{Scope: "*", Hadamard: 12}), "precision.rows[1]: hadamard = 12 is not a power of two from 4 to 128 (use 16"},
		{rows(PrecisionRow{Scope: "*", Hadamard: -16}), `precision.rows[1]: hadamard = -16 is`},
		{rows(PrecisionRow{Scope: "*", Hadamard: 16, Signs: "random"}), `precision.rows[1].signs: unknown signs "random" (known: te, seed)`},
		{rows(PrecisionRow{Scope: "*", Hadamard: 32, Signs: "te"}), `precision.rows[1]: signs "te" of hadamard = 32 … use hadamard = 16`},
		{rows(PrecisionRow{Scope: "*", Format: "e2m1", Signs: "te"}), `precision.rows[1]: signs "te" of hadamard = 0 … drop the signs`},
		{rows(PrecisionRow{Scope: "*", Format: "bf16", Hadamard: 16}), "precision.rows[1]: hadamard = 16 … bf16"},
		{rows(PrecisionRow{Scope: "*", Format: "bf16", Scaling: "unit"}), "precision.rows[1]: scaling … bf16"},
		{rows(PrecisionRow{Scope: "*", Format: "e4m3", GEMM: "bprop"}), `precision.rows[1].gemm = "bprop"`},
		{rows(PrecisionRow{Scope: "*", Format: "e4m3", Operand: "x"}), `precision.rows[1].operand = "x"`},
		{rows(PrecisionRow{Scope: "*", Format: "e4m3", GEMM: "fprop", Operand: "grad"}), "precision.rows[1] matches nothing"},
		{func(c *Config) { c.Checkpoint.Every = -1 }, "checkpoint.every = -1"},
		{func(c *Config) { c.Checkpoint.OnError = "retry" }, "checkpoint.on_error = \"retry\" is unknown; use one of stop, continue"},
		{func(c *Config) { c.Checkpoint.KeepLast = 0 }, "checkpoint.keep_last = 0 … use 1 ("},
		{func(c *Config) { c.Checkpoint.KeepEvery = -1 }, "checkpoint.keep_every = -1"},
		{func(c *Config) { c.Checkpoint.KeepEvery = 300 }, "checkpoint.keep_every = 300 … use checkpoint.keep_every = 400"},
		{func(c *Config) { c.Checkpoint.Every, c.Checkpoint.KeepEvery = 0, 100 }, "use checkpoint.every = 100"},
		{func(c *Config) { c.Model.Dim, c.Model.FFN = 1<<24, 1<<24 }, "[model] section … 5.9e+15 parameters"},
		{func(c *Config) { c.Train.MicroBatch, c.Data.Seq = 1<<24, 1<<24 }, "activations of about"},
		{func(c *Config) { c.Train.Steps, c.Train.Accumulate, c.Train.MicroBatch = 1<<30, 1<<24, 1<<20 }, "tokens, more than the supported"},
	} {
		c := Default()
		test.edit(&c)
		err := c.Validate(someRecipes)
		require.Error(t, err, test.want)
		msg := err.Error()
		require.NotContains(t, msg, "\n", "one problem gives one line")
		rest := msg
		for _, part := range strings.Split(test.want, "…") {
			_, after, found := strings.Cut(rest, strings.TrimSpace(part))
			require.True(t, found, "%q lacks %q", msg, part)
			rest = after
		}
	}
}

func TestValidateAccepts(t *testing.T) {
	zero := 0
	for _, edit := range []func(*Config){
		func(*Config) {},
		func(c *Config) { c.Optimizer.Schedule, c.Optimizer.LR = "constant", 1e-6 }, // min_lr is not used
		func(c *Config) { c.Optimizer.Clip, c.Optimizer.WeightDecay, c.Optimizer.MinLR = 0, 0, 0 },
		func(c *Config) { c.Optimizer.Warmup, c.Train.EvalEvery, c.Checkpoint.Every = 1, 0, 0 },
		func(c *Config) { c.Data.Seq, c.Train.MicroBatch = 100, 4 },
		func(c *Config) { c.Model.Vocab = 50257 }, // padded to a multiple of 16
		func(c *Config) { c.Model.Activation = "gelu" },
		func(c *Config) { c.Precision.Margin, c.Precision.M2 = &zero, "E4M3" },
		func(c *Config) { c.Checkpoint.KeepEvery = 400 },
		func(c *Config) { c.Train.OnSpike = "rewind" },
		func(c *Config) { c.Precision.Schedule = []RecipeChange{{1, "bf16"}, {2, "fp8-smooth"}} },
		func(c *Config) {
			c.Precision.Rows = []PrecisionRow{{Scope: "layers.0.mlp.*", GEMM: "wgrad", Operand: "grad", Format: "e5m2", Scaling: "current", Rounding: "stochastic"}}
		},
	} {
		c := Default()
		edit(&c)
		require.NoError(t, c.Validate(someRecipes))
	}
}

func TestValidateReportsEverything(t *testing.T) {
	c := Default()
	c.Train.Steps, c.Optimizer.LR = 0, -1
	require.Len(t, strings.Split(c.Validate(someRecipes).Error(), "\n"), 2)
	require.Error(t, Config{}.Validate(nil))
}

// Validate accepts the values that its errors suggest.
func TestSuggestionsPass(t *testing.T) {
	for heads := 1; heads <= 130; heads++ {
		c := Default()
		c.Model.Heads, c.Model.KVHeads = min(heads, 128), 1
		for range 2 { // heads first, then kv_heads
			err := c.Validate(someRecipes)
			if err == nil {
				break
			}
			_, use, _ := strings.Cut(err.Error(), "use model.")
			key, n, _ := strings.Cut(use, " = ")
			f := map[string]*int{"heads": &c.Model.Heads, "kv_heads": &c.Model.KVHeads}[key]
			require.NotNil(t, f, err)
			*f = 0
			for _, d := range n {
				*f = *f*10 + int(d-'0')
			}
		}
		require.NoError(t, c.Validate(someRecipes))
	}
}

// Validate rejects some value of every key, except for the few keys that accept any value.
func TestEveryKeyIsChecked(t *testing.T) {
	free := map[string]bool{
		"Seed": true, "Tied": true, "Init": true, "FinalNorm": true, "Paths": true, "Tokenizer": true, "Network": true,
		"Stats": true, "DirectionLR": true, "QKVBias": true,
	}
	var walk func(get func(*Config) reflect.Value)
	walk = func(get func(*Config) reflect.Value) {
		c := Default()
		section := get(&c)
		for i := range section.NumField() {
			name := section.Type().Field(i).Name
			if section.Field(i).Kind() == reflect.Struct {
				walk(func(c *Config) reflect.Value { return get(c).Field(i) })
				continue
			}
			c := Default()
			switch f := get(&c).Field(i); f.Kind() {
			case reflect.Int, reflect.Int64:
				f.SetInt(-7)
			case reflect.Float64:
				f.SetFloat(math.NaN())
			case reflect.String:
				f.SetString("?")
			case reflect.Array:
				f.Index(0).SetFloat(math.NaN())
			case reflect.Pointer:
				if f.Type().Elem().Kind() == reflect.Bool {
					continue // both values are valid
				}
				bad := reflect.New(f.Type().Elem())
				bad.Elem().Set(reflect.ValueOf(-7).Convert(bad.Elem().Type()))
				f.Set(bad)
			case reflect.Slice:
				f.Set(reflect.MakeSlice(f.Type(), 1, 1))
			}
			if err := c.Validate(someRecipes); !free[name] {
				require.Error(t, err, name)
			}
		}
	}
	walk(func(c *Config) reflect.Value { return reflect.ValueOf(c).Elem() })
}

// Sizes must be multiples of 16 if any recipe of the run or any row of the configuration
// uses FP8, and only then.
func TestSizesForFP8(t *testing.T) {
	c := Default()
	c.Recipe = "fp32"
	c.Model.Dim, c.Model.Heads, c.Model.KVHeads, c.Model.FFN = 72, 3, 1, 70 // heads of 24
	c.Data.Seq, c.Train.MicroBatch = 33, 1
	for _, recipe := range []string{"fp32", "bf16"} {
		c.Recipe = recipe
		require.NoError(t, c.Validate([]string{recipe}), recipe)
	}
	for name, edit := range map[string]func(*Config){
		"recipe":   func(c *Config) { c.Recipe = "fp8-current" },
		"block":    func(c *Config) { c.Recipe = "mxfp8" },
		"schedule": func(c *Config) { c.Precision.Schedule = []RecipeChange{{5, "fp8-current"}} },
		"row":      func(c *Config) { c.Precision.Rows = []PrecisionRow{{Scope: "*", Format: "e4m3"}} },
	} {
		changed := c
		edit(&changed)
		err := changed.Validate([]string{"bf16", "fp8-current", "mxfp8"})
		for _, want := range []string{"model.dim = 72 is", "model.ffn = 70 is", "data.seq = 33 are"} {
			require.ErrorContains(t, err, want, name)
		}
		changed.Model.Dim, changed.Model.FFN, changed.Data.Seq = 48, 64, 32
		changed.Model.Heads = 2
		require.ErrorContains(t, changed.Validate([]string{"bf16", "fp8-current", "mxfp8"}), "model.kv_heads = 1 gives keys and values of width 24", name)
	}
	c.Model.Dim = 75
	require.ErrorContains(t, c.Validate([]string{"bf16"}), "model.dim = 75 is odd, but rotary embeddings need an even head size; use 76")
}

// Sizes that no FP8 GEMM supports train in FP32 and BF16.
func TestOddSizesTrain(t *testing.T) {
	for _, recipe := range []string{"fp32", "bf16"} {
		c := small(t, recipe)
		c.Model.Dim, c.Model.Heads, c.Model.KVHeads, c.Model.FFN = 30, 3, 1, 22
		c.Data.Seq, c.Train.MicroBatch = 11, 3
		require.NoError(t, c.Resolve())
		want := steps(t, newTrainer(t, c, 1, false), 3)
		require.Less(t, want[2].Loss, want[0].Loss)
	}
}
