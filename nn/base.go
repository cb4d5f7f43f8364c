package nn

import (
	"errors"
	"fmt"
	"iter"

	"octet/backend"
	"octet/fp8"
	"octet/recipe"
)

// Base is what every model has besides its layers' order: the parameters, the copies of
// the weights that GEMMs read, and the scale state. A model declares its layers on a Base,
// calls Build, and then records passes. A Base stores no values and is bound to no device.
type Base struct {
	Recipe recipe.Recipe
	Vars   *backend.Vars
	Params []*Param // in the order of their declaration
	Scales Scales

	// ChannelMax and ChannelHistory are the channel maxima of per-channel
	// Smooth-SwiGLU, of this step [n] and of the last updates [window, n], with the
	// layers concatenated; nil otherwise.
	ChannelMax, ChannelHistory *backend.Tensor

	// LossScale is the dynamic loss scale, State F32 [1]: see backend.StepGate. It is nil
	// until DeclareGrads, and without recipe.Recipe.LossScaling.
	LossScale *backend.Tensor

	// Mu is the factor of each gradient's scale that ranks share, State F32 [n]; nil unless the
	// recipe moves it (recipe.AutoMu) and ranks share the optimizer state.
	Mu *backend.Tensor

	// ParamPrefix precedes the paths of layers in the names of parameters.
	ParamPrefix string
	// Shards is the number of ranks that share the optimizer state, see [Param]. With 0 or 1
	// every rank holds all of it.
	Shards int
	// Stage is that of ZeRO, where Shards is more than 1: from 2 on every micro-batch scatters its
	// gradients, and at 3 ranks also share the copies of weights that GEMMs read.
	Stage int
	// Tensor is the number of ranks that share each layer (tensor_parallel.go). With 0 or 1 every rank
	// has all of it.
	Tensor int
	// StepTokens is the number of tokens of a step, over all ranks, which divides the gradients
	// of the loss. It is the scale of gradients with scaling [recipe.Constant]; 0 counts as 1.
	// Set it before layers are declared.
	StepTokens int

	// RouteStats is what routing did in this step, Output F32 [mixtures of experts,
	// backend.RouteStats+experts]: see backend.RouteGrad. It is nil until DeclareGrads, and
	// without experts.
	RouteStats *backend.Tensor

	linears    []*Linear
	attentions []*Attention
	mlps       []*MLP
	moes       []*MoE
	embeddings []*Embedding
	heads      []*Head
	sharing    []*Param        // of Mu and atMax: gradients with a scale of all ranks
	atMax      *backend.Tensor // Stash F32 [n]: numbers of sums at the largest value, of this step
	channels   int             // of ChannelMax, while layers are being declared
}

// NewBase returns a Base without layers. It returns an error for an invalid recipe, and for
// one whose scopes have slices that have not counted the layers ([recipe.Recipe.Over]).
func NewBase(r recipe.Recipe, vars *backend.Vars) (*Base, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	if r.NeedsLayers() {
		return nil, fmt.Errorf("recipe %s: its scopes have slices, which count the model's layers: call Recipe.Over or Recipe.For with them first", r.Name)
	}
	return &Base{Recipe: r, Vars: vars}, nil
}

// Build declares the scale state and the cached copies of weights. It follows the
// declaration of all layers and precedes every pass. It returns an error for a recipe that
// the layers cannot use.
func (b *Base) Build() error {
	if b.built() {
		return errors.New("nn: Build is called twice: call it once, after all layers and slots are declared")
	}
	for _, l := range b.mlps {
		if err := l.check(); err != nil {
			return err
		}
	}
	for _, l := range b.linears {
		if err := l.check(); err != nil {
			return fmt.Errorf("recipe %s: %w", b.Recipe.Name, err)
		}
	}
	for _, h := range b.heads {
		if err := h.check(b.Recipe); err != nil {
			return err
		}
	}
	if err := b.checkTensor(); err != nil {
		return fmt.Errorf("recipe %s: %w", b.Recipe.Name, err)
	}
	for _, e := range b.embeddings { // of a model without a head
		b.declareTable(e, nil)
	}
	b.Scales.pack(b.Vars)
	b.packChannels()
	b.Scales.one = b.Vars.Tensor(backend.Input, "fp8.one", fp8.F32, 1)
	b.Scales.one.Value = 1
	for _, l := range b.linears {
		l.bindScales(&b.Scales)
	}
	return b.Vars.Err()
}

