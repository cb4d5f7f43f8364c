package train

import (
	"fmt"
	"slices"

	"octet/backend"
	"octet/fp8"
	"octet/nn"
	"octet/recipe"
)

// Job holds the model's tensors and the programs of a run, which need no device
// and no data. octet plan inspects it, a Trainer runs it.
type Job struct {
	Config Config        // of this phase, without a schedule
	Device backend.Spec  // the device that the programs are recorded for
	Recipe recipe.Recipe // as resolved for the device
	Notes  []string      // a sentence each, see [Config.RecipeFor]
	Phases []Phase       // of the whole run
	Phase  int           // index of this job's phase
	Vars   *backend.Vars
	Model  *nn.Base // the layers of the model

	// Inputs of every micro-batch: I32 [MicroBatch·Seq] ids, and step.control.
	Tokens, Targets, Control *backend.Tensor
	// TokenWeights, F32 [MicroBatch·Seq], multiply the gradients of the token losses, which Eval
	// writes to TokenLosses, of the same shape; nil unless train.objective = "dpo".
	TokenWeights, TokenLosses *backend.Tensor
	Start                     *backend.Tensor // first position that a token sees; nil unless data.attention = "document"

	Loss     *backend.Tensor // Output F32 [1]: Σ of the step's token losses, all ranks
	EvalLoss *backend.Tensor // Output F32 [1]: Σ of an evaluation batch's token losses
	GradNorm *backend.Tensor // Output F32 [1], before clipping
	Skip     *backend.Tensor // Output I32 [1]: 1 if the update was skipped
	Step     *backend.Tensor // State I32 [1]: number of updates, skipped ones excluded
	// LossScale is State F32 [1], nil without [recipe.Recipe.LossScaling].
	LossScale *backend.Tensor

	Micro     map[Variant]*backend.Program
	Update    *backend.Program
	Calibrate *backend.Program // fills empty histories from the first micro-batch
	Prepare   *backend.Program // casts weights, after masters and scales were loaded
	Eval      *backend.Program
	Health    *backend.Program // measures casts and channels; nil without train.health_every

	network    Network
	health     *nn.Health
	optimizer  *AdamW
	parts      map[*backend.Tensor]part // see listParts
	vocabulary map[*backend.Tensor]int  // rows without padding, of tensors with a row for each token of the vocabulary
	localAmax  bool                     // for tests: amaxes are not reduced over ranks
}

// Variant is the position of a micro-batch in its step. First writes gradients
// instead of accumulating; Last contains the reductions over ranks.
type Variant struct{ First, Last bool }

func (v Variant) String() string {
	s := "micro"
	if v.First {
		s += ".first"
	}
	if v.Last {
		s += ".last"
	}
	return s
}

// NewJob resolves the configuration and records the programs of its first recipe
// for a device. It returns an error if the programs of any recipe of the schedule
// cannot be recorded, for example if the device lacks one of its GEMMs.
func NewJob(c Config, s backend.Spec) (*Job, error) { return newJob(c, s, false) }

func newJob(c Config, s backend.Spec, localAmax bool) (*Job, error) {
	phases, err := c.Phases()
	if err != nil {
		return nil, err
	}
	for i, p := range phases[1:] {
		if _, err := recordJob(phases, i+1, s, localAmax); err != nil {
			return nil, fmt.Errorf("under recipe %s, from step %d on: %w", p.Config.Recipe, p.From, err)
		}
	}
	return recordJob(phases, 0, s, localAmax)
}

