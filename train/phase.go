package train

import (
	"fmt"
	"slices"

	"octet/backend"
	"octet/nn"
	"octet/recipe"
)

// Phase is a part of a run that uses one recipe.
type Phase struct {
	From   int    // number of completed steps at which it starts
	Config Config // resolved; its recipe is the phase's, and it has no schedule
}

// Phases returns the phases of a run as precision.schedule defines them, one
// without a schedule.
//
// Settings that differ from the choices of the config's recipe were given by the
// user and apply in every phase, as when the command line names another recipe
// ([Config.ForgetRecipe]). Phases in which no layer reads an MLP's hidden activation
// in FP8 ignore the settings of Smooth-SwiGLU.
func (c Config) Phases() ([]Phase, error) {
	if err := c.Resolve(); err != nil {
		return nil, err
	}
	list, err := c.phases()
	if err != nil {
		return nil, err
	}
	return list, checkRows(list)
}

// checkRows reports a row that has no effect under any recipe of the run.
func checkRows(phases []Phase) error {
	c := phases[0].Config
	layers, err := c.linears()
	if err != nil {
		return err
	}
	for i := range c.Precision.Rows {
		hasEffect := false
		for _, p := range phases {
			r, err := p.Config.ResolvedRecipe()
			if err != nil {
				return err
			}
			hasEffect = hasEffect || r.RowHasEffect(i, layers)
		}
		if !hasEffect {
			return fmt.Errorf("precision.rows[%d] has no effect under recipe %s: an earlier row decides its fields, its operands are not FP8, or smooth-swiglu chooses their scaling; change or drop the row", i, c.Recipe)
		}
	}
	return nil
}

// phases is Phases of a resolved config.
func (c Config) phases() ([]Phase, error) {
	schedule := c.Precision.Schedule
	c.Precision.Schedule = nil
	list := []Phase{{Config: c}}
	if len(schedule) == 0 {
		return list, nil
	}
	own, err := recipe.Lookup(c.Recipe)
	if err != nil {
		return nil, err
	}
	c.ForgetRecipe(Choices(own))
	for _, change := range schedule {
		c.Recipe = change.Recipe
		list = append(list, Phase{From: change.Step, Config: c})
	}
	for i := range list {
		p := &list[i].Config
		if err = p.dropUnusedSmooth(); err == nil {
			err = p.Resolve()
		}
		if err != nil {
			return nil, fmt.Errorf("under recipe %s, from step %d on: %w", p.Recipe, list[i].From, err)
		}
	}
	return list, nil
}

// dropUnusedSmooth unsets the settings of Smooth-SwiGLU if no layer reads an MLP's hidden
// activation in FP8.
func (c *Config) dropUnusedSmooth() error {
	r, err := c.ResolvedRecipe()
	if err != nil {
		return err
	}
	layers, err := c.linears()
	if err != nil || slices.ContainsFunc(layers, r.QuantizesHidden) {
		return err
	}
	if nn.Activation(c.Model.Activation) == nn.SmoothSwiGLU {
		c.Model.Activation = ""
	}
	c.Precision.Smooth, c.Precision.SmoothScaling = "", ""
	c.Precision.SmoothExact, c.Precision.SmoothMargin = nil, nil
	return nil
}

// PhaseAt returns the index of the phase of the step that follows done completed
// steps.
func PhaseAt(phases []Phase, done int) int {
	at := 0
	for i, p := range phases {
		if p.From <= done {
			at = i
		}
	}
	return at
}

// LargestJob records the job of every phase and returns the one that needs the most
// device memory, with its lowered programs. It needs no device. m.Snapshot is the
// maximum over all phases.
func LargestJob(c Config, s backend.Spec) (largest *Job, lowered []*backend.Program, m Memory, err error) {
	phases, err := c.Phases()
	if err != nil {
		return nil, nil, m, err
	}
	var snapshot int64
	for i := range phases {
		j, err := recordJob(phases, i, s, false)
		if err != nil {
			return nil, nil, m, err
		}
		programs, err := backend.Lower(s, j.Programs()...)
		if err != nil {
			return nil, nil, m, err
		}
		need, err := j.MemoryOf(s, programs...)
		if err != nil {
			return nil, nil, m, err
		}
		snapshot = max(snapshot, need.Snapshot)
		if largest == nil || need.Total() > m.Total() {
			largest, lowered, m = j, programs, need
		}
	}
	m.Snapshot = snapshot
	return largest, lowered, m, nil
}
