package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"octet/backend"
	"octet/backend/cost"
	"octet/internal/config"
	"octet/internal/disk"
	"octet/train"
)

// clusterFlags are the flags of plan that predict a run on a cluster.
type clusterFlags struct {
	Cluster        config.Once `placeholder:"DEVICE:NxM" help:"Predict the time of a run on M nodes of N devices, such as h100:8x32."`
	Network        config.Once `placeholder:"NAME" help:"Network between nodes; default: that of the device."`
	Devices        string      `placeholder:"FILE" help:"A TOML file with more devices and networks, or other numbers of known ones."`
	Calibration    string      `placeholder:"FILE" help:"Curves that octet bench --calibrate measured on a device; without --cluster, predict a run on that device."`
	Tokens         config.Once `placeholder:"N" help:"Tokens of the whole run, such as 2T: shows days and energy."`
	Price          config.Once `placeholder:"P" help:"Price of a device for an hour, in any currency: shows the cost of --tokens."`
	Grid           config.Once `placeholder:"G" help:"Carbon intensity of the grid, g of CO2 for a kWh: shows the CO2 of --tokens."`
	MTBF           config.Once `name:"mtbf" placeholder:"T" help:"Mean time between failures of one device, such as 50000h (number mtbf)."`
	CheckpointRate config.Once `placeholder:"R" help:"Rate at which a checkpoint is written, such as 2GB/s (number checkpoint_rate)."`
	Assume         []string    `placeholder:"NAME=VALUE" sep:"none" help:"Another value of one of the numbers that the output lists; may be repeated."`
	Sweep          config.Once `placeholder:"A..B" help:"Also predict clusters of A to B devices, with the same tokens for each device."`
	Plot           config.Once `placeholder:"FILE" help:"Draw the time by class, and the speed of --sweep, to an SVG file."`
}

// refuseWithoutCluster returns an error for a flag that has no effect without --cluster, or without
// both --cluster and --calibration, and for several recipes.
func (f clusterFlags) refuseWithoutCluster(recipes config.Once) error {
	predicts := f.Cluster.Given || f.Calibration != ""
	for _, flag := range []struct {
		name  string
		given bool
		met   bool // its needs are
		needs string
	}{
		{"network", f.Network.Given, f.Cluster.Given, ""},
		{"devices", f.Devices != "", f.Cluster.Given, ""},
		{"sweep", f.Sweep.Given, f.Cluster.Given, ""},
		{"tokens", f.Tokens.Given, predicts, ", or --calibration"},
		{"price", f.Price.Given, predicts, ", or --calibration"},
		{"grid", f.Grid.Given, predicts, ", or --calibration"},
		{"mtbf", f.MTBF.Given, predicts, ", or --calibration"},
		{"checkpoint-rate", f.CheckpointRate.Given, predicts, ", or --calibration"},
		{"assume", f.Assume != nil, predicts, ", or --calibration"},
		{"plot", f.Plot.Given, predicts, ", or --calibration"},
	} {
		if flag.given && !flag.met {
			return fmt.Errorf("--%s needs --cluster, such as --cluster h100:8x32%s", flag.name, flag.needs)
		}
	}
	if !predicts && strings.Contains(recipes.Value, ",") && filepath.Ext(recipes.Value) != ".toml" {
		return fmt.Errorf("--recipe %s: several recipes need --cluster, such as --cluster h100:8x32, or --calibration", recipes.Value)
	}
	return nil
}

// prediction is the part of a plan about a cluster.
type prediction struct {
	Cluster  string   `json:"cluster"`
	Title    string   `json:"title"`               // of the device
	Need     int64    `json:"memory_needed_bytes"` // of one rank, with that outside the backend
	Capacity int64    `json:"memory_capacity_bytes"`
	Save     int64    `json:"checkpoint_bytes"`
	Tokens   float64  `json:"tokens,omitempty"` // of the whole run
	Steps    int64    `json:"steps,omitempty"`
	Notes    []string `json:"notes,omitempty"`
	cost.Forecast
	Sweep []sweepPoint `json:"sweep,omitempty"`
}

