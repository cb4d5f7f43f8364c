package train

import (
	"context"
	"errors"
	"slices"

	"octet/backend"
	"octet/data"
	"octet/fp8"
	"octet/nn"
)

// Init sets all tensors to their initial values: parameters drawn from the seed,
// scales 1, moments and histories 0. The data starts at the first epoch. A trainer
// that has run before restarts at step 0.
func (t *Trainer) Init(ctx context.Context) error {
	return t.initWith(ctx, func(p *nn.Param) ([]float32, error) {
		return p.Init(uint64(t.Config.Seed)), nil
	})
}

// initWith is Init with given parameters: values returns [Param.Elems()], padding
// rows included.
func (t *Trainer) initWith(ctx context.Context, values func(*nn.Param) ([]float32, error)) error {
	if err := t.ensurePhase(0); err != nil {
		return err
	}
	t.forgetWeights()
	for s := range t.Vars.All() {
		if s.Class == backend.State {
			if err := t.device.Write(s, make([]byte, s.Bytes())); err != nil {
				return err
			}
		}
	}
	if err := t.setConstants(); err != nil {
		return err
	}
	if err := t.setMasters(values); err != nil {
		return err
	}
	t.step, t.skipped, t.rewinds, t.calibrated = 0, 0, 0, false
	t.spikes, t.outliers, t.reference = spikes{}, outlierWatch{}, reference{}
	if err := t.saveHistories(); err != nil {
		return err
	}
	return errors.Join(t.device.loader.Restore(data.Position{}), t.prepare(ctx))
}

// setMasters writes this rank's rows of parameters in the formats of their masters. values
// returns all rows.
func (t *Trainer) setMasters(values func(*nn.Param) ([]float32, error)) error {
	for _, p := range t.Model.Params {
		x, err := values(p)
		if err != nil {
			return err
		}
		if err := t.setMaster(p, t.localPart(p.Master, x), fp8.Amax(x)); err != nil {
			return err
		}
	}
	return nil
}

// setConstants writes the tensors whose initial value is not zero, parameters aside.
func (t *Trainer) setConstants() error {
	for to, value := range t.optimizer.constants() {
		if err := t.device.Write(to, fp8.AppendFloats(nil, slices.Repeat([]float32{value}, to.Elems())...)); err != nil {
			return err
		}
	}
	return nil
}

// prepare casts the weights.
func (t *Trainer) prepare(ctx context.Context) error { return t.run(ctx, t.device.prepare) }
