package run

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/data"
	"octet/internal/config"
	"octet/internal/disk"
	"octet/tokenizer"
	"octet/train"
)

// programs returns the hashes of all programs of all recipes of a config.
func programs(t *testing.T, c train.Config) (list []string) {
	phases, err := c.Phases()
	require.NoError(t, err)
	spec, err := backend.SpecOf("emu")
	require.NoError(t, err)
	for _, phase := range phases {
		j, err := train.NewJob(phase.Config, spec)
		require.NoError(t, err)
		for _, p := range j.Programs() {
			list = append(list, p.Name()+" "+p.Hash())
		}
	}
	return list
}

// rates returns the learning rates of all steps.
func rates(_ *testing.T, c train.Config) (list []string) {
	for step := range c.Train.Steps {
		list = append(list, fmt.Sprint(c.Optimizer.LRAt(step, c.Train.Steps)))
	}
	return list
}

// metrics returns the metrics lines of a run, and its error.
func metrics(t *testing.T, c train.Config) []string {
	dir := filepath.Join(t.TempDir(), "run")
	err := tryTrain(t.Context(), c, dir, func(Progress) {})
	text, readErr := os.ReadFile(filepath.Join(dir, metricsFile))
	require.NoError(t, readErr, "%v", err)
	end, _, _ := strings.Cut(fmt.Sprint(err), ";") // the rest names the folder
	return append(strings.Split(string(text), "\n"), end)
}

// refusal returns the error of a run that does not start.
func refusal(t *testing.T, c train.Config) []string {
	return []string{fmt.Sprint(tryTrain(t.Context(), c, filepath.Join(t.TempDir(), "run"), func(Progress) {}))}
}

// preparedFolder returns a folder of tokens, with prompts: the first half of each document.
func preparedFolder(t *testing.T, kind string) string {
	dir := t.TempDir()
	tok := tokenizer.OfBytes()
	for _, f := range tok.Files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, f.Name), f.Data, 0o600))
	}
	p := data.Prepared{Kind: kind, Tokenizer: data.PreparedTokenizer{SHA256: tok.SHA256(), Vocab: 256}}
	for _, part := range []string{data.TrainPart, data.ValPart} {
		var ids []uint16
		var index, mask []byte
		docs := int64(0)
		for line := range bytes.SplitAfterSeq(text(9_000), []byte("return ")) {
			for i, b := range append(line, 0) {
				if len(ids)%8 == 0 {
					mask = append(mask, 0)
				}
				if i > len(line)/2 {
					mask[len(ids)/8] |= 1 << (len(ids) % 8)
				}
				ids = append(ids, uint16(b))
			}
			index = binary.LittleEndian.AppendUint64(index, uint64(len(ids)))
			docs++
		}
		docs -= docs % 2 // two are a pair
		index = index[:8*docs]
		var shard bytes.Buffer
		require.NoError(t, data.WriteShard(&shard, ids))
		name := data.ShardName(part, 0)
		for suffix, raw := range map[string][]byte{".bin": shard.Bytes(), ".idx": index, ".mask": mask} {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name+suffix), raw, 0o600))
		}
		p.Shards = append(p.Shards, data.PreparedShard{Name: name, Tokens: int64(len(ids)), Documents: docs, Bytes: int64(len(ids)) - docs})
	}
	require.NoError(t, data.WritePrepared(dir, p))
	return dir
}

// kept returns the names of the checkpoints that a run keeps.
func kept(t *testing.T, c train.Config) (names []string) {
	dir := filepath.Join(t.TempDir(), "run")
	trainIn(t, c, dir, func(Progress) {})
	list, err := os.ReadDir(filepath.Join(dir, checkpointsDir))
	require.NoError(t, err)
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// logged returns the messages of run.log, without their attributes.
func logged(t *testing.T, c train.Config) (messages []string) {
	dir := filepath.Join(t.TempDir(), "run")
	trainIn(t, c, dir, func(Progress) {})
	text, err := os.ReadFile(filepath.Join(dir, logFile))
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		_, message, _ := strings.Cut(line, `"msg":"`)
		message, _, _ = strings.Cut(message, `"`)
		messages = append(messages, message)
	}
	return messages
}

// presets returns some sizes of a config's preset.
func presets(t *testing.T, c train.Config) []string {
	l, err := config.Load(config.Args{Assignments: []string{"model.preset=" + c.Model.Preset}})
	require.NoError(t, err)
	return []string{fmt.Sprint(l.Model.Layers, l.Model.Dim, l.Data.Seq)}
}