// predictor predicts runs on clusters of one device.
type predictor struct {
	run         runFlags
	table       cost.Table
	calibration *cost.Calibration
	local       bool // the devices are those of the calibration
	driver      backend.Driver
	device      string // of the backend
	notes       []string
}

// newPredictor reads the flags.
func (c planCmd) newPredictor() (p *predictor, cluster cost.Cluster, err error) {
	p = &predictor{table: cost.Devices()}
	if p.run, err = c.parse(); err != nil {
		return nil, cluster, err
	}
	if c.Cluster.Given {
		if cluster, err = cost.ParseCluster(c.Cluster.Value); err != nil {
			return nil, cluster, fmt.Errorf("--cluster: %w", err)
		}
	}
	if c.Plot.Given {
		if ext := filepath.Ext(c.Plot.Value); ext != ".svg" {
			return nil, cluster, fmt.Errorf("--plot %q: the picture is an SVG file: give a name that ends in .svg", c.Plot.Value)
		}
		if err := disk.CheckFile(c.Plot.Value); err != nil {
			return nil, cluster, fmt.Errorf("--plot: %w", err)
		}
	}
	if c.Devices != "" {
		if p.table, err = withDevices(p.table, c.Devices); err != nil {
			return nil, cluster, fmt.Errorf("--devices: %w", err)
		}
	}
	if c.Calibration != "" {
		if p.calibration, err = cost.ReadCalibration(c.Calibration); err != nil {
			return nil, cluster, fmt.Errorf("--calibration: %w", err)
		}
		p.notes = append(p.notes, fmt.Sprintf("ops have the times that %s gives, where it gives any; it was measured on %s", c.Calibration, p.calibration.Device))
		if !c.Cluster.Given {
			p.local = true
			if cluster, err = c.localCluster(p.calibration); err != nil {
				return nil, cluster, err
			}
			if p.calibration.Threads > 0 && cluster.PerNode > 1 {
				p.notes = append(p.notes, "the ranks share the memory bandwidth of their machine, and the calibration was of one rank alone")
			}
		}
	}
	m, err := p.machine(cluster)
	if err != nil {
		return nil, cluster, err
	}
	largest := max(cluster.Devices(), p.run.sweepTo)
	if c.Network.Given && largest <= cluster.PerNode {
		return nil, cluster, fmt.Errorf("--network connects nodes, but %s is one node: omit --network", c.Cluster.Value)
	}
	if err := p.run.checkRanks(m); err != nil {
		return nil, cluster, err
	}
	if m.PerNode > m.NodeSize && m.NodeSize > 0 {
		p.notes = append(p.notes, fmt.Sprintf("a node of %s has up to %d devices, and %s puts %d into one: link connects them all", m.Title, m.NodeSize, cluster, m.PerNode))
	}
	name := cmp.Or(c.Backend, m.Backend)
	if name == "" {
		return nil, cluster, fmt.Errorf("--cluster %s: %s: give --backend to predict the programs of another device, such as --backend cuda", c.Cluster.Value, m.Unsupported)
	}
	if m.Unsupported != "" {
		p.notes = append(p.notes, fmt.Sprintf("%s: the programs are those of backend %s", m.Unsupported, name))
	}
	p.driver, p.device, err = backend.Find(name)
	return p, cluster, err
}

// withDevices adds the rows of a file to a table.
func withDevices(table cost.Table, path string) (cost.Table, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return table, err
	}
	more, err := cost.ParseTable(string(text))
	if err == nil {
		table, err = table.With(more)
	}
	if err != nil {
		return table, fmt.Errorf("%s: %w", path, err)
	}
	return table, nil
}

