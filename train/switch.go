package train

import (
	"context"
	"errors"
	"fmt"

	"octet/data"
	"octet/fp8"
)

// hostState is the host copy of this rank's state during a change of recipe, in FP32.
type hostState struct {
	params  map[string][]float32 // masters
	moments map[string][]float32 // by the tensor's name
	records map[string][]float32 // scales and histories, by their names in Model.Unpack
	updates []byte               // optimizer.step

	position data.Position
}

// followSchedule changes to the recipe of the next step, if it is another.
//
// Masters and moments are dequantized and encoded in the new formats, rounded to
// nearest with current scales. Scales and histories that both recipes have are kept;
// a calibration fills new ones, as in the first step. A loss scale starts anew.
func (t *Trainer) followSchedule(ctx context.Context) error {
	phase := PhaseAt(t.Phases, t.step)
	switch {
	case t.hostState != nil: // retry a change that failed
	case t.device == nil:
		return errChangeFailed
	case phase == t.Phase:
		return nil
	default:
		c, err := t.copyToHost()
		if err != nil {
			return err
		}
		t.hostState = c
	}
	if err := t.changePhase(phase); err != nil {
		return err
	}
	return t.loadHostState(ctx, t.hostState)
}

// ensurePhase prepares the devices for a state of the given phase. It discards steps
// in flight and a failed change of recipe.
func (t *Trainer) ensurePhase(phase int) error {
	if err := t.dropFlights(); err != nil {
		return err
	}
	if phase != t.Phase || t.device == nil {
		if err := t.changePhase(phase); err != nil {
			return err
		}
	}
	t.hostState = nil
	return nil
}

// changePhase records the job of another phase, reopens the device and loads the job.
func (t *Trainer) changePhase(phase int) error {
	p := t.Phases[phase]
	if t.Reopen == nil {
		return fmt.Errorf("the change to recipe %s after step %d needs a newly opened device: set Trainer.Reopen", p.Config.Recipe, p.From)
	}
	j, err := recordJob(t.Phases, phase, t.Device, t.localAmax)
	if err != nil {
		return err
	}
	t.device = nil
	b, err := t.Reopen()
	if err != nil {
		return err
	}
	t.Job = j
	return t.open(b)
}

// errChangeFailed is returned by operations that need the state after a change of recipe failed.
var errChangeFailed = errors.New("a change of recipe failed and the devices do not hold the state: call Next to retry, or Restore")

// changeFailed reports whether a change of recipe has failed and is incomplete.
func (t *Trainer) changeFailed() bool { return t.device == nil || t.hostState != nil }

// errInFlight is returned by operations that need the state while a step in flight is
// changing it.
var errInFlight = errors.New("a step is in flight on the devices: call Next for its result first")

// errNoWeights is returned before weights are set, and after setting them failed.
var errNoWeights = errors.New("the weights are not set: call Init, InitFrom or Restore first")

func (t *Trainer) hasWeights() bool { return t.calibrated || t.histories != nil }

// forgetWeights marks the weights unset while new ones load.
func (t *Trainer) forgetWeights() { t.calibrated, t.histories = false, nil }

// stateError returns an error unless the devices hold the state after the last completed step.
func (t *Trainer) stateError() error {
	switch {
	case t.changeFailed():
		return errChangeFailed
	case t.UnderWay():
		return errInFlight
	case !t.hasWeights():
		return errNoWeights
	}
	return nil
}

// copyToHost copies the state from the device to the host.
func (t *Trainer) copyToHost() (*hostState, error) {
	c := &hostState{
		params: map[string][]float32{}, moments: map[string][]float32{}, records: map[string][]float32{},
		position: t.device.loader.Position(),
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
		x, err := t.localFloats(s)
		if err != nil {
			return nil, err
		}
		t.Model.Unpack(s, x, func(name string, _ []int, part []float32) { c.records[name] = part })
	}
	c.updates, err = t.readLocal(t.Step)
	return c, err
}

// loadHostState writes the host copy to the device, in the new recipe's formats.
func (t *Trainer) loadHostState(ctx context.Context, c *hostState) error {
	if err := t.setConstants(); err != nil {
		return err
	}
	amax, err := t.stateMaxima(ctx, c)
	if err != nil {
		return err
	}
	for _, p := range t.Model.Params {
		if err := t.setMaster(p, c.params[p.Name], amax[p.Name]); err != nil {
			return err
		}
	}
	for p, m := range t.moments() {
		if err := t.setMoment(p, m, c.moments[m.Name], amax[m.Name]); err != nil {
			return err
		}
	}
	// Scales and histories whose values depend on the form of Smooth-SwiGLU start empty.
	smoothed := t.Model.DependsOnSmoothing()
	for _, s := range t.Model.Packed() {
		x, err := t.Model.Pack(s, func(name string) ([]float32, error) {
			if smoothed(name) {
				return nil, nil
			}
			return c.records[name], nil
		})
		if err != nil {
			return err
		}
		if err := t.device.Write(s, fp8.AppendFloats(nil, x...)); err != nil {
			return err
		}
	}
	if err := t.device.Write(t.Step, c.updates); err != nil {
		return err
	}
	t.calibrated = false
	if err := t.saveHistories(); err != nil {
		return err
	}
	return errors.Join(t.device.loader.Restore(c.position), t.prepare(ctx))
}

// stateMaxima returns the largest magnitudes of masters and moments over all ranks, by name.
func (t *Trainer) stateMaxima(ctx context.Context, c *hostState) (map[string]float32, error) {
	var names []string
	var top []float32
	add := func(name string, x []float32) { names, top = append(names, name), append(top, fp8.Amax(x)) }
	for _, p := range t.Model.Params {
		add(p.Name, c.params[p.Name])
	}
	for _, m := range t.moments() {
		add(m.Name, c.moments[m.Name])
	}
	top, err := t.maxima(ctx, top)
	amax := map[string]float32{}
	for i, x := range top {
		amax[names[i]] = x
	}
	return amax, err
}
