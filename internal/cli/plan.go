package cli

import (
	"encoding/json"

	"octet/backend"
	"octet/internal/config"
	"octet/internal/run"
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
	Device        string           `json:"device,omitempty"` // that was asked for: "h100" of emu:h100
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
	if ranks := cfg.Train.Ranks; ranks > 1 && spec.Threads > 0 { // which share the machine's
		spec.Threads = max(1, spec.Threads/ranks)
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
	p.Device = deviceName
	for i, l := range memory.Launches {
		p.Programs[i].Launches, p.Programs[i].Compiled = l.Launches, l.Compiled
	}
	if c.JSON {
		e := json.NewEncoder(t.out)
		e.SetIndent("", "  ")
		return e.Encode(p)
	}
	return p.print(t.out, job, spec)
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