// checkRanks returns an error for more ranks than a run can have, in the cluster or at the end of
// a sweep.
func (r runFlags) checkRanks(m cost.Machine) error {
	most := int(m.Numbers["ranks"].Value)
	if most < 1 {
		return fmt.Errorf("the number ranks is %d: a run has at least one rank", most)
	}
	fitting := m.Cluster
	if fitting.Nodes = most / fitting.PerNode; fitting.Nodes == 0 {
		fitting.PerNode, fitting.Nodes = most, 1
	}
	const text = "%s needs %d ranks, one for each device, and a run has at most %d: use %s, or predict it anyway by --assume ranks=%[2]d"
	switch {
	case m.Devices() > most:
		return fmt.Errorf(text, "--cluster "+m.Cluster.String(), m.Devices(), most, fitting)
	case r.sweepTo > most:
		return fmt.Errorf(text, fmt.Sprintf("--sweep %d..%d", r.sweepFrom, r.sweepTo), r.sweepTo, most, fmt.Sprintf("%d..%d", min(r.sweepFrom, fitting.Devices()), fitting.Devices()))
	}
	return nil
}

// machine returns the machine of a cluster.
func (p *predictor) machine(c cost.Cluster) (cost.Machine, error) {
	m := cost.Machine{}
	if p.local {
		m = p.table.Local(p.calibration)
		m.Cluster = c
	} else {
		var err error
		if m, err = p.table.Machine(c, p.run.network); err == nil && p.calibration != nil {
			err = m.Calibrate(p.calibration)
		}
		if err != nil {
			return m, err
		}
	}
	if err := m.Assume(p.run.assume...); err != nil {
		return m, fmt.Errorf("--assume: %w", err)
	}
	return m, nil
}

// planOn returns the plan of one rank.
func (p *predictor) planOn(cfg train.Config, c cost.Cluster) (x rankPlan, err error) {
	if x.spec, err = p.driver.Spec(p.device); err != nil {
		return x, err
	}
	if x.spec.Threads > 0 { // ranks share the node's threads
		x.spec.Threads = max(1, x.spec.Threads/c.PerNode)
	}
	if p.local {
		x.spec.Threads = p.calibration.Threads
	}
	cfg.Train.Ranks = c.Devices()
	x.job, x.programs, x.memory, err = train.LargestJob(cfg, x.spec)
	x.need = x.memory.Total() + totalOf(x.memory.Outside)
	return x, err
}

// rankPlan is the plan of one rank of a cluster.
type rankPlan struct {
	spec     backend.Spec
	job      *train.Job
	programs []*backend.Program
	memory   train.Memory
	need     int64 // bytes of device memory, with those outside
}

// capacityOf returns the memory of a device in bytes.
func capacityOf(m cost.Machine) (int64, error) {
	n, ok := m.Numbers["memory"]
	if !ok {
		return 0, &cost.MissingError{Device: m.Device, Name: "memory"}
	}
	return int64(min(n.Value, 1e9) * (1 << 30)), nil
}

// mayBeZero are the numbers that nothing is divided by.
var mayBeZero = []string{"hidden", "host_power", "launch", "link_latency", "nic_latency", "processors", "rest", "restart", "watts"}

// forecast predicts the run of a plan. Numbers that give no finite time are an error.
func (p *predictor) forecast(m cost.Machine, x rankPlan) (cost.Forecast, error) {
	f, err := m.Forecast(cost.Training{
		Step:          cost.NewStep(x.job.Runs(x.programs)...),
		TokensPerStep: float64(x.job.TokensPerStep()), FLOPsPerToken: x.job.FLOPsPerToken(),
		Snapshot: float64(x.memory.Snapshot), Checkpoint: float64(x.job.CheckpointBytes()), Tokens: p.run.tokens, Price: p.run.price, Grid: p.run.grid,
	})
	if err != nil {
		return f, err
	}
	for _, n := range f.Assumptions {
		if n.Value == 0 && !slices.Contains(mayBeZero, n.Name) {
			return f, fmt.Errorf("the number %s is 0 (%s: %s), so the step would take forever: give a value above 0", n.Name, n.Kind, n.Source)
		}
	}
	for _, v := range []float64{f.StepSeconds, f.TokensPerS, f.Band[1], f.MFU, f.Interval, f.Days, f.DaysBand[1], f.Cost, f.KWh, f.CO2} {
		if v < 0 || v > 1e18 || math.IsNaN(v) {
			return f, fmt.Errorf("the numbers give a step of %.3g s and other times that are not finite: check --assume and --devices", f.StepSeconds)
		}
	}
	return f, nil
}