func recordJob(phases []Phase, phase int, s backend.Spec, localAmax bool) (*Job, error) {
	c := phases[phase].Config
	r, notes, err := c.RecipeFor(s)
	if err != nil {
		return nil, err
	}
	if c.Train.Ranks%c.tensor() != 0 { // not checked before, since a launcher may give the ranks
		return nil, errTensorRanks(c.Train)
	}
	j := &Job{
		Config: c, Device: s, Recipe: r, Notes: notes, Phases: phases, Phase: phase,
		Vars: backend.NewVars(), Micro: map[Variant]*backend.Program{}, localAmax: localAmax,
	}
	if j.Model, j.network, err = c.network(r, j.Vars); err != nil {
		return nil, err
	}
	if err := j.Model.CheckTokens(c.Train.MicroBatch * c.Data.Seq); err != nil {
		return nil, err
	}
	j.Model.DeclareGrads()
	tokens := c.Train.MicroBatch * c.Data.Seq
	j.Tokens = j.Vars.Tensor(backend.Input, "tokens", fp8.I32, tokens)
	j.Targets = j.Vars.Tensor(backend.Input, "targets", fp8.I32, tokens)
	if c.Data.Attention == AttendDocument {
		j.Start = j.Vars.Tensor(backend.Input, "start", fp8.I32, tokens)
	}
	if c.Train.Objective == ObjectiveDPO {
		j.TokenWeights = j.Vars.Tensor(backend.Input, "token_weights", fp8.F32, tokens)
		j.TokenLosses = j.Vars.Tensor(backend.Output, "token_losses", fp8.F32, tokens)
	}
	j.Control = j.Vars.Tensor(backend.Input, "step.control", fp8.I32, backend.ControlWords)
	j.Loss = j.Vars.Tensor(backend.Output, "loss", fp8.F32, 1)
	j.EvalLoss = j.Vars.Tensor(backend.Output, "eval_loss", fp8.F32, 1)
	j.optimizer = NewAdamW(j.Model, c.Optimizer)
	j.GradNorm, j.Skip, j.Step, j.LossScale = j.optimizer.GradNorm, j.optimizer.Skip, j.optimizer.Step, j.optimizer.LossScale
	j.listParts()

	for i := range c.Train.Accumulate {
		v := Variant{First: i == 0, Last: i == c.Train.Accumulate-1}
		if j.Micro[v] == nil {
			j.Micro[v] = j.recordMicro(v)
		}
	}
	j.Update = j.recordUpdate()
	j.Calibrate = j.recordCalibrate()
	j.Prepare = j.recordPrepare()
	j.Eval = j.recordEval()
	if c.Train.HealthEvery > 0 {
		j.Health = j.recordHealth()
	}
	for _, p := range j.Programs() {
		if err := p.Err(); err != nil {
			return nil, fmt.Errorf("recording %s: %w", p.Name(), err)
		}
	}
	if err := j.checkLossScale(); err != nil {
		return nil, err
	}
	if err := j.recompute(); err != nil {
		return nil, err
	}
	return j, j.gatherShards()
}

// gatherShards adds the gathers of copies of weights that ranks share.
func (j *Job) gatherShards() (err error) {
	for v, p := range j.Micro {
		if j.Micro[v], err = backend.GatherShards(p); err != nil {
			return err
		}
	}
	for _, p := range []**backend.Program{&j.Update, &j.Calibrate, &j.Prepare, &j.Eval, &j.Health} {
		if *p == nil {
			continue
		}
		if *p, err = backend.GatherShards(*p); err != nil {
			return err
		}
	}
	return nil
}

// checkLossScale returns an error if micro-batches of a recipe with loss scaling do not
// read the loss scale: the update would divide gradients by a factor that they lack.
func (j *Job) checkLossScale() error {
	if j.LossScale == nil {
		return nil
	}
	reads := func(n *backend.Node) bool {
		return slices.ContainsFunc(n.Operands(), func(o backend.Operand) bool { return o.Tensor == j.LossScale })
	}
	for _, p := range j.Micro {
		if !slices.ContainsFunc(p.Nodes(), reads) {
			return fmt.Errorf("recipe %s scales the loss, but no op of the network reads the loss scale: give it to CrossEntropy, LossScale: pass.LossScale", j.Recipe.Name)
		}
	}
	return nil
}

// Programs lists the job's programs in a fixed order.
func (j *Job) Programs() []*backend.Program {
	var list []*backend.Program
	for _, v := range []Variant{{true, true}, {true, false}, {false, false}, {false, true}} {
		if p := j.Micro[v]; p != nil {
			list = append(list, p)
		}
	}
	list = append(list, j.Update, j.Calibrate, j.Prepare, j.Eval)
	if j.Health != nil {
		list = append(list, j.Health)
	}
	return list
}

func (j *Job) pass(p *backend.Program, mode nn.Mode) *nn.Pass {
	pass := j.Model.Pass(p, mode, nn.Shape{
		Batch: j.Config.Train.MicroBatch, Seq: j.Config.Data.Seq,
		Control: j.Control, Ranks: j.Config.dataRanks(), HeadTokens: j.Device.HeadTokens, Start: j.Start,
	})
	pass.Weights = j.TokenWeights
	return pass
}

