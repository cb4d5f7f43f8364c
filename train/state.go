package train

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"

	"octet/backend"
	"octet/checkpoint"
	"octet/data"
	"octet/fp8"
	"octet/nn"
)

// stateVersion is the format of state.json and of the names in
// optimizer.safetensors.
const stateVersion = 2

// State is state.json: what a resumed run needs in addition to its tensors. Random
// bits depend on seed and step alone.
type State struct {
	Version  int           `json:"version"`
	Octet    string        `json:"octet"`   // version of the program that wrote it
	Backend  string        `json:"backend"` // backend and arithmetic: "emu, avx512"
	Recipe   string        `json:"recipe"`  // of the last step
	Step     int           `json:"step"`    // completed steps
	Skipped  int           `json:"skipped"` // consecutive skipped steps up to the last one
	Seed     int64         `json:"seed"`
	Position data.Position `json:"data"`
	Rewinds  int           `json:"rewinds"` // see Trainer.Rewind
	Spikes   spikes        `json:"spikes"`
	// ReferenceSeq is the data.seq of the log-probabilities in reference.train and reference.val of
	// train.objective = "dpo"; 0: there are none.
	ReferenceSeq int `json:"reference_seq,omitempty"`
	// Config is [Snapshot.Config]. Resume compares it to detect changes.
	Config map[string]string `json:"config,omitempty"`
}

// Contents copies the contents of a checkpoint from the devices.
func (t *Trainer) Contents(octetVersion, backendName string) (checkpoint.Contents, error) {
	var s Snapshot
	if err := t.Snapshot(&s, octetVersion, backendName); err != nil {
		return checkpoint.Contents{}, err
	}
	return s.Contents(), nil
}

// Restore loads a checkpoint of the same configuration; the next step is the one
// that follows it. If the checkpoint belongs to another phase of the schedule,
// Restore changes to its recipe.
//
// Restore converts a checkpoint of a device with other formats: it rounds moments to
// this device's E4M3 and derives scales from the histories (see [nn.Model.Pack]).
func (t *Trainer) Restore(ctx context.Context, c *checkpoint.Checkpoint) error {
	if t.Config.Network != nil {
		return ErrOwnNetwork
	}
	state, err := ReadState(c)
	if err != nil {
		return err
	}
	if step, named := checkpoint.StepOf(c.Path); named && step != state.Step {
		return fmt.Errorf("%s: it contains the state of step %d: rename the folder to that step, or move it away", c.Path, state.Step)
	}
	if state.Seed != t.Config.Seed {
		return fmt.Errorf("%s: it belongs to a run with seed %d, but the configuration has seed %d", c.Path, state.Seed, t.Config.Seed)
	}
	// A model with other heads or another rope_theta has the same tensor shapes.
	if err := sameShape(c.Config, HFConfig(t.Config)); err != nil {
		return fmt.Errorf("%s: %w", c.Path, err)
	}
	if err := c.Model.Match(c.Config); err != nil {
		return err
	}
	phase := PhaseAt(t.Phases, state.Step-1)
	if want := t.Phases[phase].Config.Recipe; state.Recipe != want {
		return fmt.Errorf("%s: it was written under recipe %s, but the configuration has %s at that step", c.Path, state.Recipe, want)
	}
	if err := t.ensurePhase(phase); err != nil {
		return err
	}
	restored, err := t.restoreReference(state, c.Optimizer)
	if err != nil {
		return fmt.Errorf("%s: %w", c.Path, err)
	}
	t.forgetWeights()
	if err := t.setConstants(); err != nil {
		return err
	}
	for _, p := range t.Model.Params {
		codes, err := t.storedMaster(c, p)
		if err != nil {
			return fmt.Errorf("%s: %w", c.Path, err)
		}
		if err := t.device.Write(p.Master, codes); err != nil {
			return err
		}
	}
	done := map[*backend.Tensor]bool{}
	for _, s := range t.Model.Packed() {
		done[s] = true
		if err := t.restorePacked(c, s); err != nil {
			return err
		}
	}
	t.Converted = false
	for p, m := range t.moments() {
		x, err := t.otherE4M3(c.Optimizer, m)
		if x == nil && err == nil {
			continue
		}
		if err == nil {
			err = t.setMoment(p, m, t.localPart(m, x), fp8.Amax(x))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", c.Path, err)
		}
		done[m], done[m.Scale], t.Converted = true, true, true
	}
	for s := range t.Vars.All() {
		if s.Class != backend.State || done[s] {
			continue
		}
		if _, stored := c.Optimizer.Lookup(s.Name); s == t.Model.Mu && !stored {
			continue // the run that wrote the checkpoint shared no scale: μ starts anew
		}
		raw, err := t.storedRows(c.Optimizer, s.Name, s)
		if err != nil {
			return fmt.Errorf("%s: %w", c.Path, err)
		}
		if err := t.device.Write(s, raw); err != nil {
			return err
		}
	}
	if err := t.device.loader.Restore(state.Position); err != nil {
		return fmt.Errorf("%s: %w", c.Path, err)
	}
	t.reference = restored
	t.step, t.skipped, t.rewinds, t.spikes = state.Step, state.Skipped, state.Rewinds, state.Spikes
	if t.calibrated = state.Step > 0; !t.calibrated {
		if err := t.saveHistories(); err != nil {
			return err
		}
	}
	return t.prepare(ctx)
}

