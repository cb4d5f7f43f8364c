package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"

	"octet/recipe"
	"octet/train"
)

// contract is the complete configuration as the documentation shows it.
const contract = `recipe  = "fp8-smooth"
seed    = 1

[model]
preset = "tiny"            # tiny small 124m 1b llama2-7b llama3-8b llama3-70b llama3-405b
layers = 3
dim = 128
heads = 4
kv_heads = 4
head_dim = 0               # dim / heads
ffn = 352
vocab = 256                # bytes; otherwise from the shards or the tokenizer
tied = false
activation = "smooth-swiglu"   # from the recipe unless given: swiglu, smooth-swiglu, gelu, relu
rope_theta = 10000.0       # half-split form, as in Hugging Face
norm_eps = 1e-5
init_std = 0.06            # o_proj and down_proj: times 1/sqrt(2 layers)
init_rule = "fixed"
init = ""
rope_scaling = []          # llama3: [factor, low_freq, high_freq, original]
qkv_bias = false
norm = "pre"
norm_gain = 1.0
final_norm = true
qk_norm = "none"
embed_scale = 1.0
experts           = 0
experts_per_token = 2
expert_capacity   = 1.25
router_aux_loss   = 0.01

[data]
paths = []                 # empty: the embedded default
tokenizer = ""             # of shards
seq = 256
val_bytes = 200000
packing = "stream"         # documents
loss = "all"               # answers
attention = "causal"

[train]
steps = 1800
objective = "cross-entropy"   # dpo
dpo_beta = 0.1
micro_batch = 8            # sequences
accumulate = 1
ranks = 1                  # copies of the model, each with micro_batch sequences: GPUs on cuda
zero_stage = 0             # 1: ranks share the optimizer's state in equal parts; 0: each has all
tensor_parallel = 1
eval_every = 200
health_every = 100
recompute = "none"         # none attention block
on_nonfinite = 10          # consecutive skipped steps before stopping
on_spike = "log"           # rewind, or off

[optimizer]
kind = "adamw"
lr = 2e-3
min_lr = 2e-4
warmup = 0.05
schedule = "cosine"        # cosine wsd constant
betas = [0.9, 0.95]
eps = 1e-8
eps_form = "hat"
momentum = 0.95            # of Muon
ns_steps = 5
weight_decay = 0.1         # matrices
l2 = 0.0
clip = 1.0
clip_rms = 0.0
direction_lr = false
loss_scale = 65536.0
stats = false

[precision]                # from the recipe; each key overrides it
master = "fp16"
m1 = "e4m3"
m2 = "e5m2"
rounding = "stochastic"
state_pow2 = false
state_block = 0
state_expand = false
state_flat = false
state_scope = "layers"
floor_v = true
grad_accum = "fp32"
reduce = "fp32"
reduce_granularity = "1x128"
reduce_scale = "rank"
reduce_sum = "fp32"
activations = "none"
activations_granularity = "1x16"
activations_scale = "fp32"
history = 16
margin = 0
weight_margin = 0
grad_margin = 4
l1_bits = 0
cold_start = false
smooth = "balanced"
smooth_exact = false
smooth_scaling = "current"
smooth_margin = 0

[[precision.rows]]         # exceptions, first match wins
scope = "layers.0.mlp.*"
format = "bf16"

[[precision.schedule]]     # recipes that take over later
step = 1000
recipe = "bf16"

[checkpoint]
every = 200
keep_last = 2
keep_every = 0
on_error = "stop"          # where one cannot be written; continue: try at the next
`

func writeConfig(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "run.toml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func load(t *testing.T, text string, assignments ...string) *Loaded {
	t.Helper()
	l, err := Load(Args{File: writeConfig(t, text), Assignments: assignments})
	require.NoError(t, err)
	return l
}

// The contract lists every key, in order, with the defaults.
func TestContract(t *testing.T) {
	fromFile := load(t, contract)
	defaults, err := Load(Args{Assignments: []string{
		`precision.rows=[{scope="layers.0.mlp.*", format="bf16"}]`, `precision.schedule=[{step=1000, recipe="bf16"}]`,
	}})
	require.NoError(t, err)
	require.Equal(t, defaults.Config, fromFile.Config)

	keys := func(text string) (names []string) {
		for line := range strings.Lines(text) {
			if line = strings.TrimSpace(strings.Split(line, "#")[0]); line != "" {
				names = append(names, strings.TrimSpace(strings.Split(line, "=")[0]))
			}
		}
		return names
	}
	written, err := Marshal(fromFile.Config)
	require.NoError(t, err)
	require.Equal(t, keys(contract), keys(string(written)))
	for line := range strings.Lines(string(written)) {
		require.Less(t, len(line), 100, "comments are short")
	}
}

