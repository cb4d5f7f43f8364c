package run

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"octet/internal/config"
	"octet/train"
)

// NewConfig returns the configuration of a new run. It reads a TOML file, unless file is
// empty, and applies settings of the form "key=value", such as "train.steps=100" or
// "recipe=fp8-smooth"; octet train --dry-run prints all keys. A value that is not given
// comes from the preset and the recipe. Paths are relative to the current folder; NewConfig
// makes them absolute. Errors name the file's line or the setting.
func NewConfig(file string, settings ...string) (train.Config, error) {
	loaded, err := config.New(config.Args{File: file, Assignments: settings})
	if err != nil {
		return train.Config{}, err
	}
	return loaded.Config, nil
}

// ConfigOf returns the configuration of the run in dir. To make the run longer,
// raise its Train.Steps and start it with [Options].Resume.
func ConfigOf(dir string) (train.Config, error) {
	path := configPath(dir)
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() { // opening a pipe would block
		return train.Config{}, fmt.Errorf("%s is not a regular file: put one in its place", path)
	}
	loaded, err := config.Load(config.Args{File: path})
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return train.Config{}, notARun(dir)
	}
	if err != nil {
		return train.Config{}, err
	}
	return loaded.Config, nil
}

// checkResumed returns an error if a configuration differs from that of the run in dir by
// more than the length and the layout of the ranks.
func checkResumed(dir string, c train.Config) error {
	before, err := ConfigOf(dir)
	if err != nil {
		return err
	}
	// Checkpoints fit any layout, and with another one the tokens of a step stay the same by these.
	before.Train.Ranks, before.Train.Tensor, before.Train.ZeroStage = c.Train.Ranks, c.Train.Tensor, c.Train.ZeroStage
	before.Train.MicroBatch, before.Train.Accumulate = c.Train.MicroBatch, c.Train.Accumulate
	differing, err := config.Differences(config.Keys(), before, c)
	if err == nil && len(differing) > 0 {
		err = fmt.Errorf("%s holds a run with another configuration: %s; of a resumed run only train.steps, train.ranks, train.tensor_parallel, train.zero_stage, train.micro_batch and train.accumulate may change", dir, strings.Join(differing, ", "))
	}
	return err
}

// RateChange holds the learning rates around a resume that changes the length of a run: the
// schedule stretches or shrinks with it.
type RateChange struct {
	Shorter  bool
	From, To float64
}

// changeOfRate compares the learning rate of the last update with that of the next one. It
// returns nil if a longer run does not raise the rate, or would have raised it anyway, and if
// a shorter run does not change the next rate.
func changeOfRate(o train.Optimizer, done, before, steps int) *RateChange {
	if done == 0 || steps == before {
		return nil
	}
	next := o.LRAt(done, before)
	c := RateChange{Shorter: steps < before, From: o.LRAt(done-1, before), To: o.LRAt(done, steps)}
	if c.Shorter && c.To == next || !c.Shorter && c.To <= max(c.From, next) {
		return nil
	}
	return &c
}
