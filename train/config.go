package train

import "reflect"

// Config says what a run computes, and nothing about where: backend, threads
// and output folder are no part of it. The same Config on the same backend,
// device model and arithmetic (backend.Spec) trains the same weights, bit for
// bit.
//
// The toml tags are the keys of a configuration file, in the order in which a
// run's config.toml lists them; the doc tags are the comments beside them. This
// package reads no files: a Go program fills the struct in, starting from
// [Default] or [Preset].
//
// What the recipe decides unless told otherwise, Model.Activation and the
// fields of Precision, has a "not given" value: the empty string, or nil. See
// [Config.FillFromRecipe].
type Config struct {
	Recipe string `toml:"recipe"`
	Seed   int64  `toml:"seed"`

	Model      Model      `toml:"model"`
	Data       Data       `toml:"data"`
	Train      Loop       `toml:"train"`
	Optimizer  Optimizer  `toml:"optimizer"`
	Precision  Precision  `toml:"precision" doc:"from the recipe; each key overrides it"`
	Checkpoint Checkpoint `toml:"checkpoint"`
}

// Model is the shape of a Llama-style decoder. Widths are in elements.
type Model struct {
	Preset     string  `toml:"preset" doc:"tiny small 124m 1b llama2-7b llama3-8b"`
	Layers     int     `toml:"layers"`
	Dim        int     `toml:"dim"`
	Heads      int     `toml:"heads"`
	KVHeads    int     `toml:"kv_heads"`
	FFN        int     `toml:"ffn"`
	Vocab      int     `toml:"vocab" doc:"bytes: 256; otherwise from the shards or the tokenizer"`
	Tied       bool    `toml:"tied" doc:"the head shares the embedding's table"`
	Activation string  `toml:"activation,omitempty" doc:"from the recipe unless given: swiglu smooth-swiglu gelu relu"`
	RopeTheta  float64 `toml:"rope_theta" doc:"half-split form, as in Hugging Face"`
	NormEps    float64 `toml:"norm_eps"`
	InitStd    float64 `toml:"init_std" doc:"o_proj and down_proj: times 1/sqrt(2 layers)"`
	Init       string  `toml:"init" doc:"start from these weights: a Hugging Face folder or a checkpoint"`
}

// Data says what is read and how it is cut.
type Data struct {
	Paths    []string `toml:"paths" doc:"empty: the embedded default"`
	Seq      int      `toml:"seq" doc:"tokens in a sequence"`
	ValBytes int64    `toml:"val_bytes" doc:"largest size of the validation part"`
}

// Loop is the training loop: sizes of a batch and how often things happen.
type Loop struct {
	Steps       int    `toml:"steps"`
	MicroBatch  int    `toml:"micro_batch" doc:"sequences"`
	Accumulate  int    `toml:"accumulate" doc:"micro-batches in a step"`
	Ranks       int    `toml:"ranks" doc:"copies of the model, each with micro_batch sequences: GPUs on cuda"`
	ZeroStage   int    `toml:"zero_stage" doc:"1: ranks share the optimizer's state in equal parts; 0: each has all"`
	EvalEvery   int    `toml:"eval_every" doc:"steps; 0: only at the end"`
	HealthEvery int    `toml:"health_every" doc:"steps; casts and channels are measured; 0: never"`
	Recompute   string `toml:"recompute" doc:"none attention block"`
	OnNonfinite int    `toml:"on_nonfinite" doc:"consecutive skipped steps before stopping; 0: never stop"`
	OnSpike     string `toml:"on_spike" doc:"of the loss: log, rewind to the checkpoint before it, or off"`
}

// Optimizer is AdamW and its learning-rate schedule, [Optimizer.LRAt].
type Optimizer struct {
	LR          float64    `toml:"lr"`
	MinLR       float64    `toml:"min_lr" doc:"where the schedule ends"`
	Warmup      float64    `toml:"warmup" doc:"share of the steps"`
	Schedule    string     `toml:"schedule" doc:"cosine wsd constant"`
	Betas       [2]float64 `toml:"betas"`
	Eps         float64    `toml:"eps"`
	EpsForm     string     `toml:"eps_form" doc:"hat: as in the paper; corrected: as in PyTorch"`
	WeightDecay float64    `toml:"weight_decay" doc:"matrices"`
	Clip        float64    `toml:"clip" doc:"largest gradient norm; 0: no clipping"`
}