func TestPrecedence(t *testing.T) {
	l := load(t, "[model]\npreset = \"small\"\nlayers = 5\n[data]\nseq = 128\n[optimizer]\nlr = 1", "data.seq=512", "optimizer.lr=2.5e-3")
	require.Equal(t, 384, l.Model.Dim, "the preset")
	require.Equal(t, 5, l.Model.Layers, "the file over the preset")
	require.Equal(t, 512, l.Data.Seq, "the command line over the file")
	require.Equal(t, 2.5e-3, l.Optimizer.LR)
	require.Equal(t, 1800, l.Train.Steps, "a default")
	require.Equal(t, "fp16", l.Precision.Master, "the recipe")
	require.Equal(t, []string{"data.seq", "optimizer.lr"}, l.FromCommand)

	l, err := Load(Args{Assignments: []string{"model.preset=llama3-8b", "model.layers=2"}})
	require.NoError(t, err)
	require.Equal(t, 2, l.Model.Layers)
	require.Equal(t, 8192, l.Data.Seq)
	require.Equal(t, 500000.0, l.Model.RopeTheta)
}

// A resolved file gives every key. Another preset or recipe must still have an effect, and
// must keep the user's choices.
func TestSwitch(t *testing.T) {
	first := load(t, "", "model.layers=2", "precision.history=4", "precision.m1=e5m2")
	text, err := Marshal(first.Config)
	require.NoError(t, err)

	again := load(t, string(text))
	require.Equal(t, first.Config, again.Config)

	bf16 := load(t, string(text), "recipe=bf16")
	require.Equal(t, "swiglu", bf16.Model.Activation)
	require.Equal(t, "fp32", bf16.Precision.Master)
	require.Equal(t, "fp32", bf16.Precision.M2)
	require.Equal(t, "e5m2", bf16.Precision.M1, "the user's choice")
	require.Equal(t, 4, *bf16.Precision.History, "the user's choice")

	small := load(t, string(text), "model.preset=small")
	require.Equal(t, 384, small.Model.Dim)
	require.Equal(t, 8192, small.Model.Vocab)
	require.Equal(t, 2, small.Model.Layers, "the user's choice")

	// The same recipe and preset change nothing.
	require.Equal(t, first.Config, load(t, string(text), "recipe=fp8-smooth", "model.preset=tiny").Config)
}

func TestAssignments(t *testing.T) {
	for _, test := range []struct {
		assignment string
		get        func(c train.Config) any
		want       any
	}{
		{"recipe=bf16", func(c train.Config) any { return c.Recipe }, "bf16"},
		{`recipe="bf16"`, func(c train.Config) any { return c.Recipe }, "bf16"},
		{"recipe='bf16'", func(c train.Config) any { return c.Recipe }, "bf16"},
		{"seed=-3", func(c train.Config) any { return c.Seed }, int64(-3)},
		{"data.val_bytes=1_000_000", func(c train.Config) any { return c.Data.ValBytes }, int64(1000000)},
		{"model.init=a=b", func(c train.Config) any { return c.Model.Init }, "a=b"},
		{"model.init=", func(c train.Config) any { return c.Model.Init }, ""},
		{"model.tied=true", func(c train.Config) any { return c.Model.Tied }, true},
		{"optimizer.clip=2", func(c train.Config) any { return c.Optimizer.Clip }, 2.0},
		{"optimizer.betas=[0, 0.99]", func(c train.Config) any { return c.Optimizer.Betas }, [2]float64{0, 0.99}},
		{"data.paths=a b", func(c train.Config) any { return c.Data.Paths }, []string{"a b"}},
		{`data.paths="[x]"`, func(c train.Config) any { return c.Data.Paths }, []string{"[x]"}},
		{`data.paths=["a","b,c"]`, func(c train.Config) any { return c.Data.Paths }, []string{"a", "b,c"}},
		{"data.paths=[]", func(c train.Config) any { return c.Data.Paths }, []string(nil)},
		{"train.steps=1e3", func(c train.Config) any { return c.Train.Steps }, 1000},
		{"model.layers=3.0", func(c train.Config) any { return c.Model.Layers }, 3},
		{"seed=-9007199254740992.0", func(c train.Config) any { return c.Seed }, int64(-1 << 53)},
		{"precision.margin=2", func(c train.Config) any { return *c.Precision.Margin }, 2},
	} {
		// The file gives the lists too: the command line replaces them whole.
		l := load(t, "[data]\npaths = [\"x\", \"y\", \"z\"]", test.assignment)
		require.Equal(t, test.want, test.get(l.Config), test.assignment)
	}
	l := load(t, "[[precision.rows]]\nscope=\"*.q_proj\"\ngemm=\"fprop\"\nformat=\"bf16\"", `precision.rows=[{scope="*.k_proj", format="bf16"}]`)
	require.Equal(t, []train.PrecisionRow{{Scope: "*.k_proj", Format: "bf16"}}, l.Precision.Rows)
}