// restorePacked writes a tensor that concatenates the state of many casts or layers.
func (t *Trainer) restorePacked(c *checkpoint.Checkpoint, s *backend.Tensor) error {
	x, err := t.Model.Pack(s, func(name string) ([]float32, error) {
		x, err := readFloats(c.Optimizer, name)
		if err == nil && s == t.Model.ChannelHistory && t.Config.tensor() > 1 {
			x, err = t.ownChannels(c.Optimizer, name, x)
		}
		return x, err
	})
	if err != nil {
		return fmt.Errorf("%s: %w", c.Path, err)
	}
	return t.device.Write(s, fp8.AppendFloats(nil, x...))
}

// ownChannels returns this rank's channels of a history x of all channels.
func (t *Trainer) ownChannels(from *checkpoint.Tensors, name string, x []float32) ([]float32, error) {
	stored, _ := from.Lookup(name)
	width := stored.Shape[len(stored.Shape)-1]
	if width%t.Config.tensor() != 0 {
		return nil, fmt.Errorf("%s has %d channels, which train.tensor_parallel = %d does not divide", name, width, t.Config.tensor())
	}
	n := width / t.Config.tensor()
	at := t.place().tensor
	return columnsOf(x, width, [2]int{at * n, (at + 1) * n}), nil
}

// MaxRewinds is the maximum number of rewinds of a run. A run that spikes more often
// needs other settings, not other data.
const MaxRewinds = 3

// Rewind restores a checkpoint of this run but keeps the position in the data, so that
// the data read since the checkpoint is skipped. It returns an error after MaxRewinds
// rewinds.
func (t *Trainer) Rewind(ctx context.Context, c *checkpoint.Checkpoint) error {
	if t.changeFailed() {
		return errChangeFailed
	}
	if t.rewinds >= MaxRewinds {
		return fmt.Errorf("the loss spikes again after %d rewinds", MaxRewinds)
	}
	if err := t.dropFlights(); err != nil {
		return err
	}
	rewinds, position := t.rewinds+1, t.device.loader.Position()
	if err := t.Restore(ctx, c); err != nil {
		return err
	}
	t.rewinds = rewinds
	return t.device.loader.Restore(position)
}

// readFloats reads a tensor of any float format as FP32.
func readFloats(from *checkpoint.Tensors, name string) ([]float32, error) {
	t, ok := from.Lookup(name)
	if !ok {
		return nil, fmt.Errorf("%w %q", nn.ErrNoTensor, name)
	}
	if !t.DType.IsFloat() {
		return nil, fmt.Errorf("%s is stored as %s, expected a float format", name, t.DType)
	}
	var b bytes.Buffer
	if err := t.Data(&b); err != nil {
		return nil, err
	}
	x := make([]float32, b.Len()/t.DType.Size())
	t.DType.Decode(x, b.Bytes())
	return x, nil
}

