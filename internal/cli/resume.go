package cli

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"octet/backend/world"
	"octet/internal/config"
	"octet/run"
	"octet/train"
)

// changeable are the settings that a resumed run may change, the length of the run, the layout of its
// ranks, and what keeps the tokens of a step with another layout, with their values.
var changeable = map[string]func(train.Config) int{
	"train.steps":           func(c train.Config) int { return c.Train.Steps },
	ranksKey:                func(c train.Config) int { return c.Train.Ranks },
	"train.tensor_parallel": func(c train.Config) int { return c.Train.Tensor },
	"train.zero_stage":      func(c train.Config) int { return c.Train.ZeroStage },
	"train.micro_batch":     func(c train.Config) int { return c.Train.MicroBatch },
	"train.accumulate":      func(c train.Config) int { return c.Train.Accumulate },
}

// resumedConfig returns the configuration of the run in dir, for the ranks of a launcher. Of
// the settings, a may change only those of changeable.
func resumedConfig(dir string, a config.Args, p world.Place) (train.Config, error) {
	if a.File != "" {
		return train.Config{}, fmt.Errorf("%s is given with --resume: a resumed run takes the %s of its own folder", a.File, config.RunFile)
	}
	if _, err := run.ConfigOf(dir); err != nil {
		return train.Config{}, err
	}
	a.File = filepath.Join(dir, config.RunFile)
	loaded, err := config.Load(a)
	if err != nil {
		return train.Config{}, err
	}
	for _, key := range loaded.FromCommand {
		if changeable[key] == nil {
			return train.Config{}, fmt.Errorf("%s is given with --resume: a resumed run accepts only --steps, --ranks, train.tensor_parallel, train.zero_stage, train.micro_batch, train.accumulate, --threads and --backend; --resume=auto accepts the command line of a new run", key)
		}
	}
	return withRanks(loaded, "", p)
}

// autoConfig returns the configuration of the run in dir and resumes = true, or that of a
// new run if dir holds none. A scheduler gives the same arguments in both cases: those of a
// resumed run must agree with its config.toml, except for those of changeable.
func autoConfig(dir string, a config.Args, p world.Place) (c train.Config, resumes bool, err error) {
	given, err := config.New(a)
	if err != nil {
		return c, false, err
	}
	if c, err = withRanks(given, a.File, p); err != nil || !run.Exists(dir) {
		return c, false, err
	}
	// The file and the command line may give the same key.
	keys := slices.Compact(slices.Sorted(slices.Values(slices.Concat(given.FromFile, given.FromCommand))))
	var changes config.Args
	for _, key := range keys {
		if value := changeable[key]; value != nil {
			changes.Assignments = append(changes.Assignments, fmt.Sprintf("%s=%d", key, value(given.Config)))
		}
	}
	if c, err = resumedConfig(dir, changes, p); err != nil {
		return c, true, err
	}
	differing, err := config.Differences(keys, c, given.Config)
	if err == nil && len(differing) > 0 {
		err = fmt.Errorf("--resume=auto: %s holds a run with another configuration: %s; name another folder with --out, or use the values of its %s", dir, strings.Join(differing, ", "), config.RunFile)
	}
	return c, true, err
}

// resume is the value of --resume.
type resume string

const (
	resumeNever  resume = ""
	resumeAlways resume = "always" // --resume
	resumeAuto   resume = "auto"   // if the folder holds a run
)

// Decode implements kong.MapperValue.
func (r *resume) Decode(ctx *kong.DecodeContext) error {
	*r = resumeAlways
	if ctx.Scan.Peek().Type != kong.FlagValueToken {
		return nil
	}
	switch value := ctx.Scan.Pop().String(); value {
	case "auto":
		*r = resumeAuto
	case "true":
	case "false":
		*r = resumeNever
	default:
		return fmt.Errorf("%q is unknown: give --resume, or --resume=auto", value)
	}
	return nil
}

// String returns the flag as the command line has it, or "" if it is not given.
func (r resume) String() string {
	switch r {
	case resumeAlways:
		return "--resume"
	case resumeAuto:
		return "--resume=auto"
	}
	return ""
}

// IsBool tells kong that the flag needs no value.
func (resume) IsBool() bool { return true }