// Precision holds the exceptions to the recipe. A field that is not given
// (empty or nil) comes from the recipe.
type Precision struct {
	Master        string `toml:"master,omitempty"`
	M1            string `toml:"m1,omitempty"`
	M2            string `toml:"m2,omitempty"`
	Rounding      string `toml:"rounding,omitempty" doc:"of the optimizer's state: nearest stochastic"`
	StatePow2     *bool  `toml:"state_pow2,omitempty" doc:"scales of the optimizer's state are powers of two"`
	StateBlock    *int   `toml:"state_block,omitempty" doc:"moments with a scale for every 256 elements; 0: one"`
	FloorV        *bool  `toml:"floor_v,omitempty" doc:"a positive second moment does not round to 0"`
	History       *int   `toml:"history,omitempty" doc:"updates that a delayed scale looks back"`
	Margin        *int   `toml:"margin,omitempty" doc:"bits kept free by delayed scales of inputs"`
	WeightMargin  *int   `toml:"weight_margin,omitempty" doc:"the same, of weights"`
	GradMargin    *int   `toml:"grad_margin,omitempty" doc:"the same, of gradients"`
	ColdStart     *bool  `toml:"cold_start,omitempty" doc:"delayed scales start at 1, not at a calibration"`
	Smooth        string `toml:"smooth,omitempty" doc:"form: balanced linear product token token-linear"`
	SmoothExact   *bool  `toml:"smooth_exact,omitempty" doc:"factors are not rounded to powers of two"`
	SmoothFactors string `toml:"smooth_factors,omitempty" doc:"current, or delayed: of earlier updates"`
	SmoothMargin  *int   `toml:"smooth_margin,omitempty" doc:"bits by which delayed factors are larger"`

	Rows     []PrecisionRow `toml:"rows,omitempty" doc:"exceptions, first match wins"`
	Schedule []RecipeChange `toml:"schedule,omitempty" doc:"recipes that take over later"`
}

// RecipeChange lets another recipe take over when Step steps are done. What the
// config says of precision beside the recipe's own choices, exceptions and all,
// holds under every recipe. See [Config.Phases].
type RecipeChange struct {
	Step   int    `toml:"step"`
	Recipe string `toml:"recipe"`
}

// PrecisionRow gives the operands that it matches a format, a scaling, a
// granularity, a format of the scale or a rounding of their own. Rows stand
// before the recipe's own rows.
type PrecisionRow struct {
	Scope       string `toml:"scope"`                 // glob on the layer's path: "layers.0.mlp.*"
	GEMM        string `toml:"gemm,omitempty"`        // fprop, dgrad or wgrad; empty: all three
	Operand     string `toml:"operand,omitempty"`     // input, weight or grad; empty: all
	Format      string `toml:"format,omitempty"`      // a name that fp8.ParseDType knows
	Scaling     string `toml:"scaling,omitempty"`     // unit, current or delayed
	Granularity string `toml:"granularity,omitempty"` // tensor, row, 1x128, 128x128 or 1x32
	Scale       string `toml:"scale,omitempty"`       // pow2, fp32 or e8m0
	Rounding    string `toml:"rounding,omitempty"`    // nearest or stochastic
}

// Checkpoint says when checkpoints are written and which of them stay.
type Checkpoint struct {
	Every     int `toml:"every" doc:"steps; 0: only at the end"`
	KeepLast  int `toml:"keep_last"`
	KeepEvery int `toml:"keep_every" doc:"steps; these stay for good; 0: none"`

	OnError string `toml:"on_error" doc:"where one cannot be written: stop, or continue and try at the next"`
}

// RecipeChoices is what a recipe decides where the config does not.
type RecipeChoices struct {
	Activation string
	Precision  Precision // every field given, no lists
}

// FillFromRecipe completes the config with the recipe's choices. What is given
// stays.
func (c *Config) FillFromRecipe(r RecipeChoices) {
	c.eachChoice(r, func(own, recipes reflect.Value) {
		if own.IsZero() {
			own.Set(recipes)
		}
	})
}

// ForgetRecipe takes back what merely repeats the recipe's choices, so that
// another recipe can decide it. What differs from them is the user's word and
// stays.
func (c *Config) ForgetRecipe(r RecipeChoices) {
	c.eachChoice(r, func(own, recipes reflect.Value) {
		if reflect.DeepEqual(own.Interface(), recipes.Interface()) {
			own.SetZero()
		}
	})
}

// eachChoice calls f with every field that a recipe decides, and the recipe's
// value of it.
func (c *Config) eachChoice(r RecipeChoices, f func(own, recipes reflect.Value)) {
	f(reflect.ValueOf(&c.Model.Activation).Elem(), reflect.ValueOf(r.Activation))
	own, recipes := reflect.ValueOf(&c.Precision).Elem(), reflect.ValueOf(r.Precision)
	for i := range own.NumField() {
		if own.Field(i).Kind() != reflect.Slice {
			f(own.Field(i), recipes.Field(i))
		}
	}
}