// effect shows that a key has an effect: the result of see differs between two configs that
// differ only in that key.
type effect struct {
	see    func(*testing.T, train.Config) []string
	edit   func(*train.Config)
	base   func(*train.Config) // changes of tinyConfig that both configs have
	spikes map[uint64]bool     // steps with a spike of the loss
}

func under(recipe string) func(*train.Config) {
	return func(c *train.Config) { c.Recipe = recipe }
}

// effects returns an effect for every key.
func effects(weights, otherText, prepared, preferences string) map[string]effect {
	delayed, smooth := under("fp8-delayed"), under("fp8-smooth")
	lateFactors := func(c *train.Config) {
		c.Recipe, c.Precision.SmoothScaling = "fp8-smooth", "delayed"
	}
	blocks := func(c *train.Config) {
		smooth(c)
		c.Precision.StateBlock = new(128)
	}
	sharing := func(c *train.Config) { c.Train.Ranks, c.Train.ZeroStage = 2, 1 }
	sharedScale := func(c *train.Config) {
		sharing(c)
		c.Recipe = "fp8-lm"
	}
	diverging := func(c *train.Config) {
		c.Optimizer.LR, c.Optimizer.Schedule, c.Optimizer.Warmup, c.Optimizer.Clip = 1e38, "constant", 0, 0
	}
	experts := func(c *train.Config) { c.Model.Experts = 4 }
	muon := func(c *train.Config) { c.Optimizer.Kind = "muon" }
	onFolder := func(c *train.Config) { c.Data.Paths = []string{prepared} }
	saving := func(c *train.Config) { c.Checkpoint.Every = 1 }
	return map[string]effect{
		"recipe": {see: programs, edit: delayed},
		"seed":   {see: metrics, edit: func(c *train.Config) { c.Seed = 2 }},

		"model.preset":       {see: presets, edit: func(c *train.Config) { c.Model.Preset = "small" }},
		"model.layers":       {see: programs, edit: func(c *train.Config) { c.Model.Layers = 2 }},
		"model.dim":          {see: programs, edit: func(c *train.Config) { c.Model.Dim = 64 }},
		"model.heads":        {see: programs, edit: func(c *train.Config) { c.Model.Heads = 1 }},
		"model.kv_heads":     {see: programs, edit: func(c *train.Config) { c.Model.KVHeads = 2 }},
		"model.head_dim":     {see: programs, edit: func(c *train.Config) { c.Model.HeadDim = 32 }},
		"model.ffn":          {see: programs, edit: func(c *train.Config) { c.Model.FFN = 64 }},
		"model.vocab":        {see: programs, edit: func(c *train.Config) { c.Model.Vocab = 300 }},
		"model.tied":         {see: programs, edit: func(c *train.Config) { c.Model.Tied = true }},
		"model.activation":   {see: programs, edit: func(c *train.Config) { c.Model.Activation = "gelu" }},
		"model.rope_theta":   {see: programs, edit: func(c *train.Config) { c.Model.RopeTheta = 5e5 }},
		"model.rope_scaling": {see: programs, edit: func(c *train.Config) { c.Model.RopeScaling = []float64{8, 1, 4, 16} }},
		"model.qkv_bias":     {see: programs, edit: func(c *train.Config) { c.Model.QKVBias = true }},
		"model.norm_eps":     {see: programs, edit: func(c *train.Config) { c.Model.NormEps = 1e-6 }},
		"model.init_std":     {see: metrics, edit: func(c *train.Config) { c.Model.InitStd = 0.02 }},
		"model.init_rule":    {see: metrics, edit: func(c *train.Config) { c.Model.InitRule = "fan-in" }},
		"model.norm":         {see: programs, edit: func(c *train.Config) { c.Model.Norm = "post" }},
		"model.norm_gain": {
			see: metrics, edit: func(c *train.Config) { c.Model.NormGain = 0.5 },
			base: func(c *train.Config) { c.Model.Norm = "both" },
		},
		"model.final_norm":  {see: programs, edit: func(c *train.Config) { c.Model.FinalNorm = false }},
		"model.qk_norm":     {see: programs, edit: func(c *train.Config) { c.Model.QKNorm = "frozen" }},
		"model.layer_scale": {see: programs, edit: func(c *train.Config) { c.Model.LayerScale = new(0.0) }},
		"model.embed_scale": {see: programs, edit: func(c *train.Config) { c.Model.EmbedScale = 2 }},
		"model.experts":     {see: programs, edit: experts},
		"model.experts_per_token": {
			see: programs, edit: func(c *train.Config) { c.Model.ExpertsPerToken = 1 }, base: experts,
		},
		"model.expert_capacity": {
			see: programs, edit: func(c *train.Config) { c.Model.ExpertCapacity = 0.5 }, base: experts,
		},
		"model.router_aux_loss": {
			see: programs, edit: func(c *train.Config) { c.Model.RouterAuxLoss = 0.1 }, base: experts,
		},
		"model.init": {see: metrics, edit: func(c *train.Config) { c.Model.Init = weights }},

		"data.paths":     {see: metrics, edit: func(c *train.Config) { c.Data.Paths = []string{otherText} }},
		"data.seq":       {see: programs, edit: func(c *train.Config) { c.Data.Seq = 64 }},
		"data.attention": {see: programs, edit: func(c *train.Config) { c.Data.Attention = "document" }},
		"data.val_bytes": {see: metrics, edit: func(c *train.Config) { c.Data.ValBytes = 900 }},
		"data.tokenizer": {
			see: refusal, edit: func(c *train.Config) { c.Data.Tokenizer = weights }, // text has bytes as tokens
		},
		"data.packing": {see: metrics, edit: func(c *train.Config) { c.Data.Packing = "documents" }, base: onFolder},
		"data.loss":    {see: metrics, edit: func(c *train.Config) { c.Data.Loss = "answers" }, base: onFolder},
		"data.sources": {see: metrics, edit: func(c *train.Config) {
			c.Data.Sources = []train.DataSource{{Path: prepared, Weight: 1}, {Path: otherText, Weight: 1}}
		}, base: func(c *train.Config) {
			c.Data.Paths, c.Data.Sources = nil, []train.DataSource{{Path: prepared, Weight: 1}}
		}},

		"train.steps":     {see: metrics, edit: func(c *train.Config) { c.Train.Steps = 3 }},
		"train.objective": {see: programs, edit: func(c *train.Config) { c.Train.Objective = "dpo" }},
		"train.dpo_beta": {see: metrics, edit: func(c *train.Config) { c.Train.DPOBeta = 0.5 }, base: func(c *train.Config) {
			c.Train.Objective, c.Data.Paths = "dpo", []string{preferences}
		}},
		"train.micro_batch": {see: programs, edit: func(c *train.Config) { c.Train.MicroBatch = 4 }},
		"train.accumulate":  {see: programs, edit: func(c *train.Config) { c.Train.Accumulate = 2 }},
		"train.ranks":       {see: programs, edit: func(c *train.Config) { c.Train.Ranks = 2 }},
		"train.zero_stage": {
			see: programs, edit: func(c *train.Config) { c.Train.ZeroStage = 1 },
			base: func(c *train.Config) { c.Train.Ranks = 2 },
		},
		"train.tensor_parallel": {
			see: programs, edit: func(c *train.Config) { c.Train.Tensor = 2 },
			base: func(c *train.Config) { c.Train.Ranks, c.Model.KVHeads, c.Model.FFN = 2, c.Model.Heads, 64 },
		},
		"train.eval_every":   {see: metrics, edit: func(c *train.Config) { c.Train.EvalEvery = 1 }},
		"train.health_every": {see: metrics, edit: func(c *train.Config) { c.Train.HealthEvery = 2 }, base: delayed},
		"train.recompute":    {see: programs, edit: func(c *train.Config) { c.Train.Recompute = "block" }},
		"train.on_nonfinite": {see: metrics, edit: func(c *train.Config) { c.Train.OnNonfinite = 2 }, base: diverging},
		"train.on_spike": {
			see: logged, edit: func(c *train.Config) { c.Train.OnSpike = "off" },
			base: func(c *train.Config) { c.Train.Steps = 72 }, spikes: map[uint64]bool{70: true, 71: true},
		},

		"optimizer.kind":     {see: programs, edit: muon},
		"optimizer.momentum": {see: programs, edit: func(c *train.Config) { c.Optimizer.Momentum = 0.9 }, base: muon},
		"optimizer.ns_steps": {see: programs, edit: func(c *train.Config) { c.Optimizer.NSSteps = 4 }, base: muon},
		"optimizer.lr":       {see: rates, edit: func(c *train.Config) { c.Optimizer.LR = 1e-3 }},
		"optimizer.min_lr":   {see: rates, edit: func(c *train.Config) { c.Optimizer.MinLR = 1e-5 }},
		"optimizer.warmup":   {see: rates, edit: func(c *train.Config) { c.Optimizer.Warmup = 0.5 }},
		"optimizer.schedule": {see: rates, edit: func(c *train.Config) { c.Optimizer.Schedule = "wsd" }},
		"optimizer.betas":    {see: programs, edit: func(c *train.Config) { c.Optimizer.Betas[1] = 0.99 }},
		"optimizer.eps":      {see: programs, edit: func(c *train.Config) { c.Optimizer.Eps = 1e-6 }},
		"optimizer.eps_form": {see: programs, edit: func(c *train.Config) { c.Optimizer.EpsForm = "corrected" }},
		"optimizer.weight_decay": {
			see: programs, edit: func(c *train.Config) { c.Optimizer.WeightDecay = 0 },
		},
		"optimizer.l2":       {see: programs, edit: func(c *train.Config) { c.Optimizer.L2 = 0.1 }},
		"optimizer.clip_rms": {see: programs, edit: func(c *train.Config) { c.Optimizer.ClipRMS = 1 }},
		"optimizer.direction_lr": {
			see: programs, edit: func(c *train.Config) { c.Optimizer.DirectionLR = true },
			base: func(c *train.Config) { c.Recipe = "int8-unified" },
		},
		"optimizer.loss_scale": {see: metrics, edit: func(c *train.Config) { c.Optimizer.LossScale = 1024 }, base: under("fp16")},
		"optimizer.stats":      {see: programs, edit: func(c *train.Config) { c.Optimizer.Stats = true }},
		"optimizer.clip":       {see: programs, edit: func(c *train.Config) { c.Optimizer.Clip = 2 }},

		"precision.master":       {see: programs, edit: func(c *train.Config) { c.Precision.Master = "fp16" }},
		"precision.m1":           {see: programs, edit: func(c *train.Config) { c.Precision.M1 = "e4m3" }},
		"precision.m2":           {see: programs, edit: func(c *train.Config) { c.Precision.M2 = "e5m2" }},
		"precision.grad_accum":   {see: programs, edit: func(c *train.Config) { c.Precision.GradAccum = "e4m3" }},
		"precision.rounding":     {see: programs, edit: func(c *train.Config) { c.Precision.Rounding = "nearest" }, base: smooth},
		"precision.state_pow2":   {see: programs, edit: func(c *train.Config) { c.Precision.StatePow2 = new(true) }, base: smooth},
		"precision.state_block":  {see: programs, edit: func(c *train.Config) { c.Precision.StateBlock = new(256) }, base: smooth},
		"precision.state_expand": {see: programs, edit: func(c *train.Config) { c.Precision.StateExpand = new(true) }, base: blocks},
		"precision.state_flat":   {see: programs, edit: func(c *train.Config) { c.Precision.StateFlat = new(true) }, base: blocks},
		"precision.state_scope":  {see: programs, edit: func(c *train.Config) { c.Precision.StateScope = "all" }, base: smooth},
		"precision.floor_v":      {see: programs, edit: func(c *train.Config) { c.Precision.FloorV = new(false) }, base: smooth},
		"precision.reduce":       {see: programs, edit: func(c *train.Config) { c.Precision.Reduce = "e4m3" }, base: sharing},
		"precision.reduce_granularity": {see: programs, edit: func(c *train.Config) { c.Precision.ReduceGranularity = "tensor" }, base: func(c *train.Config) {
			sharing(c)
			c.Precision.Reduce = "e4m3"
		}},
		"precision.reduce_scale":            {see: programs, edit: func(c *train.Config) { c.Precision.ReduceScale = "rms" }, base: sharedScale},
		"precision.reduce_sum":              {see: programs, edit: func(c *train.Config) { c.Precision.ReduceSum = "once" }, base: sharedScale},
		"precision.activations":             {see: programs, edit: func(c *train.Config) { c.Precision.Activations = "e4m3" }},
		"precision.activations_granularity": {see: programs, edit: func(c *train.Config) { c.Precision.ActivationsGranularity = "row" }, base: under("coat")},
		"precision.activations_scale":       {see: programs, edit: func(c *train.Config) { c.Precision.ActivationsScale = "e8m0" }, base: under("coat")},
		"precision.history":                 {see: programs, edit: func(c *train.Config) { c.Precision.History = new(32) }, base: delayed},
		"precision.margin":                  {see: programs, edit: func(c *train.Config) { c.Precision.Margin = new(1) }, base: delayed},
		"precision.weight_margin":           {see: programs, edit: func(c *train.Config) { c.Precision.WeightMargin = new(1) }, base: delayed},
		"precision.grad_margin":             {see: programs, edit: func(c *train.Config) { c.Precision.GradMargin = new(1) }, base: delayed},
		"precision.l1_bits":                 {see: programs, edit: func(c *train.Config) { c.Precision.L1Bits = new(16) }, base: under("int8-switchback")},
		"precision.cold_start":              {see: metrics, edit: func(c *train.Config) { c.Precision.ColdStart = new(true) }, base: delayed},
		"precision.smooth":                  {see: programs, edit: func(c *train.Config) { c.Precision.Smooth = "linear" }, base: smooth},
		"precision.smooth_exact":            {see: programs, edit: func(c *train.Config) { c.Precision.SmoothExact = new(true) }, base: smooth},
		"precision.smooth_scaling":          {see: programs, edit: func(c *train.Config) { c.Precision.SmoothScaling = "delayed" }, base: smooth},
		"precision.smooth_margin":           {see: programs, edit: func(c *train.Config) { c.Precision.SmoothMargin = new(1) }, base: lateFactors},
		"precision.rows": {see: programs, base: delayed, edit: func(c *train.Config) {
			c.Precision.Rows = []train.PrecisionRow{{Scope: "*.q_proj", Format: "bf16"}}
		}},
		"precision.schedule": {see: metrics, edit: func(c *train.Config) {
			c.Precision.Schedule = []train.RecipeChange{{Step: 2, Recipe: "fp8-delayed"}}
		}},

		"checkpoint.every":      {see: kept, edit: func(c *train.Config) { c.Checkpoint.Every = 3 }},
		"checkpoint.keep_last":  {see: kept, edit: func(c *train.Config) { c.Checkpoint.KeepLast = 3 }, base: saving},
		"checkpoint.on_error":   {see: ending, edit: func(c *train.Config) { c.Checkpoint.OnError = "continue" }, base: saving},
		"checkpoint.keep_every": {see: kept, edit: func(c *train.Config) { c.Checkpoint.KeepEvery = 2 }, base: saving},
	}
}