func TestFlags(t *testing.T) {
	var flags Flags
	parser, err := kong.New(&flags)
	require.NoError(t, err)
	_, err = parser.Parse(strings.Fields("--recipe bf16 --model=small --data a,b --data c --steps 7 --seed=-1"))
	require.NoError(t, err)
	l, err := Load(Args{Flags: flags})
	require.NoError(t, err)
	require.Equal(t, "bf16", l.Recipe)
	require.Equal(t, 384, l.Model.Dim)
	require.Equal(t, []string{"a,b", "c"}, l.Data.Paths)
	require.Equal(t, 7, l.Train.Steps)
	require.Equal(t, int64(-1), l.Seed)

	flags = Flags{}
	_, err = parser.Parse(strings.Fields("--steps 7 --steps 8"))
	require.ErrorContains(t, err, "--steps: given twice, as 7 and as 8")
}

func TestSplitArgs(t *testing.T) {
	file, assignments, err := SplitArgs([]string{"model.layers=4", "runs/lr=3/config.toml", "data.paths=x=y"})
	require.NoError(t, err)
	require.Equal(t, "runs/lr=3/config.toml", file)
	require.Equal(t, []string{"model.layers=4", "data.paths=x=y"}, assignments)
	_, _, err = SplitArgs([]string{"a.toml", "b.toml"})
	require.ErrorContains(t, err, `"b.toml" is neither key=value nor the configuration file, which is a.toml: give one file`)
	_, _, err = SplitArgs([]string{""})
	require.Error(t, err)
	_, _, err = SplitArgs([]string{"a.toml", "model.layers", "4"})
	require.ErrorContains(t, err, "model.layers is a configuration key and needs a value: model.layers=VALUE")
}