func (j *Job) recordMicro(v Variant) *backend.Program {
	p := j.Vars.Program(v.String())
	pass := j.pass(p, nn.Train)
	pass.First, pass.Last = v.First, v.Last
	losses := j.network.LossAndGrads(pass, j.Tokens, j.Targets)
	pass.Settle()
	p.Add(&backend.Sum{X: losses, Out: j.Loss, Accumulate: !v.First})
	return p
}

// recordUpdate records reductions first, since everything else depends on them.
func (j *Job) recordUpdate() *backend.Program {
	p := j.Vars.Program("update").Phase(backend.Update)
	j.reduceRecords(p)
	if j.Config.dataRanks() > 1 {
		comm(p).Add(&backend.AllReduce{X: j.Loss, Reduce: backend.ReduceSum, Group: j.dataGroup()})
		if x := j.Model.RouteStats; x != nil {
			comm(p).Add(&backend.AllReduce{X: x, Reduce: backend.ReduceSum})
		}
	}
	j.optimizer.Update(j.pass(p, nn.Train))
	return p
}

// reduceRecords all-reduces the maxima, so that every rank chooses the same
// scales.
func (j *Job) reduceRecords(p *backend.Program) {
	if j.Config.Train.Ranks < 2 || j.localAmax {
		return
	}
	for _, t := range []*backend.Tensor{j.Model.Scales.Amax, j.Model.ChannelMax, j.Model.Scales.Distance} {
		op := &backend.AllReduce{X: t, Reduce: backend.ReduceMax}
		if t == j.Model.ChannelMax {
			op.Group = j.dataGroup() // the other ranks have other channels
		}
		if t != nil && (op.Group.All() || op.Group.Size > 1) {
			comm(p).Add(op)
		}
	}
}

// dataGroup returns the ranks that have the same parts of layers as this one, and other batches.
func (j *Job) dataGroup() backend.Group {
	if j.Config.tensor() < 2 {
		return backend.Group{}
	}
	return backend.Group{Size: j.Config.dataRanks(), Stride: j.Config.tensor()}
}

func comm(p *backend.Program) *backend.Program {
	return p.Phase(backend.Comm).On(backend.CommQueue)
}

// recordCalibrate records a forward and backward with current scales. Its gradients
// are discarded, its maxima become the first row of the histories.
func (j *Job) recordCalibrate() *backend.Program {
	p := j.Vars.Program("calibrate")
	pass := j.pass(p, nn.Calibrate)
	pass.Last, pass.Discard = false, true
	j.Model.CastWeights(pass)
	losses := j.network.LossAndGrads(pass, j.Tokens, j.Targets)
	p.Add(&backend.Sum{X: losses, Out: j.Loss})
	j.reduceRecords(p)
	j.Model.UpdateScales(p, nil)
	return p
}

func (j *Job) recordPrepare() *backend.Program {
	p := j.Vars.Program("prepare").Phase(backend.Update)
	j.Model.CastWeights(j.pass(p, nn.Train))
	return p
}

func (j *Job) recordEval() *backend.Program {
	p := j.Vars.Program("eval")
	pass := j.pass(p, nn.Frozen)
	pass.Losses = j.TokenLosses
	losses := j.network.Loss(pass, j.Tokens, j.Targets)
	p.Add(&backend.Sum{X: losses, Out: j.EvalLoss})
	return p
}

// recordHealth records a forward and backward of one rank, as in a step, that also
// measure casts and channels. It runs after an update; the next step overwrites
// its gradients and maxima.
func (j *Job) recordHealth() *backend.Program {
	p := j.Vars.Program("health")
	j.health = j.Model.DeclareHealth()
	pass := j.pass(p, nn.Train)
	pass.Last, pass.Discard, pass.Health = false, true, j.health
	j.Model.WeightHealth(pass)
	j.network.LossAndGrads(pass, j.Tokens, j.Targets)
	return p
}

// recompute applies train.recompute to the programs with a backward.
func (j *Job) recompute() error {
	attention := j.Model.AttentionOf()
	group := map[string]func(*backend.Node) string{
		"none":      nil,
		"block":     func(n *backend.Node) string { return n.Block },
		"attention": func(n *backend.Node) string { return attention(n.Scope) },
	}[j.Config.Train.Recompute]
	if group == nil {
		return nil
	}
	var err error
	for v, p := range j.Micro {
		if j.Micro[v], err = backend.RecomputeForward(p, group); err != nil {
			return err
		}
	}
	if j.Calibrate, err = backend.RecomputeForward(j.Calibrate, group); err != nil || j.Health == nil {
		return err
	}
	j.Health, err = backend.RecomputeForward(j.Health, group)
	return err
}