// predicted is a plan with its prediction.
type predicted struct {
	planned
	machine cost.Machine
}

// predictOn predicts a configuration. Ranks that need more memory than a device has are an error
// that names settings with which they fit.
func (p *predictor) predictOn(cfg train.Config, c cost.Cluster) (*predicted, error) {
	m, err := p.machine(c)
	if err != nil {
		return nil, err
	}
	capacity, err := capacityOf(m)
	if err != nil {
		return nil, err
	}
	x, err := p.planOn(cfg, c)
	if err != nil {
		return nil, err
	}
	if p.local && x.spec.HostMemory { // ranks share the host's
		capacity /= int64(c.Devices())
	}
	if x.need > capacity {
		return nil, p.tooLarge(cfg, m, x.need, capacity)
	}
	f, err := p.forecast(m, x)
	if err != nil {
		return nil, err
	}
	r := &predicted{newPlanned(x.job, x.spec, p.device, x.programs, x.memory), m}
	r.Prediction = &prediction{
		Cluster: c.String(), Title: m.Title, Need: x.need, Capacity: capacity, Save: x.job.CheckpointBytes(), Notes: slices.Clone(p.notes), Forecast: f,
	}
	if p.run.tokens > 0 {
		r.Prediction.Tokens, r.Prediction.Steps = p.run.tokens, int64(math.Ceil(p.run.tokens/float64(x.job.TokensPerStep())))
	}
	if f.Extended > 0.1 {
		r.Prediction.Notes = append(r.Prediction.Notes, fmt.Sprintf("%.0f %% of the step of %s is in ops of less than half the time of the shortest that was measured: calibrate on a configuration of this size", 100*f.Extended, r.Recipe))
	}
	if f.Write == f.Interval {
		r.Prediction.Notes = append(r.Prediction.Notes, fmt.Sprintf("checkpoints of %s follow each other, since writing one takes %s: a higher checkpoint_rate loses less to failures", r.Recipe, duration(f.Write)))
	}
	if _, ok := m.Numbers["watts"]; !ok && p.run.tokens > 0 {
		r.Prediction.Notes = append(r.Prediction.Notes, fmt.Sprintf("no power of %s is known, so there is no energy: give it by --assume watts=W", cmp.Or(m.Title, m.Device)))
	}
	if len(r.Schedule) > 0 {
		r.Prediction.Notes = append(r.Prediction.Notes, fmt.Sprintf("of the schedule's recipes, %s is predicted, which needs the most memory", r.Recipe))
	}
	return r, nil
}

// noteUnusedAssumptions adds a note to the first plan for each number of --assume and its like that
// no plan depends on.
func (p *predictor) noteUnusedAssumptions(list []*predicted) {
	for _, text := range p.run.assume {
		name, _, _ := strings.Cut(text, "=")
		used := slices.ContainsFunc(list, func(r *predicted) bool {
			return slices.ContainsFunc(r.Prediction.Assumptions, func(o cost.Origin) bool { return o.Name == name })
		})
		if !used {
			list[0].Prediction.Notes = append(list[0].Prediction.Notes, fmt.Sprintf("%s has no effect: no prediction here depends on %s", text, name))
		}
	}
}

