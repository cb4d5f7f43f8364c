package train

import (
	"fmt"

	"octet/backend"
	"octet/nn"
	"octet/recipe"
)

// Phase is a part of a run that computes under one recipe.
type Phase struct {
	From   int    // steps that are done when it begins
	Config Config // resolved; its recipe is the phase's, and it has no schedule
}

// Phases are the parts that precision.schedule cuts a run into: one without a
// schedule.
//
// What the config says beside the choices of its own recipe is the user's word
// and holds in every phase, as it does when another recipe is named on the
// command line ([Config.ForgetRecipe]). Settings of Smooth-SwiGLU are left out
// of phases in which no down_proj reads FP8: they have no meaning there.
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

// checkRows refuses a row that no recipe of the run follows.
func checkRows(phases []Phase) error {
	c := phases[0].Config
	for i := range c.Precision.Rows {
		heeded := false
		for _, p := range phases {
			r, err := p.Config.ResolvedRecipe()
			if err != nil {
				return err
			}
			heeded = heeded || r.Heeds(i, c.Model.Layers)
		}
		if !heeded {
			return fmt.Errorf("precision.rows[%d] changes nothing under recipe %s: the first row that matches decides, a scaling is for FP8, and smooth-swiglu chooses those of down_proj's input and weight", i, c.Recipe)
		}
	}
	return nil
}

// phases cuts a config that is filled.
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
		if err = p.forgetVainSmooth(); err == nil {
			err = p.Resolve()
		}
		if err != nil {
			return nil, fmt.Errorf("under recipe %s, from step %d on: %w", p.Recipe, list[i].From, err)
		}
	}
	return list, nil
}

// forgetVainSmooth takes back the settings of Smooth-SwiGLU where the recipe has
// nothing to smooth.
func (c *Config) forgetVainSmooth() error {
	r, err := c.ResolvedRecipe()
	if err != nil || smoothsAny(r, c.Model.Layers) {
		return err
	}
	if nn.Activation(c.Model.Activation) == nn.SmoothSwiGLU {
		c.Model.Activation = ""
	}
	c.Precision.Smooth, c.Precision.SmoothFactors = "", ""
	c.Precision.SmoothExact, c.Precision.SmoothMargin = nil, nil
	return nil
}

// PhaseAt is the index of the phase that the step after done completed ones
// belongs to.
func PhaseAt(phases []Phase, done int) int {
	at := 0
	for i, p := range phases {
		if p.From <= done {
			at = i
		}
	}
	return at
}

// LargestJob records the job of every phase and returns the one that takes most
// memory on a device, with its lowered programs. It needs no device.
func LargestJob(c Config, d backend.Driver, s backend.Spec) (largest *Job, lowered []*backend.Program, m Memory, err error) {
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
		programs, err := j.Lowered(d, s)
		if err != nil {
			return nil, nil, m, err
		}
		need, err := j.MemoryOf(d, s, programs)
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
