package gaudi

import (
	"context"
	"fmt"
	"slices"
	"time"

	"octet/backend"
	"octet/csrc/libsynapse"
)

// Load allocates variables, compiles programs and binds their launches to device memory.
// One block holds the temps that outlive a unit and the workspace of the largest unit,
// which all launches share, because they run one after the other.
func (d *device) Load(programs ...*backend.Program) ([]backend.Executable, error) {
	err := d.vars.Load(programs, func(fresh []*backend.Tensor) error {
		return d.allocVars(fresh, layoutsOf(d.spec, programs...))
	})
	if err != nil {
		return nil, err
	}
	// Earlier programs still need their layouts of the variables.
	c := newCutter(d.spec, false, slices.Concat(d.loaded, programs)...)
	if err := d.checkLayouts(c.layouts, programs); err != nil {
		return nil, err
	}
	bound, err := d.bind(c, programs)
	if err != nil {
		return nil, err
	}
	d.loaded = append(d.loaded, programs...)
	list := make([]backend.Executable, len(programs))
	for i, b := range bound {
		list[i] = &executable{bound: b, layouts: c.layouts}
	}
	return list, nil
}

// bound is a program whose commands are prepared.
type bound struct {
	memory
	*schedule
	list int
	ends []int // end of each step's commands
}

// commands returns the number of commands.
func (b *bound) commands() int {
	if len(b.ends) == 0 {
		return 0
	}
	return b.ends[len(b.ends)-1]
}

// bind cuts, compiles and prepares programs.
func (d *device) bind(c *cutter, programs []*backend.Program) ([]*bound, error) {
	schedules := make([]*schedule, len(programs))
	for i, p := range programs {
		var err error
		if schedules[i], err = c.cut(p); err != nil {
			return nil, err
		}
	}
	plan := c.planOf(schedules...)
	if err := d.connectAll(memory{d, c.layouts, plan, 0}, schedules); err != nil {
		return nil, err
	}
	recipes, workspace, err := d.recipes(schedules)
	if err != nil {
		return nil, err
	}
	arena := backend.Aligned(plan.Bytes, int64(own(d.spec).align))
	at, err := d.allocBlock(fmt.Sprintf("temps (%s) and workspace (%s)", backend.Size(arena), backend.Size(workspace)), arena+workspace)
	if err != nil {
		return nil, err
	}
	list := make([]*bound, len(programs))
	for i, s := range schedules {
		b := &bound{memory: memory{d, c.layouts, plan, at}, schedule: s}
		if err := b.prepare(recipes, at+libsynapse.Ptr(arena)); err != nil {
			return nil, err
		}
		list[i] = b
	}
	return list, nil
}

// connectAll connects the groups of all collectives, in the order of their first ones, which is
// the same on all ranks. It precedes the compilation, which takes some ranks longer. The arena of m
// may have no address yet.
func (d *device) connectAll(m memory, schedules []*schedule) error {
	var groups []backend.Group
	for _, s := range schedules {
		for _, n := range s.program.Nodes() {
			transfers, err := m.transfers(n)
			if err != nil {
				return err
			}
			for _, t := range transfers {
				if t.Kind != localCopy && !slices.Contains(groups, t.Group) {
					groups = append(groups, t.Group)
				}
			}
		}
	}
	if groups == nil {
		return nil
	}
	return d.failure("connect the ranks", 0, d.synapse.connect(groups))
}

// recipes compiles the units of schedules, each once, and returns the largest workspace.
func (d *device) recipes(schedules []*schedule) (map[*unit]compiled, int64, error) {
	var units []*unit
	var programs []program
	known := map[*unit]compiled{}
	for _, s := range schedules {
		for _, step := range s.steps {
			u := step.unit
			if _, ok := known[u]; u == nil || ok {
				continue
			}
			known[u] = compiled{}
			units = append(units, u)
			programs = append(programs, program{u.name, u.graph})
		}
	}
	recipes, err := d.compile(programs)
	if err != nil { // SynapseAI's own error says little
		return nil, 0, d.failure("compile", 0, fmt.Errorf("%w; octet doctor --backend gaudi names the failing kernel, and SynapseAI's logs are in $HABANA_LOGS", err))
	}
	workspace := int64(0)
	for i, u := range units {
		known[u] = recipes[i]
		workspace = max(workspace, recipes[i].Workspace)
	}
	return known, workspace, nil
}

