// Package inspect looks into what a run left behind, for a person whose run has
// gone wrong. It computes nothing that training needs, and needs no device.
//
//   - [Checkpoint] measures every tensor of a checkpoint and the scale state of
//     every cast, and says what of it looks unhealthy.
//   - [Diff] finds where two runs part: the first step and field of their
//     metrics, and the tensor that differs most in their last common checkpoint.
//
// Tensors are streamed: a checkpoint of any size takes a megabyte of memory.
package inspect

import (
	"fmt"

	"octet/checkpoint"
	"octet/train"
)

// Report is what is in a checkpoint.
type Report struct {
	Path    string      `json:"path"`
	State   train.State `json:"state"`
	Tensors []Tensor    `json:"tensors"` // of the model, then of the optimizer
	Casts   []Cast      `json:"casts"`
	Health  []string    `json:"health"` // what is wrong, or may be; a sentence each
}

// Checkpoint reads a whole checkpoint.
func Checkpoint(c *checkpoint.Checkpoint) (*Report, error) {
	state, err := train.ReadState(c)
	if err != nil {
		return nil, err
	}
	r := &Report{Path: c.Path, State: state, Health: []string{}}
	for _, file := range []struct {
		name    string
		tensors *checkpoint.Tensors
	}{{checkpoint.ModelFile, c.Model}, {checkpoint.OptimizerFile, c.Optimizer}} {
		for _, t := range file.tensors.List() {
			measured, err := measure(file.tensors, t)
			if err != nil {
				return nil, fmt.Errorf("%s: %s: %w", c.Path, t.Name, err)
			}
			measured.File = file.name
			r.Tensors = append(r.Tensors, measured)
		}
	}
	if r.Casts, err = casts(c.Optimizer); err != nil {
		return nil, fmt.Errorf("%s: %w", c.Path, err)
	}
	r.examine()
	return r, nil
}
