package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"octet/backend"
	"octet/internal/config"
	"octet/internal/run"
	"octet/internal/writers"
	"octet/train"
)

type planCmd struct {
	Args    []string `arg:"" optional:"" name:"config.toml | key=value" sep:"none" help:"A configuration file and single keys."`
	Backend string   `placeholder:"NAME" help:"Backend to plan for; no device is needed."`
	Dump    bool     `help:"Print the lowered programs, one line for each op."`
	JSON    bool     `help:"Print one JSON object."`
	config.Flags
}

// planned is what plan prints, and its JSON.
type planned struct {
	Recipe        string           `json:"recipe"`
	Schedule      []scheduled      `json:"schedule,omitempty"` // of recipes, if there are several; Recipe takes most memory
	Notes         []string         `json:"notes,omitempty"`    // what the device makes of it
	Backend       string           `json:"backend"`
	Parameters    int64            `json:"parameters"`
	Groups        []train.Group    `json:"parameter_groups"`
	Memory        train.Memory     `json:"memory"`
	MemoryBytes   int64            `json:"memory_bytes"` // of one rank
	FLOPsPerToken float64          `json:"flops_per_token"`
	TokensPerStep int64            `json:"tokens_per_step"`
	Exchanges     []train.Exchange `json:"exchanges,omitempty"` // between ranks
	Programs      []programReport  `json:"programs"`
}

type scheduled struct {
	Step   int    `json:"step"` // after which it takes over
	Recipe string `json:"recipe"`
}

type programReport struct {
	Name           string `json:"name"`
	Ops            int    `json:"ops"`
	Blocks         int    `json:"blocks"`
	DistinctBlocks int    `json:"distinct_blocks"`
	FLOPs          int64  `json:"flops"`
	Hash           string `json:"sha256"`
	// Of a backend that compiles several ops into a unit and launches that.
	Launches int `json:"launches,omitempty"`
	Compiled int `json:"compiled,omitempty"`
}

func (c planCmd) Run(t *terminal) error {
	args, err := configArgs(c.Args, c.Flags)
	if err != nil {
		return badInput(err)
	}
	cfg, err := run.NewConfig(args)
	if err != nil {
		return badInput(err)
	}
	driver, deviceName, err := backend.Find(c.Backend)
	if err != nil {
		return badInput(err)
	}
	spec, err := driver.Spec(deviceName)
	if err != nil {
		return badInput(err)
	}
	// Of several recipes the one that the machine must be large enough for.
	job, programs, memory, err := train.LargestJob(cfg, driver, spec)
	if err != nil {
		return badInput(err)
	}
	if c.Dump {
		for _, p := range programs {
			if err := p.Dump(t.out); err != nil {
				return err
			}
		}
		return nil
	}
	p := newPlanned(job, spec, programs, memory)
	if driver.Outline != nil {
		outline, err := driver.Outline(spec, programs)
		if err != nil {
			return badInput(err)
		}
		for i, l := range outline.Launches {
			p.Programs[i].Launches, p.Programs[i].Compiled = l.Launches, l.Compiled
		}
	}
	if c.JSON {
		e := json.NewEncoder(t.out)
		e.SetIndent("", "  ")
		return e.Encode(p)
	}
	return p.print(t.out, job)
}

func newPlanned(job *train.Job, spec backend.Spec, programs []*backend.Program, memory train.Memory) planned {
	p := planned{
		Recipe: job.Recipe.Name, Notes: job.Notes, Backend: spec.Backend, Groups: job.ParamGroups(),
		Memory:        memory,
		FLOPsPerToken: job.FLOPsPerToken(), TokensPerStep: job.TokensPerStep(),
		Exchanges: job.Exchanges(),
	}
	if len(job.Phases) > 1 {
		for _, phase := range job.Phases {
			p.Schedule = append(p.Schedule, scheduled{phase.From, phase.Config.Recipe})
		}
	}
	p.Parameters = totalOf(p.Groups)
	p.MemoryBytes = p.Memory.Total()
	for _, q := range programs {
		blocks := q.Blocks()
		distinct := map[string]bool{}
		for _, b := range blocks {
			distinct[b.Hash] = true
		}
		r := programReport{Name: q.Name(), Ops: len(q.Nodes()), Blocks: len(blocks), DistinctBlocks: len(distinct), Hash: q.Hash()}
		for _, n := range q.Nodes() {
			r.FLOPs += n.Cost().FLOPs
		}
		p.Programs = append(p.Programs, r)
	}
	return p
}