// predict is plan --cluster.
func (c planCmd) predict(t *terminal) error {
	if c.Dump {
		flag := "--cluster"
		if !c.Cluster.Given {
			flag = "--calibration"
		}
		return badInput(fmt.Errorf("--dump prints programs and %s predicts their time: omit one of them", flag))
	}
	p, cluster, err := c.newPredictor()
	if err != nil {
		return badInput(err)
	}
	configs, err := c.clusterConfigs(cluster)
	if err != nil {
		return badInput(err)
	}
	var list []*predicted
	for _, cfg := range configs {
		r, err := p.predictOn(cfg, cluster)
		if err == nil && p.run.sweepTo > 0 {
			r.Prediction.Sweep, err = p.sweep(cfg, cluster)
		}
		if err != nil {
			return badInput(err)
		}
		list = append(list, r)
	}
	p.noteUnusedAssumptions(list)
	if c.Plot.Given {
		if err := writePlot(c.Plot.Value, list); err != nil {
			return badInput(fmt.Errorf("--plot: %w", err))
		}
	}
	if !c.JSON {
		return printForecasts(t.out, list, p)
	}
	e := json.NewEncoder(t.out)
	e.SetIndent("", "  ")
	if len(list) == 1 {
		return e.Encode(list[0].planned)
	}
	plans := make([]planned, len(list))
	for i, r := range list {
		plans[i] = r.planned
	}
	return e.Encode(plans)
}

// localCluster returns the ranks of the configuration on the device of a calibration.
func (c planCmd) localCluster(x *cost.Calibration) (cluster cost.Cluster, err error) {
	if c.Backend != "" && c.Backend != x.Backend {
		return cluster, fmt.Errorf("--backend %s: %s was measured on backend %s: omit --backend, or calibrate the other backend", c.Backend, c.Calibration, x.Backend)
	}
	ranks, err := c.ranks()
	if ranks > 1 && ranks*x.Threads > x.Processors {
		err = fmt.Errorf("train.ranks = %d: the calibration is of a rank with %d of %d processors: calibrate with --threads %d, or predict one rank", ranks, x.Threads, x.Processors, max(1, x.Processors/ranks))
	}
	return cost.Cluster{Device: x.Backend, PerNode: ranks, Nodes: 1}, err
}

// ranks returns train.ranks of the configuration.
func (c planCmd) ranks() (int, error) {
	flags := c.Flags
	flags.Recipe = config.Once{}
	args, err := configArgs(c.Args, flags)
	if err != nil {
		return 0, err
	}
	loaded, err := config.New(args)
	if err != nil {
		return 0, err
	}
	return loaded.Train.Ranks, nil
}

// clusterConfigs returns the configuration of each recipe.
func (c planCmd) clusterConfigs(cluster cost.Cluster) (list []train.Config, err error) {
	recipes := []config.Once{c.Recipe}
	if c.Recipe.Given {
		recipes = nil
		for name := range strings.SplitSeq(c.Recipe.Value, ",") {
			name = strings.TrimSpace(name)
			one := config.Once{Value: name, Given: true}
			if slices.Contains(recipes, one) {
				return nil, fmt.Errorf("--recipe names %q twice", name)
			}
			recipes = append(recipes, one)
		}
	}
	for _, recipe := range recipes {
		flags := c.Flags
		flags.Recipe = recipe
		args, err := configArgs(c.Args, flags)
		if err != nil {
			return nil, err
		}
		loaded, err := config.New(args)
		if err != nil {
			return nil, err
		}
		ranks, devices := loaded.Train.Ranks, cluster.Devices()
		if source := ranksFrom(loaded, args.File); source != "" && ranks != devices {
			return nil, fmt.Errorf("%s is %d %s, but --cluster %s has %d devices: give %[1]s=%[5]d, or omit it", ranksKey, ranks, source, cluster, devices)
		}
		loaded.Train.Ranks = devices
		list = append(list, loaded.Config)
	}
	return list, nil
}
