package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"octet/backend"
	"octet/backend/world"
	"octet/internal/bench"
	"octet/internal/disk"
	"octet/run"
	"octet/train"
)

type benchCollectivesCmd struct {
	Sizes      []string `arg:"" optional:"" name:"BYTES" help:"Bytes of the tensor that all ranks hold together; default: 64k, 1M and 16M."`
	Ranks      int      `placeholder:"N" help:"Number of ranks on this machine; a launcher's number of processes goes before it."`
	benchFlags `embed:"" set:"seconds=0.5"`
}

// Help returns the text that bench collectives --help adds.
func (benchCollectivesCmd) Help() string {
	return `Measures all-reduce, reduce-scatter and all-gather of FP32 tensors. Times are medians of bursts that all ranks begin together. GB/s is the bus bandwidth of NVIDIA's nccl-tests: (n-1)/n of the tensor, twice for an all-reduce, over the time. Ranks are threads of this process on emu, and processes elsewhere or under a launcher.

Examples:
  octet bench collectives --backend emu --ranks 2
  octet bench collectives --backend cuda --ranks 8 --calibrate h100.toml
  srun --ntasks-per-node 8 octet bench collectives --backend cuda`
}

func (c benchCollectivesCmd) Run(ctx context.Context, t *terminal) (err error) {
	sizes, err := parseAll(c.Sizes, bench.ParseBytes, bench.CollectiveSizes)
	if err == nil {
		err = c.check()
	}
	if err == nil && c.Calibrate != "" {
		err = disk.CheckFile(c.Calibrate)
	}
	if err != nil {
		return badInput(err)
	}
	m := &member{t: t}
	if m.place, err = findPlace(""); err != nil {
		return badInput(err)
	}
	groups, err := c.groups(ctx, m)
	if err != nil || groups == nil {
		return err
	}
	return m.ended(c.measure(ctx, m, groups, sizes))
}

// groups returns the ranks of this process. It is nil if other processes were the ranks and have
// ended.
func (c benchCollectivesCmd) groups(ctx context.Context, m *member) ([]*world.Group, error) {
	ranks := c.Ranks
	if m.several() {
		if ranks != 0 && ranks != m.place.Size {
			return nil, badInput(fmt.Errorf("--ranks is %d, but %s started %d ranks: omit --ranks", ranks, m.place.Launcher, m.place.Size))
		}
		o := run.Options{Config: train.Default(), Backend: c.Backend, Version: version()}
		if err := m.join(ctx, &o, false); err != nil {
			return nil, err
		}
		return []*world.Group{m.group}, nil
	}
	if ranks < 2 || ranks > train.MaxRanks {
		return nil, badInput(fmt.Errorf("--ranks %d: expected 2 to %d, or a launcher that starts the ranks", ranks, train.MaxRanks))
	}
	spec, err := backend.SpecOf(c.Backend)
	if err != nil {
		return nil, badInput(err)
	}
	if !spec.HostMemory {
		return nil, m.t.supervise(ranks)
	}
	timeout, err := world.Timeout()
	if err != nil {
		return nil, badInput(err)
	}
	return world.Local(ranks, timeout), nil
}

func (c benchCollectivesCmd) measure(ctx context.Context, m *member, groups []*world.Group, sizes []int) (err error) {
	if m.group != nil {
		defer func() {
			if err == nil {
				err = m.group.Leave(ctx)
			}
		}()
	}
	t := m.quiet()
	const line = "%-16s %14s %12s %8s\n"
	o := &output{w: t.out}
	if c.JSON {
		o.json = json.NewEncoder(t.out)
	} else {
		fmt.Fprintf(t.out, line, "collective", "ranks x bytes", "median", "GB/s")
	}
	links, err := bench.Collectives(ctx, bench.Options{Backend: c.Backend, Threads: c.Threads, Seconds: c.Seconds}, groups, sizes, func(r bench.Result) error {
		if o.json != nil {
			return o.json.Encode(r)
		}
		_, err := fmt.Fprintf(t.out, line, r.Name, r.Shape, millis(r.Median), rateText(r.GBytes))
		return err
	})
	if errors.Is(err, backend.ErrUnsupported) {
		return badInput(err)
	}
	if err != nil || c.Calibrate == "" || m.place.Rank > 0 {
		return err
	}
	file, err := bench.OpenCalibration(c.Calibrate, c.Backend, links.Spec)
	if err != nil {
		return badInput(err)
	}
	if err := links.Extend(file, version()); err != nil {
		return err
	}
	if err := file.Write(c.Calibrate); err != nil {
		return err
	}
	_, err = fmt.Fprintf(prose(m.t.err), "%s: latency and bandwidth of collectives\n", c.Calibrate)
	return err
}