func TestCommandErrors(t *testing.T) {
	steps := Flags{Steps: Once{"5", true}}
	for _, test := range []struct {
		args Args
		want string
	}{
		{Args{Assignments: []string{"layers=4"}}, "layers=4: unknown key layers; did you mean model.layers?"},
		{Args{Assignments: []string{"modle.layers=4"}}, "did you mean model.layers?"},
		{Args{Assignments: []string{"optimizer.beta=4"}}, "did you mean optimizer.betas?"},
		{Args{Assignments: []string{"Recipe=bf16"}}, "unknown key Recipe; did you mean recipe?"},
		{Args{Assignments: []string{"out=x"}}, "use --out"},
		{Args{Assignments: []string{"dry_run=1"}}, "use --dry-run"},
		{Args{Assignments: []string{"model=tiny"}}, "model is a section; give one of its keys, such as model.preset"},
		{Args{Assignments: []string{"train"}}, `"train" is not of the form key=value`},
		{Args{Assignments: []string{"model.layers=x"}}, `model.layers must be a whole number, not "x"`},
		{Args{Assignments: []string{"model.layers=3.5"}}, "model.layers must be a whole number, not 3.5"},
		{Args{Assignments: []string{"model.layers=1e16"}}, "model.layers must be a whole number, not 1e+16"},
		{Args{Assignments: []string{"model.layers=-inf"}}, "model.layers must be a whole number, not -Inf"},
		{Args{Assignments: []string{"model.layers=nan"}}, "model.layers must be a whole number, not NaN"},
		{Args{Assignments: []string{"model.layers=99999999999999999999"}}, "model.layers must be a whole number"},
		{Args{Assignments: []string{"model.layers=3\nmodel.dim=16"}}, "model.layers must be a whole number"},
		{Args{Assignments: []string{"model.tied=1"}}, "model.tied must be true or false, not 1"},
		{Args{Assignments: []string{"optimizer.lr=.5"}}, `optimizer.lr must be a number, not ".5"`},
		{Args{Assignments: []string{"optimizer.betas=[0.9]"}}, "optimizer.betas must be a list of 2 numbers, not [0.9]"},
		{Args{Assignments: []string{`optimizer.betas=[0.9, "x"]`}}, `entry 2 must be a number, not "x"`},
		{Args{Assignments: []string{"data.paths=[1]"}}, "entry 1 must be a string in quotes, not 1"},
		{Args{Assignments: []string{"data.paths=[a"}}, `data.paths must be a list, not "[a"`},
		{Args{Assignments: []string{"data.paths=\xff"}}, "is not UTF-8"},
		{Args{Assignments: []string{"precision.rows=[{scop=1}]"}}, "did you mean precision.rows.scope?"},
		{Args{Assignments: []string{"precision.rows=[1]"}}, "a table, not 1"},
		{Args{Assignments: []string{"precision.rows=1"}}, "a list of tables"},
		{Args{Assignments: []string{"precision.rows.scope=a"}}, "give the whole list"},
		{Args{Assignments: []string{"precision.schedule=[{steps=1}]"}}, "did you mean precision.schedule.step?"},
		{Args{Assignments: []string{"precision.schedule.step=1"}}, "such as precision.schedule=[{step=…}]"},
		{Args{Assignments: []string{`precision.schedule=[{step="1"}]`}}, `its step must be a whole number, not "1"`},
		{Args{Assignments: []string{"seed=1", "seed=2"}}, "seed is given twice, by seed=1 and by seed=2"},
		{Args{Assignments: []string{"train.steps=4"}, Flags: steps}, "train.steps is given twice, by train.steps=4 and by --steps 5"},
		{Args{Assignments: []string{"data.paths=x"}, Flags: Flags{Data: []string{"y"}}}, "by data.paths=x and by --data y"},
		{Args{Assignments: []string{"model.preset=3b"}}, "tiny, small, 124m"},
		{Args{Assignments: []string{"recipe=fp8"}}, `unknown recipe "fp8"`},
		{Args{Assignments: []string{"model.heads=5"}}, "use model.heads = 4"},
	} {
		_, err := Load(test.args)
		require.ErrorContains(t, err, test.want)
	}
}

