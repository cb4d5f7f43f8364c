package infer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"octet/backend"
	"octet/fp8"
	"octet/nn"
	"octet/recipe"
)

// Weights provides the parameters and the scale state of a model.
type Weights interface {
	// Param returns a parameter by its Hugging Face name, without padding rows.
	Param(name string) ([]float32, error)
	// Scale returns a scale or history of the saved scale state by name, or an error
	// that wraps nn.ErrNoTensor if there is none.
	Scale(name string) ([]float32, error)
}

// Limited is implemented by devices that limit memory and whose memory is the host's
// (backend.Spec.HostMemory). They are asked before any allocation whether a model fits.
// Other devices return an error when they allocate.
type Limited interface {
	// Fits returns an error if the model, which needs this many bytes of host memory,
	// does not fit.
	Fits(bytes int64) error
}

// session is a model on a device, with its weights cast.
type session struct {
	model   *nn.Model
	vars    *backend.Vars
	dev     backend.Backend
	control *backend.Tensor
	bytes   []byte
}

// newSession declares the model. Masters are F32: a checkpoint's model file holds the
// exact values of its dequantized masters.
func newSession(c nn.Config, r recipe.Recipe, spec backend.Spec) (*session, error) {
	layers, err := c.Linears()
	if err != nil {
		return nil, err
	}
	r, _, err = nn.RecipeFor(spec, r, layers)
	if err != nil {
		return nil, err
	}
	r.Optimizer = recipe.Optimizer{Master: fp8.F32, M1: fp8.F32, M2: fp8.F32}
	s := &session{vars: backend.NewVars()}
	if s.model, err = nn.New(c, r, s.vars); err != nil {
		return nil, err
	}
	s.control = s.vars.Tensor(backend.Input, "step.control", fp8.I32, backend.ControlWords)
	return s, nil
}

func (s *session) pass(name string, batch, seq int) *nn.Pass {
	return s.model.Pass(s.vars.Program(name), nn.Frozen, nn.Shape{Batch: batch, Seq: seq, Control: s.control})
}

// start reads the saved scales of w, and loads and prepares as prepare does. It returns the
// programs without that of the casts.
func (s *session) start(ctx context.Context, w Weights, programs ...*backend.Program) ([]backend.Executable, error) {
	scales, err := s.scales(w)
	if err != nil {
		return nil, err
	}
	loaded, err := s.prepare(w, scales, programs...)
	if err != nil {
		return nil, err
	}
	return loaded[:len(programs)], loaded[len(programs)].Run(ctx)
}

// prepare binds and loads the programs and, after them, one that casts the weights. It
// writes weights and scales; nil scales are 1, with an empty history.
func (s *session) prepare(w Weights, scales map[*backend.Tensor][]float32, programs ...*backend.Program) ([]backend.Executable, error) {
	cast := s.model.Pass(s.vars.Program("prepare"), nn.Train, nn.Shape{Control: s.control})
	s.model.CastWeights(cast)
	programs = slices.Concat(programs, []*backend.Program{cast.Program})
	if l, ok := s.dev.(Limited); ok && s.dev.Spec().HostMemory {
		need, err := s.memory(programs)
		if err == nil {
			err = l.Fits(need)
		}
		if err != nil {
			return nil, err
		}
	}
	loaded, err := backend.Load(s.dev, programs...)
	if err != nil {
		return nil, err
	}
	if err := s.setWeights(w); err != nil {
		return nil, err
	}
	for t, x := range scales {
		if err := s.write(t, x); err != nil {
			return nil, err
		}
	}
	return loaded, nil
}

// memory returns the bytes that the programs and their variables need, plus the host's
// buffers for one parameter at a time: its values as read, padded, and as bytes.
func (s *session) memory(programs []*backend.Program) (int64, error) {
	spec := s.dev.Spec()
	lowered, err := backend.Lower(spec, programs...)
	if err != nil {
		return 0, err
	}
	outline, err := backend.OutlineOf(spec, lowered...)
	if err != nil {
		return 0, err
	}
	need, largest := outline.Temps, 0
	for _, share := range outline.Extra {
		need += share.Bytes
	}
	for t := range s.vars.All() {
		need += t.Bytes()
	}
	for _, p := range s.model.Params {
		largest = max(largest, p.Elems())
	}
	return need + 3*4*int64(largest), nil
}

func (s *session) setWeights(w Weights) error {
	for t, value := range s.model.Constants() {
		if err := s.write(t, slices.Repeat([]float32{value}, t.Elems())); err != nil {
			return err
		}
	}
	for _, p := range s.model.Params {
		x, err := w.Param(p.Name)
		if err == nil {
			x, err = p.Padded(x)
		}
		if err != nil {
			return err
		}
		if err := s.write(p.Master, x); err != nil {
			return err
		}
	}
	return nil
}

// scales returns the values of the packed tensors of the scale state, from saved scales.
// The error wraps ErrNoScales if w lacks any.
func (s *session) scales(w Weights) (map[*backend.Tensor][]float32, error) {
	values := map[*backend.Tensor][]float32{}
	for _, t := range s.model.Packed() {
		x, err := s.model.Pack(t, w.Scale)
		if errors.Is(err, nn.ErrNoTensor) {
			return nil, fmt.Errorf("recipe %s needs %w: %w (weights from other programs and from a run with another last recipe have none; use --recipe bf16 or fp32, or octet eval, which measures them)", s.model.Recipe.Name, ErrNoScales, err)
		}
		if err != nil {
			return nil, err
		}
		values[t] = x
	}
	return values, nil
}

func (s *session) write(t *backend.Tensor, x []float32) error {
	s.bytes = fp8.AppendFloats(s.bytes[:0], x...)
	return s.dev.Write(t, s.bytes)
}

func (s *session) writeInts(t *backend.Tensor, x []int32) error {
	s.bytes = s.bytes[:0]
	for _, v := range x {
		s.bytes = binary.LittleEndian.AppendUint32(s.bytes, uint32(v))
	}
	return s.dev.Write(t, s.bytes)
}

// at sets the position of the next pass's first row.
func (s *session) at(position int) error {
	s.bytes = backend.Control{Position: int32(position)}.AppendTo(s.bytes[:0])
	return s.dev.Write(s.control, s.bytes)
}
