// Package inspect looks into what a run left behind, for a person whose run has
// gone wrong. It computes nothing that training needs, and needs no device.
//
//   - [Checkpoint] measures every tensor of a checkpoint and the scale state of
//     every cast, and says what of it looks unhealthy; [Model] those of weights alone.
//   - [Diff] finds where two runs part: the first step and field of their
//     metrics, and the tensor that differs most in their last common checkpoint.
//
// Tensors are streamed: a checkpoint of any size takes a megabyte of memory.
package inspect

import (
	"errors"
	"fmt"

	"octet/checkpoint"
	"octet/train"
)

// Report is what is in a checkpoint, or in weights alone, without a state.
type Report struct {
	Path    string      `json:"path"`
	State   train.State `json:"state,omitzero"`
	Tensors []Tensor    `json:"tensors"` // of the model, then of the optimizer
	Casts   []Cast      `json:"casts"`
	Health  []string    `json:"health"` // what is wrong, or may be; a sentence each
}

// Read is called as the bytes of tensors are read: with the number so far and of all.
type Read func(done, all int64)

// Checkpoint reads a whole checkpoint.
func Checkpoint(c *checkpoint.Checkpoint, read Read) (*Report, error) {
	state, err := train.ReadState(c)
	if err != nil {
		return nil, err
	}
	r := &Report{Path: c.Path, State: state, Health: []string{}}
	count := counted(read, c.Model, c.Optimizer)
	for _, file := range []struct {
		name    string
		tensors *checkpoint.Tensors
	}{{checkpoint.ModelFile, c.Model}, {checkpoint.OptimizerFile, c.Optimizer}} {
		if err := r.measure(file.name, file.tensors, count); err != nil {
			return nil, err
		}
	}
	if r.Casts, err = casts(c.Optimizer); err != nil {
		return nil, fmt.Errorf("%s: %w", c.Path, err)
	}
	r.examine()
	return r, nil
}

// Model reads weights alone, in Hugging Face's layout: an export, or somebody else's.
func Model(path string, read Read) (r *Report, err error) {
	config, tensors, err := checkpoint.OpenModel(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, tensors.Close()) }()
	r = &Report{Path: path, Casts: []Cast{}, Health: []string{}}
	if err := r.measure(checkpoint.ModelFile, tensors, counted(read, tensors)); err != nil {
		return nil, err
	}
	if err := tensors.Match(config); err != nil {
		r.find("%v", err)
	}
	r.examine()
	return r, nil
}

// counted adds up the bytes that are read of all tensors of real numbers.
func counted(read Read, files ...*checkpoint.Tensors) func(n int64) {
	done, all := int64(0), int64(0)
	for _, f := range files {
		for _, t := range f.List() {
			if t.DType.IsFloat() {
				all += elements(t.Shape) * int64(t.DType.Size())
			}
		}
	}
	return func(n int64) {
		done += n
		read(done, all)
	}
}

// measure adds the tensors of a file.
func (r *Report) measure(file string, tensors *checkpoint.Tensors, count func(n int64)) error {
	for _, t := range tensors.List() {
		measured, err := measure(tensors, t, count)
		if err != nil {
			return fmt.Errorf("%s: %s: %w", r.Path, t.Name, err)
		}
		measured.File = file
		r.Tensors = append(r.Tensors, measured)
	}
	return nil
}