// InitFrom starts training at step 0 from given weights: a Hugging Face folder or a
// checkpoint. Histories start empty, as with [Trainer.Init]; the first step's
// calibration fills them.
func (t *Trainer) InitFrom(ctx context.Context, path string) error {
	if t.Config.Network != nil {
		return ErrOwnNetwork
	}
	config, tensors, err := checkpoint.OpenModel(path)
	if err != nil {
		return err
	}
	if err = sameShape(config, HFConfig(t.Config)); err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	} else if err = tensors.Match(config); err == nil {
		err = t.initWith(ctx, func(p *nn.Param) ([]float32, error) {
			x, err := tensors.Weight(p.Name)
			if err != nil {
				return nil, err
			}
			return p.Padded(x)
		})
	}
	if err != nil {
		err = fmt.Errorf("model.init: %w", err)
	}
	return errors.Join(err, tensors.Close())
}

// sameShape returns an error that lists, by configuration key, the fields of have and
// want that must be equal for the models to share weights and are not.
func sameShape(have, want checkpoint.Config) error {
	var differ []string
	for _, f := range []struct {
		key        string
		have, want any
	}{
		{"layers", have.NumHiddenLayers, want.NumHiddenLayers},
		{"dim", have.HiddenSize, want.HiddenSize},
		{"heads", have.NumAttentionHeads, want.NumAttentionHeads},
		{"kv_heads", have.NumKeyValueHeads, want.NumKeyValueHeads},
		{"ffn", have.IntermediateSize, want.IntermediateSize},
		{"vocab", have.VocabSize, want.VocabSize},
		{"tied", have.TieWordEmbeddings, want.TieWordEmbeddings},
		{"activation", activationOf(have), activationOf(want)},
		{"activation's gate", have.Gated, want.Gated},
		{"head_dim", have.HeadDim, want.HeadDim},
		{"rope_theta", have.RopeTheta, want.RopeTheta},
		{"rope_scaling", have.RopeScaling, want.RopeScaling},
		{"qkv_bias", have.QKVBias, want.QKVBias},
		{"norm_eps", have.RMSNormEps, want.RMSNormEps},
		{"norm", have.Norms, want.Norms},
		{"experts", have.Experts.Experts, want.Experts.Experts},
		{"experts_per_token", have.Experts.PerToken, want.Experts.PerToken},
	} {
		if f.have != f.want {
			differ = append(differ, fmt.Sprintf("model.%s %v, not %v", f.key, f.have, f.want))
		}
	}
	if differ == nil {
		return nil
	}
	return fmt.Errorf("it belongs to another model than the configuration's: its %s has %s", checkpoint.ConfigFile, strings.Join(differ, ", "))
}

// CheckpointWeights gives package infer access to a checkpoint's tensors. Scales is
// nil for weights without scale state.
type CheckpointWeights struct {
	Model  *checkpoint.Tensors
	Scales *checkpoint.Tensors
}

// Param returns a parameter, converted to FP32.
func (w CheckpointWeights) Param(name string) ([]float32, error) { return w.Model.Weight(name) }

// Scale returns the saved scale or history of this name.
func (w CheckpointWeights) Scale(name string) ([]float32, error) {
	if w.Scales == nil {
		return nil, fmt.Errorf("the weights have no scale state: %w %q", nn.ErrNoTensor, name)
	}
	return readFloats(w.Scales, name)
}

// ReadState reads a checkpoint's state.json.
func ReadState(c *checkpoint.Checkpoint) (State, error) {
	s, err := parseState(c.State)
	if err != nil {
		return State{}, fmt.Errorf("%s: state.json: %w", c.Path, err)
	}
	return s, nil
}

// parseState decodes state.json and rejects values that no run can have written.
// Checksums detect a damaged file, not an invalid one.
func parseState(text []byte) (State, error) {
	var s State
	if err := json.Unmarshal(text, &s); err != nil {
		return s, err
	}
	if s.Version != stateVersion {
		return s, fmt.Errorf("it has version %d, this octet reads version %d", s.Version, stateVersion)
	}
	for _, f := range []struct {
		name   string
		n, max int
	}{
		{"step", s.Step, math.MaxInt32},
		{"skipped", s.Skipped, s.Step},
		{"rewinds", s.Rewinds, MaxRewinds},
		{"reference_seq", s.ReferenceSeq, maxSize},
		{"spikes.begin", s.Spikes.Begin, s.Step},
		{"spikes.last", s.Spikes.Last, s.Step},
		{"the number of spikes.losses", len(s.Spikes.Losses), spikeWindow},
	} {
		if f.n < 0 || f.n > f.max {
			return s, fmt.Errorf("%s is %d: expected 0 to %d", f.name, f.n, f.max)
		}
	}
	return s, nil
}
