package cli

import (
	"bytes"
	"encoding/json"

	"octet/backend"
	"octet/internal/config"
	"octet/train"
)

type planCmd struct {
	Args    []string `arg:"" optional:"" name:"config.toml | key=value" sep:"none" help:"A configuration file and single keys."`
	Backend string   `placeholder:"NAME" help:"Backend to plan for, such as cuda or emu:gaudi2; the device need not be present; default: the best that is present."`
	Dump    bool     `help:"Print the lowered programs instead, one line for each op."`
	JSON    bool     `help:"Print one JSON object; a list of them with several recipes."`
	clusterFlags
	config.Flags
}

// Help returns the text that plan --help adds.
func (planCmd) Help() string {
	return `Memory is that of one rank, by class and by module; a legend explains the classes and the programs.

With --cluster, plan predicts the time of a step, the speed, and what dominates, from the programs and a table of devices. All of it is predicted, none measured. The output lists every number that it depends on, with its source, and the band that their ranges give. --recipe then takes several recipes, separated by commas. A cluster has one rank for each device.

Examples:
  octet plan
  octet plan --model llama2-7b --backend cuda train.micro_batch=1
  octet plan --model small --recipe bf16 --json
  octet plan --model 124m --cluster h100:8x4 --tokens 300B --price 2.5
  octet plan --model 124m --cluster gaudi2:8 --recipe bf16,fp8-smooth
  octet plan --model 124m --cluster h100:8 --sweep 1..512 --plot speed.svg`
}

// planned is the output of plan, and its JSON.
type planned struct {
	Recipe      string        `json:"recipe"`
	Schedule    []scheduled   `json:"schedule,omitempty"` // if there are several recipes; Recipe then needs the most memory
	Notes       []string      `json:"notes,omitempty"`    // see [train.Job.Notes]
	Backend     string        `json:"backend"`
	Device      string        `json:"device,omitempty"` // as requested: "h100" of emu:h100
	Parameters  int64         `json:"parameters"`
	Active      int64         `json:"active_parameters,omitempty"` // of a token, with experts
	Groups      []train.Group `json:"parameter_groups"`
	Memory      train.Memory  `json:"memory"`
	MemoryBytes int64         `json:"memory_bytes"` // of one rank
	// LayerParameters is the number of weights of linear layers, see [train.Line].
	LayerParameters int64            `json:"layer_parameters"`
	FLOPsPerToken   float64          `json:"flops_per_token"`
	TokensPerStep   int64            `json:"tokens_per_step"`
	Exchanges       []train.Exchange `json:"exchanges,omitempty"` // between ranks
	Traffic         []train.Traffic  `json:"traffic,omitempty"`
	Programs        []programReport  `json:"programs"`
	Prediction      *prediction      `json:"prediction,omitempty"` // with --cluster
}

type scheduled struct {
	Step   int    `json:"step"` // the recipe applies after this step
	Recipe string `json:"recipe"`
}

type programReport struct {
	Name           string `json:"name"`
	Ops            int    `json:"ops"`
	Blocks         int    `json:"blocks"`
	DistinctBlocks int    `json:"distinct_blocks"`
	FLOPs          int64  `json:"flops"`
	Hash           string `json:"sha256"`
	// For a backend that compiles several ops into a graph and launches that.
	Launches int `json:"launches,omitempty"`
	Compiled int `json:"compiled,omitempty"`
}

func (c planCmd) Run(t *terminal) error {
	if err := c.refuseWithoutCluster(c.Recipe); err != nil {
		return badInput(err)
	}
	if c.Cluster.Given || c.Calibration != "" {
		return c.predict(t)
	}
	args, err := configArgs(c.Args, c.Flags)
	if err != nil {
		return badInput(err)
	}
	loaded, err := config.New(args)
	if err != nil {
		return badInput(err)
	}
	cfg := loaded.Config
	if err := cfg.CheckRanks(); err != nil {
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
	if ranks := cfg.Train.Ranks; ranks > 1 && spec.Threads > 0 { // ranks share the machine's threads
		spec.Threads = max(1, spec.Threads/ranks)
	}
	// Plan the recipe of the schedule that needs the most memory.
	job, programs, memory, err := train.LargestJob(cfg, spec)
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
	p := newPlanned(job, spec, deviceName, programs, memory)
	if c.JSON {
		e := json.NewEncoder(t.out)
		e.SetIndent("", "  ")
		return e.Encode(p)
	}
	var text bytes.Buffer
	if err := p.print(&text, job, spec); err != nil {
		return err
	}
	_, err = prose(t.out).Write(text.Bytes())
	return err
}

func newPlanned(job *train.Job, spec backend.Spec, device string, programs []*backend.Program, memory train.Memory) planned {
	p := planned{
		Recipe: job.Recipe.Name, Notes: job.Notes, Backend: spec.Backend, Device: device, Groups: job.ParamGroups(),
		Memory:        memory,
		FLOPsPerToken: job.FLOPsPerToken(), TokensPerStep: job.TokensPerStep(),
		Exchanges: job.Exchanges(), Traffic: job.Traffic(), LayerParameters: job.LayerParameters(),
	}
	if len(job.Phases) > 1 {
		for _, phase := range job.Phases {
			p.Schedule = append(p.Schedule, scheduled{phase.From, phase.Config.Recipe})
		}
	}
	p.Parameters = totalOf(p.Groups)
	if job.Config.Model.Experts > 0 {
		p.Active = job.ActiveParameters()
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
	for i, l := range memory.Launches {
		p.Programs[i].Launches, p.Programs[i].Compiled = l.Launches, l.Compiled
	}
	return p
}