// settings returns the values of a config by key, as text.
func settings(c train.Config) map[string]string {
	all := map[string]string{}
	var walk func(prefix string, v reflect.Value)
	walk = func(prefix string, v reflect.Value) {
		for i := range v.NumField() {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("toml"), ",")
			f := v.Field(i)
			switch f.Kind() {
			case reflect.Func: // train.Config.Network is no key
			case reflect.Struct:
				walk(prefix+name+".", f)
			case reflect.Pointer:
				all[prefix+name] = "not given"
				if !f.IsNil() {
					all[prefix+name] = fmt.Sprint(f.Elem())
				}
			default:
				all[prefix+name] = fmt.Sprint(f)
			}
		}
	}
	walk("", reflect.ValueOf(c))
	return all
}

// Every key of the configuration has an effect and an entry in the table.
func TestEveryKeyHasAnEffect(t *testing.T) {
	s := spikes()
	otherText := filepath.Join(t.TempDir(), "other.txt")
	require.NoError(t, disk.WriteAtomic(otherText, text(9_000)))
	trained := tinyConfig(t)
	trained.Train.Steps = 1
	require.NoError(t, trained.Resolve())
	s.batches, s.steps = nil, nil
	dir := filepath.Join(t.TempDir(), "run")
	trainIn(t, trained, dir, func(Progress) {})

	table := effects(filepath.Join(dir, checkpointsDir, "step-00000001"), otherText, preparedFolder(t, data.KindCompletion), preparedFolder(t, data.KindPreference))
	known := settings(train.Config{})
	for key := range known {
		require.Contains(t, table, key, "add an effect of the key to the table")
	}
	require.Len(t, table, len(known))
	for key, e := range table {
		t.Run(key, func(t *testing.T) {
			s.batches, s.steps = nil, e.spikes
			defer func() { s.steps = nil }()
			one := tinyConfig(t)
			one.Train.Steps = 4
			if e.base != nil {
				e.base(&one)
			}
			other := one
			e.edit(&other)
			before, after := settings(one), settings(other)
			for k := range before {
				require.Equal(t, k != key, before[k] == after[k], k)
			}
			require.NoError(t, one.Resolve())
			require.NoError(t, other.Resolve())
			was := e.see(t, one)
			require.Equal(t, was, e.see(t, one), "the same config again")
			require.NotEqual(t, was, e.see(t, other))
		})
	}
}
