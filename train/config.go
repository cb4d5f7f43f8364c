package train

import (
	"reflect"

	"octet/data"
	"octet/nn"
)

// Config defines what a run computes. Backend, threads and output folder are not
// part of it. The same Config on the same backend, device model and arithmetic
// (backend.Spec) trains bit-identical weights.
//
// The toml tags are the keys of a configuration file, in the order of a run's
// config.toml; the doc tags are the comments beside them. This package reads no
// files: a Go program fills in the struct, starting from [Default] or [Preset].
//
// Model.Activation and the fields of Precision default to the recipe's choice:
// the empty string and nil mean "not given". See [Config.FillFromRecipe].
type Config struct {
	Recipe string `toml:"recipe"`
	Seed   int64  `toml:"seed"`

	Model      Model      `toml:"model"`
	Data       Data       `toml:"data"`
	Train      Loop       `toml:"train"`
	Optimizer  Optimizer  `toml:"optimizer"`
	Precision  Precision  `toml:"precision" doc:"defaults from the recipe; each key overrides it"`
	Checkpoint Checkpoint `toml:"checkpoint"`

	// Network, if set, declares another model than the decoder that Model describes: its
	// layers on b, without b.Build. It may read c.Model for its sizes. It is called for each
	// recipe of the schedule, and once more with the recipe fp32, and must declare the same
	// layers each time.
	Network func(b *nn.Base, c Config) (Network, error) `toml:"-"`
}

// Model is the shape of a Llama-style decoder. Widths are numbers of elements.
type Model struct {
	Preset     string  `toml:"preset" doc:"tiny small 124m 1b llama2-7b llama3-8b llama3-70b llama3-405b"`
	Layers     int     `toml:"layers"`
	Dim        int     `toml:"dim"`
	Heads      int     `toml:"heads"`
	KVHeads    int     `toml:"kv_heads"`
	HeadDim    int     `toml:"head_dim" doc:"width of a head; 0: dim / heads"`
	FFN        int     `toml:"ffn"`
	Vocab      int     `toml:"vocab" doc:"256 for bytes, else the tokenizer's or shards' vocabulary"`
	Tied       bool    `toml:"tied" doc:"the head shares the embedding matrix"`
	Activation string  `toml:"activation,omitempty" doc:"default from the recipe: ACTIVATIONS"`
	RopeTheta  float64 `toml:"rope_theta" doc:"half-split form, as in Hugging Face"`
	NormEps    float64 `toml:"norm_eps"`
	InitStd    float64 `toml:"init_std" doc:"standard deviation; o_proj and down_proj: times 1/sqrt(2 layers)"`
	InitRule   string  `toml:"init_rule" doc:"fixed: init_std; fan-in: linear layers 1/sqrt(inputs)"`
	Init       string  `toml:"init" doc:"initial weights: a Hugging Face folder or a checkpoint"`

	RopeScaling []float64 `toml:"rope_scaling" doc:"llama3: [factor, low_freq, high_freq, original]; linear: [factor]"`
	QKVBias     bool      `toml:"qkv_bias" doc:"q_proj, k_proj and v_proj have a bias, as in Qwen2"`

	Norm       string   `toml:"norm" doc:"pre: before attention and MLP; post: their results; both"`
	NormGain   float64  `toml:"norm_gain" doc:"initial gain of the norms of results"`
	FinalNorm  bool     `toml:"final_norm" doc:"a norm before the head"`
	QKNorm     string   `toml:"qk_norm" doc:"norm of each head of queries and keys: none learned frozen"`
	LayerScale *float64 `toml:"layer_scale,omitempty" doc:"vectors that multiply results start with this value"`
	EmbedScale float64  `toml:"embed_scale" doc:"multiplies the rows of the embedding"`

	Experts         int     `toml:"experts" doc:"experts in place of each MLP, each of this ffn; 0: one MLP"`
	ExpertsPerToken int     `toml:"experts_per_token" doc:"experts of a token"`
	ExpertCapacity  float64 `toml:"expert_capacity" doc:"rows of an expert over its even share; tokens beyond are dropped"`
	RouterAuxLoss   float64 `toml:"router_aux_loss" doc:"coefficient of the loss that balances experts"`
}

