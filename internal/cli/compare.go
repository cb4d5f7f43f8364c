package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"octet/backend"
	"octet/internal/compare"
	"octet/internal/config"
	"octet/internal/writers"
	"octet/run"
)

type compareCmd struct {
	Args    []string `arg:"" optional:"" name:"config.toml | key=value" sep:"none" help:"A configuration file and single keys; model.init=DIR starts from a checkpoint's weights."`
	Backend []string `required:"" sep:"none" placeholder:"NAME" help:"The two backends, given by two flags: first the reference, then the one to check."`
	First   int      `default:"1" placeholder:"N" help:"Number of steps to compare, from the start of the run; default: ${default}."`
	Threads int      `placeholder:"N" help:"Threads of the CPU backend; default: 0, all processors."`
	JSON    bool     `help:"Print one JSON object for each tensor that differs."`
	config.Flags
}

// Help returns the text that compare --help adds.
func (compareCmd) Help() string {
	return `Both backends run the same program from the same state, on the same data, op by op. Forced: every op of the second backend reads the inputs of the first one's op, so a difference comes from that op alone. Free: each backend reads its own results, and differences accumulate. Both use the formats that both support: compared with emu:gaudi2, emu runs the recipe as adapted to Gaudi 2. The table counts the tensors of each module that differ, and gives the largest error in both modes and the op with the largest free one; "no module" are ops of the whole step, such as those that update amax histories. The error is the norm of the differences over the norm of the first backend's values.

Examples:
  octet compare --backend emu --backend emu:amx
  octet compare --backend ref --backend emu --recipe bf16 model.layers=1
  octet compare --backend emu --backend emu:amx model.init=checkpoint`
}

// comparison sums up the differences between two runs by module.
type comparison struct {
	tensors int
	first   *compare.Diff // the first difference; nil if there is none
	rows    map[string]*compareRow
	order   []string // modules in the order of their first tensor
}

// compareRow sums up a module's tensors.
type compareRow struct {
	Tensors, Differ int
	Worst           compare.Diff
}

func (c *comparison) add(d compare.Diff) {
	name := backend.Module(d.Node)
	row := c.rows[name]
	if row == nil {
		row = &compareRow{}
		c.rows[name] = row
		c.order = append(c.order, name)
	}
	c.tensors++
	row.Tensors++
	if d.Equal() {
		return
	}
	row.Differ++
	if c.first == nil {
		c.first = &d
	}
	if row.Differ == 1 || worse(d.Error, row.Worst.Error) {
		row.Worst = d
	}
}

// worse reports whether error a is larger than b; NaN is the largest.
func worse(a, b float64) bool { return !(a <= b) && b == b }

// comparedDiff is a line of JSON.
type comparedDiff struct {
	Mode    string   `json:"mode"`
	Step    int      `json:"step"`
	Program string   `json:"program"`
	Path    string   `json:"path"`
	Op      string   `json:"op"`
	Tensor  string   `json:"tensor"`
	DType   string   `json:"dtype"`
	Shape   []int    `json:"shape"`
	Differ  int      `json:"differ"` // number of elements
	First   int      `json:"first"`  // index of the first one
	A       *float64 `json:"a"`      // null if it is not finite, as are B and Error
	B       *float64 `json:"b"`
	Error   *float64 `json:"error"`
}

func (c compareCmd) Run(ctx context.Context, t *terminal) (err error) {
	if len(c.Backend) != 2 {
		return badInput(fmt.Errorf("compare takes two backends, not %d: --backend emu --backend emu:amx", len(c.Backend)))
	}
	if c.First < 1 {
		return badInput(fmt.Errorf("--first %d: expected 1 or more steps", c.First))
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
	for _, name := range c.Backend { // fail before the corpus is read if one does not open
		b, err := device{Backend: name, Threads: c.Threads}.open()
		if err != nil {
			return badInput(err)
		}
		if err := b.Close(); err != nil {
			return err
		}
	}
	corpus, _, err := run.OpenCorpus(ctx, cfg, t.sources)
	if err != nil {
		return badInput(err)
	}
	defer func() { err = errors.Join(err, corpus.Close()) }()
	o := compare.Options{Config: cfg, Corpus: corpus, A: c.Backend[0], B: c.Backend[1], Threads: c.Threads, Steps: c.First}
	modes := []compare.Mode{compare.Forced, compare.Free}
	var found [2]comparison
	encoder := json.NewEncoder(t.out)
	for i, mode := range modes {
		found[i].rows = map[string]*compareRow{}
		var failed error
		err := compare.Run(ctx, o, mode, func(d compare.Diff) {
			found[i].add(d)
			if c.JSON && !d.Equal() {
				failed = cmp.Or(failed, encoder.Encode(newComparedDiff(mode, d)))
			}
		})
		if err = cmp.Or(err, failed); err != nil {
			return err
		}
	}
	if c.JSON {
		return nil
	}
	fmt.Fprintf(prose(t.out), "%s against %s: %s, %s, %s of %d, %s tensors written\n",
		o.B, o.A, cfg.Recipe, cfg.Model.Preset, firstSteps(c.First), cfg.Train.Steps, writers.Count(int64(found[0].tensors)))
	if found[1].first == nil {
		fmt.Fprintln(t.out, "no bit differs")
		return nil
	}
	printFirst(prose(t.out), found[1].first)
	return printComparison(t.out, found)
}

func newComparedDiff(mode compare.Mode, d compare.Diff) comparedDiff {
	number := func(x float64) *float64 {
		if x-x != 0 {
			return nil
		}
		return &x
	}
	return comparedDiff{
		Mode: mode.String(), Step: d.Step, Program: d.Program, Path: d.Node.Path(), Op: backend.OpKind(d.Node),
		Tensor: d.Tensor.Name, DType: d.Tensor.DType.String(), Shape: d.Tensor.Shape,
		Differ: d.Differ, First: d.First, A: number(d.A), B: number(d.B), Error: number(d.Error),
	}
}

func printFirst(w io.Writer, d *compare.Diff) {
	cols := d.Tensor.Cols()
	fmt.Fprintf(w, `
the first difference, step %d, program %s:
  %s: %s
  writes %s
  %d of %d elements differ, the first is [%d, %d]: %.9g, and %.9g
`, d.Step, d.Program, d.Node.Scope, backend.OpKind(d.Node), d.Tensor, d.Differ, d.Tensor.Elems(), d.First/cols, d.First%cols, d.A, d.B)
}

// printComparison prints a row for each module with its largest errors in both modes.
func printComparison(out io.Writer, found [2]comparison) error {
	rows := table{columns: []column{
		{head: "module"},
		{head: "tensors"},
		{head: "forced: differ", short: "forced"},
		{head: "forced: error", short: "forced err"},
		{head: "free: differ", short: "free"},
		{head: "free: error", short: "free err"},
		{head: "worst op, free", optional: true},
	}}
	for _, name := range found[0].order {
		forced, free := found[0].rows[name], found[1].rows[name]
		worst := "-"
		if free.Differ > 0 {
			worst = backend.OpKind(free.Worst.Node)
		}
		rows.add(name, fmt.Sprint(forced.Tensors), fmt.Sprint(forced.Differ), errorText(forced),
			fmt.Sprint(free.Differ), errorText(free), worst)
	}
	fmt.Fprintln(out)
	return rows.print(out)
}

func firstSteps(n int) string {
	if n == 1 {
		return "step 1"
	}
	return fmt.Sprintf("steps 1 to %d", n)
}

func errorText(r *compareRow) string {
	if r.Differ == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1e", r.Worst.Error)
}
