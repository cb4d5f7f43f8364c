package main

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"octet/checkpoint"
	"octet/study/internal/finding"
	"octet/study/internal/weights"
)

// base is the variant of study/sweeps/emerge.toml whose models are amplified.
const base = "decay 0.1"

// exponents are those of κ, a power of two.
var exponents = []int{0, 4, 8, 10, 12, 14, 16, 18, 20, 22, 26, 30}

// rescued are the exponents of the runs that change their recipe.
var rescued = []int{16, 18}

// sizeRecipes and rescueVariants are what the two sweeps compare; bf16 is their baseline.
var sizeRecipes = []string{"bf16", "fp8-delayed", "fp8-current", "fp8-smooth", "fp8-paper", "fp8-w3-bf16"}

const (
	rescueStep  = 60
	rescueSteps = 120
)

var rescueVariants = []struct{ name, set string }{
	{"bf16", `"recipe=bf16"`},
	{"fp8-delayed", `"recipe=fp8-delayed"`},
	{"fp8-smooth", `"recipe=fp8-smooth"`},
	{"fp8-delayed, then bf16", `"recipe=fp8-delayed", ` + changeTo("bf16")},
	{"fp8-delayed, then fp8-smooth", `"recipe=fp8-delayed", ` + changeTo("fp8-smooth")},
}

// changeTo returns the setting that changes to a recipe after rescueStep.
func changeTo(recipe string) string {
	return fmt.Sprintf(`'precision.schedule=[{step=%d, recipe="%s"}]'`, rescueStep, recipe)
}

// writeAll writes amplified copies of the models of a sweep, and the files of two sweeps over them.
// It keeps a dir that is there, and removes one that is incomplete.
func writeAll(models, dir string) error {
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	byName, err := finding.Sweep(models, "study/sweeps/emerge.toml", base)
	if err != nil {
		return err
	}
	partial := dir + ".partial"
	if err := os.RemoveAll(partial); err != nil {
		return err
	}
	var conditions, rescues strings.Builder // of the sweep files
	for _, r := range byName[base] {
		entries, err := checkpoint.List(filepath.Join(r.Dir, checkpoint.Dir))
		if err != nil {
			return err
		}
		if len(entries) == 0 {
			return fmt.Errorf("%s has no checkpoint: train study/sweeps/emerge.toml again", r.Dir)
		}
		m, err := weights.Open(entries[0].Path)
		if err != nil {
			return err
		}
		seed := r.Config["seed"]
		if err := os.MkdirAll(filepath.Join(partial, "seed-"+seed), 0o777); err != nil {
			return err
		}
		for _, exponent := range exponents {
			below := filepath.Join("seed-"+seed, fmt.Sprintf("k%d", exponent))
			path, err := amplify(m, math.Exp2(float64(exponent))).Save(filepath.Join(partial, below))
			if err != nil {
				return err
			}
			line := fmt.Sprintf("  { name = \"2^%d model %s\", set = [\"seed=%s\", \"model.init=%s\"] },\n", exponent, seed, seed, filepath.Join(below, filepath.Base(path)))
			conditions.WriteString(line)
			if slices.Contains(rescued, exponent) {
				rescues.WriteString(line)
			}
		}
	}
	config, err := configPath(dir)
	if err != nil {
		return err
	}
	var variants strings.Builder
	for _, v := range rescueVariants {
		fmt.Fprintf(&variants, "  { name = %q, set = [%s] },\n", v.name, v.set)
	}
	// With a learning rate of 1e-12 four steps fill the histories of delayed scales, and no more.
	size := fmt.Sprintf("config = %q\nset = [\"train.steps=4\", \"train.health_every=1\", \"optimizer.lr=1e-12\", \"optimizer.min_lr=0\"]\nrecipes = [%s]\nconditions = [\n%s]\n",
		config, `"`+strings.Join(sizeRecipes, `", "`)+`"`, conditions.String())
	rescue := fmt.Sprintf("config = %q\nset = [\"train.steps=%d\", \"train.eval_every=5\", \"train.health_every=5\", \"optimizer.lr=2e-5\"]\nvariants = [\n%s]\nconditions = [\n%s]\n",
		config, rescueSteps, variants.String(), rescues.String())
	if err := errors.Join(
		os.WriteFile(filepath.Join(partial, "size.toml"), []byte(size), 0o666),
		os.WriteFile(filepath.Join(partial, "rescue.toml"), []byte(rescue), 0o666)); err != nil {
		return err
	}
	return os.Rename(partial, dir)
}

// configPath returns the path of study/base.toml relative to dir.
func configPath(dir string) (string, error) {
	to, errTo := filepath.Abs("study/base.toml")
	from, errFrom := filepath.Abs(dir)
	if err := errors.Join(errTo, errFrom); err != nil {
		return "", err
	}
	return filepath.Rel(from, to)
}

// amplify returns a copy of a model in which the activation of one channel of each layer is κ times
// as large: of the channel whose rows of up_proj and gate_proj have the largest |cos|.
func amplify(m *weights.Model, kappa float64) *weights.Model {
	c := m.Clone()
	dim, ffn := m.Config.HiddenSize, m.Config.IntermediateSize
	for i := range m.Config.NumHiddenLayers {
		at := fmt.Sprintf("model.layers.%d.mlp.", i)
		up, gate, down := c.Tensors[at+"up_proj.weight"], c.Tensors[at+"gate_proj.weight"], c.Tensors[at+"down_proj.weight"]
		channel, most := 0, 0.0
		for j, cosine := range m.Cosines(i) {
			if math.Abs(cosine) > most {
				channel, most = j, math.Abs(cosine)
			}
		}
		root := math.Sqrt(kappa)
		for j := channel * dim; j < (channel+1)*dim; j++ {
			up[j], gate[j] = float32(float64(up[j])*root), float32(float64(gate[j])*root)
		}
		for o := range dim {
			down[o*ffn+channel] = float32(float64(down[o*ffn+channel]) / kappa)
		}
	}
	return c
}

// exponentOf returns the exponent of κ of a model, from model.init.
func exponentOf(init string) (exponent int, err error) {
	folder := filepath.Base(filepath.Dir(init)) // without the name of the checkpoint
	if _, err := fmt.Sscanf(folder, "k%d", &exponent); err != nil {
		return 0, fmt.Errorf("model.init = %q is not a model of study/amplify", init)
	}
	return exponent, nil
}
