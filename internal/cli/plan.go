package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"octet/backend"
	"octet/internal/config"
	"octet/internal/writers"
	"octet/train"
)

type planCmd struct {
	Args    []string `arg:"" optional:"" name:"config.toml key=value" sep:"none" help:"A configuration file and single keys."`
	Backend string   `placeholder:"NAME" help:"Backend to plan for; no device is needed."`
	Dump    bool     `help:"Print the lowered programs, one line for each op."`
	JSON    bool     `help:"Print one JSON object."`
	config.Flags
}

// planned is what plan prints, and its JSON.
type planned struct {
	Recipe        string          `json:"recipe"`
	Backend       string          `json:"backend"`
	Parameters    int64           `json:"parameters"`
	Groups        []train.Group   `json:"parameter_groups"`
	Memory        train.Memory    `json:"memory"`
	MemoryBytes   int64           `json:"memory_bytes"` // of one rank
	FLOPsPerToken float64         `json:"flops_per_token"`
	TokensPerStep int64           `json:"tokens_per_step"`
	Programs      []programReport `json:"programs"`
}

type programReport struct {
	Name           string `json:"name"`
	Ops            int    `json:"ops"`
	Blocks         int    `json:"blocks"`
	DistinctBlocks int    `json:"distinct_blocks"`
	FLOPs          int64  `json:"flops"`
	Hash           string `json:"sha256"`
}

func (c planCmd) Run(t *terminal) error {
	cfg, err := loadConfig(c.Args, c.Flags)
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
	job, err := train.NewJob(cfg.Config)
	if err != nil {
		return badInput(err)
	}
	programs, err := job.Lowered(driver, spec)
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
	p := newPlanned(job, spec, programs)
	if c.JSON {
		e := json.NewEncoder(t.out)
		e.SetIndent("", "  ")
		return e.Encode(p)
	}
	return p.print(t.out, job)
}

func newPlanned(job *train.Job, spec backend.Spec, programs []*backend.Program) planned {
	p := planned{
		Recipe: job.Recipe.Name, Backend: spec.Backend, Groups: job.ParamGroups(),
		Memory:        job.MemoryOf(spec.Align, programs),
		FLOPsPerToken: job.FLOPsPerToken(), TokensPerStep: job.TokensPerStep(),
	}
	for _, g := range p.Groups {
		p.Parameters += g.N
	}
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
	if err := job.Recipe.Describe(w, job.Config.Model.Layers); err != nil {
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(tw, "\nparameters\t%s\n", writers.Count(p.Parameters))
	for _, g := range p.Groups {
		fmt.Fprintf(tw, "  %s\t%s\n", g.Name, writers.Count(g.N))
	}
	fmt.Fprintf(tw, "\nmemory on %s\t%s\n", p.Backend, writers.Bytes(p.MemoryBytes))
	for _, g := range p.Memory.Persistent {
		fmt.Fprintf(tw, "  %s\t%s\n", g.Name, writers.Bytes(g.N))
	}
	fmt.Fprintf(tw, "  temps (arena)\t%s\n", writers.Bytes(p.Memory.Arena))
	fmt.Fprintf(tw, "\npersistent, by module\t\n")
	for _, g := range p.Memory.Scopes {
		fmt.Fprintf(tw, "  %s\t%s\n", g.Name, writers.Bytes(g.N))
	}
	fmt.Fprintf(tw, "\nFLOPs per token\t%s\n", writers.Count(int64(p.FLOPsPerToken)))
	fmt.Fprintf(tw, "tokens per step\t%s\n", writers.Count(p.TokensPerStep))
	fmt.Fprintf(tw, "\nprogram\tops\tblocks\tdistinct\tFLOPs\n")
	for _, r := range p.Programs {
		fmt.Fprintf(tw, "%s\t%d\t%d\t%d\t%s\n", r.Name, r.Ops, r.Blocks, r.DistinctBlocks, writers.Count(r.FLOPs))
	}
	return tw.Flush()
}

// loadConfig reads a file, keys and aliases into a complete configuration.
func loadConfig(args []string, flags config.Flags) (*config.Loaded, error) {
	file, assignments, err := config.SplitArgs(args)
	if err != nil {
		return nil, err
	}
	return config.Load(config.Args{File: file, Assignments: assignments, Flags: flags})
}
