// Package inspect examines checkpoints and run folders, to find out why a run went wrong. It
// needs no device.
//
//   - [Checkpoint] measures every tensor of a checkpoint and the scale state of every cast,
//     and reports what looks unhealthy; [Model] does so for weights alone.
//   - [Diff] finds where two runs differ: the first step and field of their metrics, and the
//     tensor that differs most in their last common checkpoint.
//
// Tensors are streamed: a checkpoint of any size takes a megabyte of memory.
package inspect

import (
	"errors"
	"fmt"
	"strings"

	"octet/checkpoint"
	"octet/train"
)

// Report describes a checkpoint, or weights alone, which have no State.
type Report struct {
	Path    string      `json:"path"`
	State   train.State `json:"state,omitzero"`
	Tensors []Tensor    `json:"tensors"` // of the model, then of the optimizer
	Casts   []Cast      `json:"casts"`
	Health  []string    `json:"health"` // problems and possible problems, one sentence each
}

// Read receives the number of bytes of tensors read so far and the total.
type Read func(done, all int64)

// Checkpoint reads a checkpoint and reports on it.
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
	r.examine(c.Config)
	return r, nil
}

// Model reads weights alone, from a Hugging Face folder such as an export, and reports on
// them.
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
	r.examine(config)
	return r, nil
}

// counted returns a function that adds up the bytes read of all floating-point tensors and
// calls read.
func counted(read Read, files ...*checkpoint.Tensors) func(n int64) {
	done, all := int64(0), int64(0)
	for _, f := range files {
		for _, t := range f.List() {
			if t.DType.IsFloat() {
				all += t.Elems() * int64(t.DType.Size())
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
		measured, err := measure(tensors, t, r.rowElems(t), count)
		if err != nil {
			return fmt.Errorf("%s: %s: %w", r.Path, t.Name, err)
		}
		measured.File = file
		r.Tensors = append(r.Tensors, measured)
	}
	return nil
}

// rowElems returns the number of elements of a row: that of the parameter for its moments, which
// may be stored as vectors.
func (r *Report) rowElems(t checkpoint.Tensor) int64 {
	shape := t.Shape
	for _, parameter := range r.Tensors {
		if strings.HasPrefix(t.Name, parameter.Name+".m") {
			shape = parameter.Shape
		}
	}
	if len(shape) == 0 {
		return 1
	}
	return int64(max(1, shape[len(shape)-1]))
}
