package run

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"octet/checkpoint"
	"octet/data"
	"octet/internal/config"
	"octet/nn"
	"octet/recipe"
	"octet/tokenizer"
	"octet/train"
)

// Weights is an opened model: from a run folder (its newest intact checkpoint), a
// checkpoint, or a Hugging Face folder.
type Weights struct {
	train.CheckpointWeights
	Path   string
	HF     checkpoint.Config // config.json of the folder
	Model  nn.Config
	Recipe recipe.Recipe
	// Run is the configuration of the run that trained the model; nil for weights without a
	// run.
	Run     *train.Config
	RunDir  string
	Skipped []checkpoint.Entry
	close   func() error
}

// Close closes the files.
func (w *Weights) Close() error { return w.close() }

// OpenWeights opens the model at path. recipeName overrides the recipe of its training;
// weights without a run use fp32 by default.
func OpenWeights(path, recipeName string) (*Weights, error) {
	w := &Weights{Path: path}
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		return nil, fmt.Errorf("%s: no such run, checkpoint or model folder", path)
	}
	if HoldsCheckpoint(path) {
		c, skipped, err := OpenCheckpoint(path)
		if err != nil {
			return nil, err
		}
		w.Skipped = skipped
		if Exists(path) {
			w.RunDir = path
		} else if dir := filepath.Dir(filepath.Dir(path)); Exists(dir) {
			w.RunDir = dir
		}
		return w, w.fromCheckpoint(c, recipeName)
	}
	hf, tensors, err := checkpoint.OpenModel(path)
	if err != nil {
		return nil, err
	}
	w.close = tensors.Close
	w.CheckpointWeights.Model = tensors
	if err := w.describe(hf); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	if recipeName == "" {
		recipeName = "fp32"
	}
	if w.Recipe, err = config.FindRecipe(recipeName); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// HoldsCheckpoint reports whether path is a run folder or a checkpoint, rather than a folder
// of bare weights.
func HoldsCheckpoint(path string) bool {
	return Exists(path) || exists(filepath.Join(path, checkpoint.ManifestFile))
}

// OpenCheckpoint opens a checkpoint, or the newest intact one of a run folder; skipped lists
// the newer, damaged ones.
func OpenCheckpoint(path string) (c *checkpoint.Checkpoint, skipped []checkpoint.Entry, err error) {
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		return nil, nil, fmt.Errorf("%s: no such run or checkpoint folder", path)
	}
	if !Exists(path) {
		c, err = checkpoint.Open(path)
		return c, nil, err
	}
	c, skipped, err = checkpoint.Newest(filepath.Join(path, checkpointsDir))
	if errors.Is(err, checkpoint.ErrNone) && len(skipped) > 0 {
		err = fmt.Errorf("all checkpoints of the run are damaged, the newest: %w", skipped[0].Damage)
	} else if errors.Is(err, checkpoint.ErrNone) {
		err = fmt.Errorf("%s: the run has no checkpoint yet", path)
	}
	return c, skipped, err
}

// fromCheckpoint takes the weights from an open checkpoint and closes it on an error.
func (w *Weights) fromCheckpoint(c *checkpoint.Checkpoint, recipeName string) error {
	w.Path, w.close = c.Path, c.Close
	w.CheckpointWeights.Model, w.CheckpointWeights.Scales = c.Model, c.Optimizer
	err := w.describe(c.Config)
	var state train.State
	if err == nil {
		state, err = train.ReadState(c)
	}
	if err == nil {
		err = w.recipeOf(recipeName, state.Step)
	}
	if err != nil {
		return errors.Join(err, w.Close())
	}
	return nil
}

// recipeOf sets the recipe: the named one, or that of the run's last step.
func (w *Weights) recipeOf(name string, step int) (err error) {
	if w.RunDir != "" {
		loaded, err := config.Load(config.Args{File: configPath(w.RunDir)})
		if err != nil {
			return err
		}
		w.Run = &loaded.Config
	}
	switch {
	case name != "":
		w.Recipe, err = config.FindRecipe(name)
	case w.Run != nil:
		var phases []train.Phase
		if phases, err = w.Run.Phases(); err == nil {
			w.Recipe, err = phases[train.PhaseAt(phases, step-1)].Config.ResolvedRecipe()
		}
	default:
		w.Recipe, err = recipe.Lookup("fp32")
	}
	if err == nil && w.Recipe.Smooth.On() && w.Model.Activation == nn.SwiGLU {
		w.Model.Activation = nn.SmoothSwiGLU
	}
	return err
}

// describe sets the model from config.json and checks it against the tensors, before any
// memory for the model is allocated.
func (w *Weights) describe(c checkpoint.Config) (err error) {
	w.HF = c
	if w.Model, err = train.FromHF(c); err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(w.Path, checkpoint.ConfigFile), err)
	}
	return w.CheckpointWeights.Model.Match(c)
}

// ErrNoTokenizer is wrapped by the error of [Weights.Tokenizer] for a folder without one.
var ErrNoTokenizer = errors.New("there is no tokenizer")

// Tokenizer opens the tokenizer beside the weights. Models of bytes have one without a file.
func (w *Weights) Tokenizer() (*tokenizer.Bundle, error) {
	if !tokenizer.In(w.Path) {
		if w.Model.Vocab == data.TextVocab {
			return tokenizer.OfBytes(), nil
		}
		return nil, fmt.Errorf("%s: %w: copy tokenizer.json or tokenizer.model of its %d tokens there", w.Path, ErrNoTokenizer, w.Model.Vocab)
	}
	b, err := tokenizer.OpenBundle(w.Path)
	if err != nil {
		return nil, err
	}
	if n := b.Vocab(); n > w.Model.Vocab {
		return nil, fmt.Errorf("%s: the tokenizer has %d tokens, but the model %d: it belongs to another model", w.Path, n, w.Model.Vocab)
	}
	return b, nil
}