// built reports whether Build has declared the scale state.
func (b *Base) built() bool { return b.Scales.one != nil }

// declaring panics after Build, which gives every declared slot its scales.
func (b *Base) declaring(name string) {
	if b.built() {
		panic(fmt.Sprintf("nn: %s is declared after Build: declare all layers and slots before", name))
	}
}

// Constants yields every persistent tensor of the model, parameters aside, whose
// initial value is not 0, with that value: scales are 1 until an amax is known, the loss
// scale is InitialLossScale, μ is 1/Shards.
func (b *Base) Constants() iter.Seq2[*backend.Tensor, float32] {
	return func(yield func(*backend.Tensor, float32) bool) {
		list := []*backend.Tensor{b.Scales.one}
		for _, t := range b.Scales.constants {
			if !yield(t, t.Value) {
				return
			}
		}
		if !b.Scales.Empty() {
			list = append(list, b.Scales.Scale, b.Scales.ScaleInv)
		}
		for _, p := range b.Params {
			if p.Master.Scale != nil {
				list = append(list, p.Master.Scale)
			}
		}
		for _, t := range list {
			if !yield(t, 1) {
				return
			}
		}
		if b.LossScale != nil {
			if !yield(b.LossScale, InitialLossScale) {
				return
			}
		}
		if b.Mu != nil {
			yield(b.Mu, 1/float32(b.Shards))
		}
	}
}

// InitialLossScale is the loss scale of the first step, that of torch.amp.GradScaler.
const InitialLossScale = 0x1p16

// Shape describes the batch of a pass and its device.
type Shape struct {
	Batch, Seq int
	Control    *backend.Tensor // step.control
	Ranks      int             // with batches of their own
	HeadTokens int             // as in backend.Spec
	Start      *backend.Tensor // see Pass; nil if rows are not divided into documents
}

// Pass starts recording a pass into an empty program. It panics before Build.
func (b *Base) Pass(p *backend.Program, mode Mode, s Shape) *Pass {
	if !b.built() {
		panic(fmt.Sprintf("nn: program %s records a pass before Build: call Build first", p.Name()))
	}
	return &Pass{
		Program: p, Mode: mode, Batch: s.Batch, Seq: s.Seq, Control: s.Control,
		First: true, Last: true, Ranks: max(1, s.Ranks), tensor: b.tensor(), LossScale: b.LossScale, Start: s.Start, headTokens: s.HeadTokens,
		compute: b.Recipe.Compute, reduce: b.Recipe.Reduce, scales: &b.Scales, unsettled: new(func(*Pass)), root: p.At(""),
	}
}

// ClearMaxima zeroes the maxima and counts that the micro-batches of a step accumulate. It starts the
// first micro-batch.
func (b *Base) ClearMaxima(p *Pass) {
	b.Scales.clear(p.Program, false)
	if b.ChannelMax != nil {
		p.Add(&backend.Fill{Out: b.ChannelMax})
	}
	if b.atMax != nil {
		p.Add(&backend.Fill{Out: b.atMax})
	}
	if b.RouteStats != nil {
		p.Add(&backend.Fill{Out: b.RouteStats})
	}
}

// UpdateScales appends, to an update program, the new history and scale of
// every record. Nothing changes if the tensor skip is 1; nil never skips.
func (b *Base) UpdateScales(p *backend.Program, skip *backend.Tensor) {
	b.Scales.update(p, skip)
	if b.ChannelMax != nil {
		p.Add(&backend.PushHistory{Value: b.ChannelMax, Skip: skip, History: b.ChannelHistory})
	}
}

// CastWeights appends the casts of all weights from their masters. They run at
// the end of an update and after masters and scales were loaded.
func (b *Base) CastWeights(p *Pass) {
	b.Scales.clear(p.Program, true)
	for _, w := range b.Params {
		if w.Sharded() && w.storesWhole() {
			p.gatherRows(w.Master, w.paddedWhole)
		}
	}
	for _, e := range b.embeddings {
		e.castTable(p)
	}
	amaxes := b.shardAmaxes(p)
	for _, l := range b.linears {
		if l.copies != nil {
			l.castWeight(p.At(l.Scope), amaxes[l])
		}
	}
	if b.Shards > 1 || p.tensor > 1 {
		b.Scales.reduceWeights(p)
	}
	for _, l := range b.mlps {
		l.prepare(p)
	}
}