// Data selects the training text and how it is split into sequences.
type Data struct {
	Paths     []string `toml:"paths" doc:"files or folders; empty: the source of the Go installation"`
	Tokenizer string   `toml:"tokenizer" doc:"file or folder, of shards that have none"`
	Seq       int      `toml:"seq" doc:"tokens in a sequence"`
	ValBytes  int64    `toml:"val_bytes" doc:"maximum size of the validation split"`
	Packing   string   `toml:"packing" doc:"rows are windows of the stream: stream; or whole documents: documents"`
	Loss      string   `toml:"loss" doc:"targets that count: all, or answers, which are outside prompts"`
	Attention string   `toml:"attention" doc:"causal; document: a token attends to its own document only"`

	Sources []DataSource `toml:"sources,omitempty" doc:"in place of paths: sources with weights"`
}

// DataSources returns the sources as package data opens them.
func (d Data) DataSources() (list []data.Source) {
	for _, s := range d.Sources {
		list = append(list, data.Source{Path: s.Path, Weight: s.Weight})
	}
	return list
}

// The values of Data.Packing, Data.Loss and Data.Attention.
const (
	PackStream    = "stream"
	PackDocuments = "documents"
	LossAll       = "all"
	LossAnswers   = "answers"

	AttendCausal   = "causal"
	AttendDocument = "document"
)

// DataSource is a part of the training data. Each row comes from one source, drawn at random with
// their weights.
type DataSource struct {
	Path   string  `toml:"path"`   // as in Data.Paths
	Weight float64 `toml:"weight"` // share of the rows, relative to those of the other sources
}

// Loop configures the training loop: batch sizes, ranks and intervals.
type Loop struct {
	Steps       int     `toml:"steps"`
	Objective   string  `toml:"objective" doc:"cross-entropy; dpo: preference pairs against the initial weights"`
	DPOBeta     float64 `toml:"dpo_beta" doc:"strength of dpo's pull towards the initial weights, β"`
	MicroBatch  int     `toml:"micro_batch" doc:"sequences per rank"`
	Accumulate  int     `toml:"accumulate" doc:"micro-batches per step"`
	Ranks       int     `toml:"ranks" doc:"devices, one GPU each on cuda"`
	ZeroStage   int     `toml:"zero_stage" doc:"ZeRO: ranks share 1: optimizer, 2: gradients, 3: weights, too"`
	Tensor      int     `toml:"tensor_parallel" doc:"ranks that share each layer and read the same batches"`
	EvalEvery   int     `toml:"eval_every" doc:"interval in steps; 0: only at the end"`
	HealthEvery int     `toml:"health_every" doc:"interval in steps of telemetry (casts, SwiGLU channels); 0: never"`
	Recompute   string  `toml:"recompute" doc:"activation recomputation: none attention block"`
	OnNonfinite int     `toml:"on_nonfinite" doc:"consecutive skipped steps before the run stops; 0: never"`
	OnSpike     string  `toml:"on_spike" doc:"loss spike: log, rewind to the checkpoint before it, or off"`
}

// Optimizer is AdamW or Muon and the learning-rate schedule, [Optimizer.LRAt].
type Optimizer struct {
	Kind        string     `toml:"kind" doc:"adamw; muon: for the weights of linear layers, AdamW for others"`
	LR          float64    `toml:"lr"`
	MinLR       float64    `toml:"min_lr" doc:"learning rate at the end of the schedule"`
	Warmup      float64    `toml:"warmup" doc:"fraction of the steps"`
	Schedule    string     `toml:"schedule" doc:"cosine wsd constant"`
	Betas       [2]float64 `toml:"betas"`
	Eps         float64    `toml:"eps"`
	EpsForm     string     `toml:"eps_form" doc:"hat: eps is added to sqrt(v); corrected: as in PyTorch"`
	Momentum    float64    `toml:"momentum" doc:"of Muon"`
	NSSteps     int        `toml:"ns_steps" doc:"Newton-Schulz steps of Muon"`
	WeightDecay float64    `toml:"weight_decay" doc:"applied to matrices only"`
	L2          float64    `toml:"l2" doc:"coupled weight decay: times the weight, added to the gradient"`
	Clip        float64    `toml:"clip" doc:"maximum gradient norm; 0: no clipping"`
	ClipRMS     float64    `toml:"clip_rms" doc:"StableAdamW: larger RMS of g/√v lowers a tensor's lr; 0: off"`
	DirectionLR bool       `toml:"direction_lr" doc:"Unified INT8: lower lr for gradients whose direction a cast changes"`
	LossScale   float64    `toml:"loss_scale" doc:"of the first step, a power of two; recipes with FP16 activations only"`
	Stats       bool       `toml:"stats" doc:"records each update's RMS, largest element and underflowed v"`
}

