package train

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math"
	"strings"

	"octet/backend"
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
// makes room for.
func (t *Trainer) ensurePhase(phase int) error {
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

// carry copies the first rank's state; all ranks have the same.
func (t *Trainer) carry() (*carried, error) {
	r := t.ranks[0]
	c := &carried{
		params: map[string][]float32{}, moments: map[string][]float32{}, records: map[string][]float32{},
		position: r.loader.Position(),
	}
	var err error
	for _, p := range t.Model.Params {
		if c.params[p.Name], err = r.readMaster(p); err != nil {
			return nil, err
		}
	}
	for _, m := range t.moments() {
		if c.moments[m.Name], err = r.readMoment(m); err != nil {
			return nil, err
		}
	}
	for _, s := range t.Model.Packed() {
		x, err := r.readFloats(s)
		if err != nil {
			return nil, err
		}
		t.Model.Unpack(s, x, func(name string, _ []int, part []float32) { c.records[name] = part })
	}
	c.updates, err = r.read(t.Step)
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
		if err := t.writeAll(s, floatBytes(x...)); err != nil {
			return err
		}
	}
	if err := t.writeAll(t.Step, c.updates); err != nil {
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

func (r *rank) readFloats(t *backend.Tensor) ([]float32, error) {
	raw, err := r.read(t)
	if err != nil {
		return nil, err
	}
	x := make([]float32, t.Elems())
	for i := range x {
		x[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
	}
	return x, nil
}

// readMoment is a moment as the optimizer sees it.
func (r *rank) readMoment(m *backend.Tensor) ([]float32, error) {
	if m.DType == fp8.F32 {
		return r.readFloats(m)
	}
	raw, err := r.read(m)
	if err != nil {
		return nil, err
	}
	x := make([]float32, m.Elems())
	for i := range x {
		if m.DType.Size() == 1 {
			x[i] = m.DType.Float32(uint32(raw[i]))
		} else {
			x[i] = m.DType.Float32(uint32(binary.LittleEndian.Uint16(raw[2*i:])))
		}
	}
	if m.Scale == nil {
		return x, nil
	}
	scaleInv, err := r.readFloats(m.Scale)
	if err != nil {
		return nil, err
	}
	dequantizeMoment(m, x, scaleInv)
	return x, nil
}

func dequantizeMoment(m *backend.Tensor, x, scaleInv []float32) {
	for i, block := range momentBlocks(m, x) {
		for k := range block {
			block[k] *= scaleInv[i]
		}
	}
}

// moments yields both moments of each parameter.
func (t *Trainer) moments() iter.Seq2[*nn.Param, *backend.Tensor] {
	return func(yield func(*nn.Param, *backend.Tensor) bool) {
		for _, p := range t.Model.Params {
			if !yield(p, t.optimizer.m1[p]) || !yield(p, t.optimizer.m2[p]) {
				return
			}
		}
	}
}

// setMoment stores a moment of p in its format, with scales of its own.
func (t *Trainer) setMoment(p *nn.Param, m *backend.Tensor, x []float32) error {
	o := t.Recipe.Optimizer
	codes, scaleInv := encodeMoment(m, x, o.Pow2, o.FloorV && m == t.optimizer.m2[p])
	if err := t.writeAll(m, codes); err != nil || m.Scale == nil {
		return err
	}
	return t.writeAll(m.Scale, floatBytes(scaleInv...))
}

// encodeMoment stores a moment in the format of m, to nearest, with the scales
// that AdamW would give it. With floor what is positive does not become 0.
func encodeMoment(m *backend.Tensor, x []float32, pow2, floor bool) (codes []byte, scaleInv []float32) {
	if m.DType == fp8.F32 {
		return floatBytes(x...), nil
	}
	codes = make([]byte, 0, m.Bytes())
	for _, block := range momentBlocks(m, x) {
		scale := float32(1)
		if m.Scale != nil {
			scale, _ = fp8.ScaleFor(fp8.Amax(block), m.DType.Max(), pow2)
			scaleInv = append(scaleInv, 1/scale)
		}
		for _, v := range block {
			code := m.DType.Nearest(v*scale, fp8.Saturate)
			if floor && v > 0 && code == 0 {
				code = 1 // the format's smallest number
			}
			codes = append(codes, byte(code))
			if m.DType.Size() == 2 {
				codes = append(codes, byte(code>>8))
			}
		}
	}
	return codes, scaleInv
}

// momentBlocks cuts a moment's values into what shares a scale: all of them, or
// a range of a row.
func momentBlocks(m *backend.Tensor, x []float32) (list [][]float32) {
	width := m.Block.Cols
	if width == 0 {
		return [][]float32{x}
	}
	for row := range m.Rows() {
		of := x[row*m.Cols():][:m.Cols()]
		for from := 0; from < len(of); from += width {
			list = append(list, of[from:min(from+width, len(of))])
		}
	}
	return list
}