func (p planned) print(w io.Writer, job *train.Job) error {
	if len(p.Schedule) > 0 {
		fmt.Fprint(w, "schedule of recipes:")
		for i, s := range p.Schedule {
			if i > 0 {
				fmt.Fprintf(w, ", after step %d", s.Step)
			}
			fmt.Fprintf(w, " %s", s.Recipe)
		}
		fmt.Fprintf(w, "\nwhich takes most memory under this one:\n\n")
	}
	if err := describeRecipe(w, job.Recipe, job.Notes, job.Config.Model.Layers); err != nil {
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	table := func(groups []train.Group, format func(int64) string) {
		for _, g := range worthSaying(groups) {
			fmt.Fprintf(tw, "  %s\t%s\n", g.Name, format(g.N))
		}
	}
	fmt.Fprintf(tw, "\nparameters\t%s\n", writers.Count(p.Parameters))
	table(p.Groups, writers.Count)
	fmt.Fprintf(tw, "\nmemory of one rank\t%s\n", writers.Bytes(p.MemoryBytes))
	table(memoryGroups(p.Memory), writers.Bytes)
	fmt.Fprintf(tw, "\ncheckpoint\t%s\n  copied on the host, to be written while steps run\n", writers.Bytes(p.Memory.Snapshot))
	if outside := totalOf(p.Memory.Outside); outside > 0 {
		fmt.Fprintf(tw, "\noutside, estimated\t%s\n", writers.Bytes(outside))
		table(p.Memory.Outside, writers.Bytes)
	}
	fmt.Fprintf(tw, "\npersistent, by module\t%s\n", writers.Bytes(totalOf(p.Memory.Persistent)))
	table(p.Memory.Scopes, writers.Bytes)
	fmt.Fprintf(tw, "\ncompute\t%s per token\n", writers.Quantity(p.FLOPsPerToken, "FLOP"))
	fmt.Fprintf(tw, "step\t%s tokens\n", writers.Count(p.TokensPerStep))
	if err := tw.Flush(); err != nil {
		return err
	}
	if len(p.Exchanges) > 0 {
		fmt.Fprintf(tw, "\nbetween %d ranks\t\tops\tof\n", job.Config.Train.Ranks)
		for _, x := range p.Exchanges {
			fmt.Fprintf(tw, "%s\t%s\t%d\t%s\n", x.Program, x.Op, x.Count, writers.Bytes(x.Bytes))
		}
		if err := tw.Flush(); err != nil {
			return err
		}
	}
	compiled := slices.ContainsFunc(p.Programs, func(r programReport) bool { return r.Compiled > 0 })
	fmt.Fprintf(tw, "\nprogram on %s\tops\tblocks\tdistinct\tmatrix products", p.Backend)
	if compiled {
		fmt.Fprint(tw, "\tlaunches\tcompiled")
	}
	fmt.Fprintln(tw)
	for _, r := range p.Programs {
		fmt.Fprintf(tw, "%s\t%d\t%d\t%d\t%s", r.Name, r.Ops, r.Blocks, r.DistinctBlocks, writers.Quantity(float64(r.FLOPs), "FLOP"))
		if compiled {
			fmt.Fprintf(tw, "\t%d\t%d", r.Launches, r.Compiled)
		}
		fmt.Fprintln(tw)
	}
	return tw.Flush()
}