// Precision overrides fields of the recipe. A field that is not given (empty or
// nil) comes from the recipe.
type Precision struct {
	Master                 string `toml:"master,omitempty"`
	M1                     string `toml:"m1,omitempty"`
	M2                     string `toml:"m2,omitempty"`
	Rounding               string `toml:"rounding,omitempty" doc:"of the optimizer state: nearest stochastic"`
	StatePow2              *bool  `toml:"state_pow2,omitempty" doc:"scales of the optimizer state are powers of two"`
	StateBlock             *int   `toml:"state_block,omitempty" doc:"elements of a row per scale of m1 and m2: 128 256 2048; 0: one scale"`
	StateExpand            *bool  `toml:"state_expand,omitempty" doc:"these blocks in FP8 are expanded to its range, as in COAT"`
	StateFlat              *bool  `toml:"state_flat,omitempty" doc:"these blocks continue over the ends of rows, as in torchao"`
	StateScope             string `toml:"state_scope,omitempty" doc:"matrices with these m1 and m2: layers, also head or embedding, all"`
	FloorV                 *bool  `toml:"floor_v,omitempty" doc:"positive second moments do not underflow to 0"`
	GradAccum              string `toml:"grad_accum,omitempty" doc:"weight gradients between micro-batches: fp32 bf16 e4m3"`
	Reduce                 string `toml:"reduce,omitempty" doc:"gradients between ranks with zero_stage 1: fp32 bf16 e4m3 e5m2"`
	ReduceGranularity      string `toml:"reduce_granularity,omitempty" doc:"of their scales: tensor row 1x128"`
	ReduceScale            string `toml:"reduce_scale,omitempty" doc:"each rank's own: rank; one of all ranks: auto rms pre post"`
	ReduceSum              string `toml:"reduce_sum,omitempty" doc:"their sum: fp32, or in their format, rounded once or each"`
	Activations            string `toml:"activations,omitempty" doc:"stored inputs of norms and MLP activation: none, or e4m3 as in COAT"`
	ActivationsGranularity string `toml:"activations_granularity,omitempty" doc:"of their scales: 1x16 row tensor"`
	ActivationsScale       string `toml:"activations_scale,omitempty" doc:"format of these scales: fp32 pow2 e8m0"`
	History                *int   `toml:"history,omitempty" doc:"amax history window of delayed scales, in updates"`
	Margin                 *int   `toml:"margin,omitempty" doc:"binades that delayed scales of inputs keep free"`
	WeightMargin           *int   `toml:"weight_margin,omitempty" doc:"the same for weights"`
	GradMargin             *int   `toml:"grad_margin,omitempty" doc:"the same for gradients"`
	L1Bits                 *int   `toml:"l1_bits,omitempty" doc:"accumulator bits that integer weights fit, as in A2Q; 0: any"`
	ColdStart              *bool  `toml:"cold_start,omitempty" doc:"delayed scales start at 1, without a calibration"`
	Smooth                 string `toml:"smooth,omitempty" doc:"Smooth-SwiGLU form: none balanced linear product token token-linear"`
	SmoothExact            *bool  `toml:"smooth_exact,omitempty" doc:"smoothing scales are not rounded to powers of two"`
	SmoothScaling          string `toml:"smooth_scaling,omitempty" doc:"smoothing scales: current, or delayed (from earlier updates)"`
	SmoothMargin           *int   `toml:"smooth_margin,omitempty" doc:"binades by which delayed smoothing scales are larger"`

	Rows     []PrecisionRow `toml:"rows,omitempty" doc:"exceptions by layer, GEMM and operand; the first match wins"`
	Schedule []RecipeChange `toml:"schedule,omitempty" doc:"changes of recipe during the run"`
}