// prepare prepares the commands of all steps.
func (b *bound) prepare(recipes map[*unit]compiled, workspace libsynapse.Ptr) error {
	var commands []command
	nodes, next := b.program.Nodes(), 0
	for _, s := range b.steps {
		if s.unit != nil {
			c := command{Recipe: recipes[s.unit].Number, Workspace: workspace}
			for _, r := range s.sections {
				at, _ := b.of(r.root)
				c.Sections = append(c.Sections, at+libsynapse.Ptr(r.offset))
			}
			commands = append(commands, c)
		}
		for end := b.ranges[next].end; next <= end; next++ {
			transfers, err := b.transfers(nodes[next])
			if err != nil {
				return err
			}
			for i := range transfers {
				commands = append(commands, command{Transfer: &transfers[i]})
			}
		}
		b.ends = append(b.ends, len(commands))
	}
	list, err := b.synapse.prepare(commands)
	if err != nil {
		return b.failure("prepare program "+b.program.Name(), 0, err)
	}
	b.list = list
	b.lists = append(b.lists, list)
	return nil
}

// transfers returns the transfers that follow the nodes of an op in its graph.
func (m memory) transfers(n *backend.Node) ([]transfer, error) {
	transfers := rowOf(n.Op).transfers
	if transfers == nil {
		return nil, nil
	}
	list, err := transfers(m, n.Op)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", n.Path(), err)
	}
	for i := range list {
		list[i].Name = n.Path()
	}
	return list, nil
}

// time runs one step, waits for it, and returns the device's time.
func (b *bound) time(step int) (time.Duration, error) {
	first := 0
	if step > 0 {
		first = b.ends[step-1]
	}
	return b.synapse.time(b.list, first, b.ends[step])
}

// executable is a loaded program.
type executable struct {
	*bound
	layouts  layouts // of all programs loaded with it
	observed *bound  // op by op; nil before the first use
}

func (x *executable) Run(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		x.abort(err)
		return err
	}
	if err := x.ended(); err != nil {
		return x.failure("run program "+x.program.Name(), 0, err)
	}
	if err := x.synapse.run(x.list, 0, x.commands()); err != nil {
		return x.failure("run program "+x.program.Name(), 0, err)
	}
	return nil
}

// RunObserved runs every op as a unit of its own, with all temps in memory. Values that
// fused kernels keep in F32 are rounded as the program says, so last bits may differ from
// those of Run.
func (x *executable) RunObserved(ctx context.Context, observe backend.Observer) error {
	return x.eachOp(ctx, func(n *backend.Node, _ time.Duration) error { return observe(n, x.observed.memory) })
}

// RunTimed implements backend.Timed. It runs the ops as RunObserved does, each between
// two events of the device. The gaps between the ops are host time: calls and launches.
func (x *executable) RunTimed(ctx context.Context, took func(n *backend.Node, start, end time.Duration)) error {
	begin, last := time.Now(), time.Duration(0)
	return x.eachOp(ctx, func(n *backend.Node, d time.Duration) error {
		end := time.Since(begin)
		took(n, max(last, end-d), end)
		last = end
		return nil
	})
}

// eachOp runs the ops one by one and passes each to show with its device time. It aborts
// the other ranks, which wait for this one in collectives, when its context ends or show
// returns an error.
func (x *executable) eachOp(ctx context.Context, show func(n *backend.Node, took time.Duration) error) error {
	defer context.AfterFunc(ctx, func() { x.abort(ctx.Err()) })()
	if x.observed == nil {
		c := newCutter(x.spec, true, x.program)
		c.layouts = x.layouts
		list, err := x.bind(c, []*backend.Program{x.program})
		if err != nil {
			return err
		}
		x.observed = list[0]
	}
	o := x.observed
	for i, s := range o.steps {
		if err := ctx.Err(); err != nil {
			return err
		}
		took, err := o.time(i)
		if err != nil {
			return o.failure(s.node.Path(), 0, err)
		}
		if err := show(s.node, took); err != nil {
			x.abort(err)
			return err
		}
	}
	return nil
}
