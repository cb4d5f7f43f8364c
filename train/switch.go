package train

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"octet/data"
	"octet/fp8"
	"octet/nn"
)

// carried is a run off its devices, on the way from one recipe to another: in
// FP32, whatever format either of them keeps it in.
type carried struct {
	params  map[string][]float32 // masters
	moments map[string][]float32 // by the tensor's name
	records map[string][]float32 // scales and histories, by the names of Model.Unpack
	updates []byte               // optimizer.step

	position data.Position
}

// followSchedule changes to the recipe of the next step, where that is another.
//
// Masters and moments are dequantised and stored in the new formats, rounded to
// nearest with scales of their own maxima. Scales and histories that both
// recipes have stay; what is new is filled by a calibration, as before the
// first step.
func (t *Trainer) followSchedule(ctx context.Context) error {
	phase := PhaseAt(t.Phases, t.step)
	switch {
	case t.carried != nil: // a change that failed
	case len(t.ranks) == 0:
		return errBetween
	case phase == t.Phase:
		return nil
	default:
		c, err := t.carry()
		if err != nil {
			return err
		}
		t.carried = c
	}
	if err := t.changePhase(phase); err != nil {
		return err
	}
	return t.takeOver(ctx, t.carried)
}

// ensurePhase gets ready for the state of a phase, which whatever was under way
// makes room for: a change of recipe, steps whose results nobody wants.
func (t *Trainer) ensurePhase(phase int) error {
	if err := t.forgetFlights(); err != nil {
		return err
	}
	if phase != t.Phase || len(t.ranks) == 0 {
		if err := t.changePhase(phase); err != nil {
			return err
		}
	}
	t.carried = nil
	return nil
}

// changePhase records the job of another phase and loads it on devices that are
// opened for it.
func (t *Trainer) changePhase(phase int) error {
	p := t.Phases[phase]
	if t.Reopen == nil {
		return fmt.Errorf("recipe %s takes over after step %d, for which the trainer needs devices: set Trainer.Reopen", p.Config.Recipe, p.From)
	}
	j, err := recordJob(t.Phases, phase, t.Device, t.localAmax)
	if err != nil {
		return err
	}
	t.ranks = nil
	devices, err := t.Reopen()
	if err != nil {
		return err
	}
	t.Job = j
	return t.open(devices)
}

// errBetween is for who goes on with a trainer after a change of recipe failed.
var errBetween = errors.New("the trainer's state is on no device, since a change of recipe failed: call Next again, or Restore")

// between reports whether a change of recipe failed half way.
func (t *Trainer) between() bool { return len(t.ranks) == 0 || t.carried != nil }

// errUnderWay is for who wants the state behind a step, which another one is about
// to change.
var errUnderWay = errors.New("a step is under way on the devices: call Next for its result first")

// errNoWeights is for who begins without any, or goes on where they could not be set.
var errNoWeights = errors.New("the weights are not set: call Init, InitFrom or Restore first")

func (t *Trainer) hasWeights() bool { return t.calibrated || t.histories != nil }

// forgetWeights is for who sets others: a part of them is none.
func (t *Trainer) forgetWeights() { t.calibrated, t.histories = false, nil }

// settled is why the devices do not have the state behind the last completed step.
func (t *Trainer) settled() error {
	switch {
	case t.between():
		return errBetween
	case t.UnderWay():
		return errUnderWay
	case !t.hasWeights():
		return errNoWeights
	}
	return nil
}

// carry copies the ranks' state.
func (t *Trainer) carry() (*carried, error) {
	c := &carried{
		params: map[string][]float32{}, moments: map[string][]float32{}, records: map[string][]float32{},
		position: t.ranks[0].loader.Position(),
	}
	var err error
	for _, p := range t.Model.Params {
		if c.params[p.Name], err = t.readMaster(p); err != nil {
			return nil, err
		}
	}
	for _, m := range t.moments() {
		if c.moments[m.Name], err = t.readMoment(m); err != nil {
			return nil, err
		}
	}
	for _, s := range t.Model.Packed() {
		x, err := t.readFloats(s)
		if err != nil {
			return nil, err
		}
		t.Model.Unpack(s, x, func(name string, _ []int, part []float32) { c.records[name] = part })
	}
	c.updates, err = t.read(t.Step)
	return c, err
}

// takeOver sets everything to what was carried.
func (t *Trainer) takeOver(ctx context.Context, c *carried) error {
	if err := t.setConstants(); err != nil {
		return err
	}
	if err := t.setMasters(func(p *nn.Param) ([]float32, error) { return c.params[p.Name], nil }); err != nil {
		return err
	}
	for p, m := range t.moments() {
		if err := t.setMoment(p, m, c.moments[m.Name]); err != nil {
			return err
		}
	}
	for _, s := range t.Model.Packed() {
		x, err := t.Model.Pack(s, func(name string) ([]float32, error) { return c.record(name), nil })
		if err != nil {
			return err
		}
		if err := t.write(s, fp8.AppendFloats(nil, x...)); err != nil {
			return err
		}
	}
	if err := t.write(t.Step, c.updates); err != nil {
		return err
	}
	t.calibrated = false
	if err := t.rememberHistories(); err != nil {
		return err
	}
	return errors.Join(t.moveTo(c.position), t.prepare(ctx))
}

// record is a part of the scale state that the recipes share, or nil. What w3
// reads and the gradient that it passes on are not the same numbers under
// another Smooth-SwiGLU, so their records always begin anew.
func (c *carried) record(name string) []float32 {
	if strings.Contains(name, ".mlp.hidden.") || strings.Contains(name, ".mlp.down_proj.") {
		return nil
	}
	return c.records[name]
}