func TestFileErrors(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"[model]\n\nlayer = 3", "run.toml:3: unknown key model.layer; did you mean model.layers?"},
		{"seed = 1\nout = \"x\"", "run.toml:2: out is a flag"},
		{"[modle]\nlayers = 3", "run.toml:1: unknown key modle; did you mean model?"},
		{"model = 3", "run.toml:1: model is a section; write [model]"},
		{"[[model]]\nlayers = 3", "run.toml:1: model is a section"},
		{"Seed = 3", "unknown key Seed; did you mean seed?"},
		{`"model.layers" = 3`, `unknown key "model.layers"; did you mean model.layers?`},
		{"[model]\nlayers = \"3\"", `run.toml:2: model.layers must be a whole number, not "3"`},
		{"[model]\npreset = 3", "run.toml:2: model.preset must be a string in quotes, not 3"},
		{"[model]\npreset = \"3\"", `run.toml:2: model.preset = "3": there is no such preset`},
		{"[[precision.rows]]\nscope = \"a\"\nformat = \"bf16\"\n[[precision.rows]]\nscop = \"b\"", "run.toml:5: unknown key precision.rows.scop; did you mean precision.rows.scope?"},
		{"[precision.rows]\nscope = \"a\"", "precision.rows must be a list of tables; in a file each table begins with [[precision.rows]]"},
		{"[[precision.schedule]]\nscope = \"a\"", "run.toml:2: unknown key precision.schedule.scope; the keys of its tables are step, recipe"},
		{"seed = 1\n[train]\nsteps = 3\nsteps = 4", "train.steps is given twice, on line 3 and on line 4"},
		{"[model]\nlayers = 3\n\n[model]\ndim = 16", "[model] is given twice, on line 1 and on line 4"},
		{"model.layers = 3\n[model]\nlayers = 4", "run.toml"},
		{"seed = ", "run.toml:1: "},
		{"seed = \"\xff\"", "run.toml:1: "},
		{"seed = 99999999999999999999", "run.toml:1: "},
		{strings.Repeat("#", maxFile+1), "is larger than 256 KiB"},
	} {
		_, err := Load(Args{File: writeConfig(t, test.text)})
		require.ErrorContains(t, err, test.want, test.text[:min(len(test.text), 99)])
		require.NotContains(t, err.Error(), "\n")
	}
	dir := t.TempDir()
	_, err := Load(Args{File: dir})
	require.ErrorContains(t, err, "is a folder; name a configuration file, such as "+filepath.Join(dir, "config.toml"))
	_, err = Load(Args{File: filepath.Join(dir, "none.toml")})
	require.ErrorContains(t, err, "the configuration file cannot be read: open "+filepath.Join(dir, "none.toml"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

// Each recipe and preset survives a round trip through a file.
func TestRoundTripOfRecipesAndPresets(t *testing.T) {
	survives := func(assignment string) {
		first := load(t, "", assignment)
		text, err := Marshal(first.Config)
		require.NoError(t, err)
		require.Equal(t, first.Config, load(t, string(text)).Config, assignment)
		require.NotContains(t, string(text), "resume")
		require.NotContains(t, string(text), "out =")
	}
	for _, r := range recipe.Names() {
		survives("recipe=" + r)
	}
	for _, p := range train.PresetNames() {
		survives("model.preset=" + p)
	}
}

func TestFormerNamesOfKeys(t *testing.T) {
	for former, present := range formerNames {
		_, known := findKey(present)
		require.True(t, known, present)
		require.NotEqual(t, former, present)
	}
	const file = "recipe = \"fp8-smooth\"\n[precision]\nsmooth_factors = \"delayed\"\n"
	c := load(t, file).Config
	require.Equal(t, "delayed", c.Precision.SmoothScaling)
	require.Equal(t, c, load(t, "", "recipe=fp8-smooth", "precision.smooth_factors=delayed").Config)
	text, err := Marshal(c)
	require.NoError(t, err)
	require.Contains(t, string(text), "smooth_scaling = \"delayed\"")
	require.NotContains(t, string(text), "smooth_factors")

	_, err = parse("my.toml", file+"smooth_scaling = \"current\"\n")
	require.EqualError(t, err, "my.toml:4: precision.smooth_scaling and its former name are both given; keep precision.smooth_scaling")

	values, err := Values(c)
	require.NoError(t, err)
	values["precision.smooth_factors"] = values["precision.smooth_scaling"]
	delete(values, "precision.smooth_scaling")
	changes, err := Changes(values, c)
	require.NoError(t, err)
	require.Empty(t, changes)
	c.Precision.SmoothScaling = "current"
	changes, err = Changes(values, c)
	require.NoError(t, err)
	require.Equal(t, []string{`precision.smooth_scaling "delayed" -> "current"`}, changes)
}

// With Dir, the relative paths of the file and of the command line begin there.
func TestDir(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "base.toml")
	require.NoError(t, os.WriteFile(file, []byte("[data]\npaths = [\"a.txt\"]\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "in-dir.toml"), []byte("recipe = \"bf16\"\n[precision]\nhistory = 3\n"), 0o600))
	c, err := New(Args{File: file, Dir: dir, Assignments: []string{"recipe=in-dir.toml", "model.init=weights"}})
	require.NoError(t, err)
	require.Equal(t, "in-dir", c.Recipe)
	require.Equal(t, []string{filepath.Join(dir, "a.txt")}, c.Data.Paths)
	require.Equal(t, filepath.Join(dir, "weights"), c.Model.Init)
	c, err = New(Args{Dir: dir, Flags: Flags{Data: []string{"b", file}}})
	require.NoError(t, err)
	require.Equal(t, []string{filepath.Join(dir, "b"), file}, c.Data.Paths)
	_, err = New(Args{Assignments: []string{"recipe=in-dir.toml"}})
	require.ErrorContains(t, err, "in-dir.toml")
}