// RecipeChange switches to another recipe after Step completed steps. Precision
// settings that differ from the first recipe's choices, rows included, apply under
// every recipe. See [Config.Phases].
type RecipeChange struct {
	Step   int    `toml:"step"`
	Recipe string `toml:"recipe"`
}

// PrecisionRow sets any of format, scaling, granularity, scale format, rounding, rotation,
// history and margin of the operands that it matches. These rows precede the recipe's rows.
type PrecisionRow struct {
	Scope       string `toml:"scope"`                 // glob on the layer's path: "layers.0.mlp.*", "layers[-2:].*"
	GEMM        string `toml:"gemm,omitempty"`        // fprop, dgrad or wgrad; empty: all three
	Operand     string `toml:"operand,omitempty"`     // input, weight or grad; empty: all
	Format      string `toml:"format,omitempty"`      // a name that fp8.ParseDType accepts
	Scaling     string `toml:"scaling,omitempty"`     // unit, current, delayed, direction or constant
	Granularity string `toml:"granularity,omitempty"` // tensor, row, or a block across and along K, such as 1x128
	Scale       string `toml:"scale,omitempty"`       // pow2, fp32, e8m0, e8m0:floor, or a format such as e4m3, with +fp32 for a scale of the tensor
	Rounding    string `toml:"rounding,omitempty"`    // nearest or stochastic
	Hadamard    int    `toml:"hadamard,omitempty"`    // elements of a group that is rotated along K: 4 to 128; 1: none
	Signs       string `toml:"signs,omitempty"`       // of the rotation: te or seed; empty: none
	History     *int   `toml:"history,omitempty"`     // amax history window of delayed scales, in updates
	Margin      *int   `toml:"margin,omitempty"`      // binades that delayed scales keep free
}

// Checkpoint configures when checkpoints are written and which are kept.
type Checkpoint struct {
	Every     int `toml:"every" doc:"interval in steps; 0: only at the end"`
	KeepLast  int `toml:"keep_last" doc:"number of latest checkpoints to keep"`
	KeepEvery int `toml:"keep_every" doc:"interval in steps of checkpoints that are never deleted; 0: none"`

	OnError string `toml:"on_error" doc:"if a write fails: stop, or continue and retry at the next checkpoint"`
}

// RecipeChoices holds a recipe's values for the fields that the config may leave out.
type RecipeChoices struct {
	Activation string
	Precision  Precision // every field given, no lists
}

// FillFromRecipe sets the fields that are not given to the recipe's choices.
func (c *Config) FillFromRecipe(r RecipeChoices) {
	c.eachChoice(r, func(own, recipes reflect.Value) {
		if own.IsZero() {
			own.Set(recipes)
		}
	})
}

// ForgetRecipe unsets the fields that equal the recipe's choices, so that another
// recipe can decide them. Fields that differ were given by the user and stay.
func (c *Config) ForgetRecipe(r RecipeChoices) {
	c.eachChoice(r, func(own, recipes reflect.Value) {
		if reflect.DeepEqual(own.Interface(), recipes.Interface()) {
			own.SetZero()
		}
	})
}

// eachChoice calls f with every field that a recipe may decide and the recipe's
// value.
func (c *Config) eachChoice(r RecipeChoices, f func(own, recipes reflect.Value)) {
	f(reflect.ValueOf(&c.Model.Activation).Elem(), reflect.ValueOf(r.Activation))
	own, recipes := reflect.ValueOf(&c.Precision).Elem(), reflect.ValueOf(r.Precision)
	for i := range own.NumField() {
		if own.Field(i).Kind() != reflect.Slice {
			f(own.Field(i), recipes.Field(i))
		}
	}
}
