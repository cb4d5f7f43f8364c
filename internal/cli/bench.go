package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"octet/internal/bench"
	"octet/internal/config"
	"octet/internal/writers"
	"octet/train"
)

type benchCmd struct {
	Step        benchStepCmd        `cmd:"" help:"Measure whole training steps on random tokens."`
	Gemm        benchGemmCmd        `cmd:"" help:"Measure the GEMMs of linear layers."`
	Attention   benchAttentionCmd   `cmd:"" help:"Measure attention, forward and backward."`
	Layers      benchLayersCmd      `cmd:"" help:"Measure norms, activations and other ops between GEMMs."`
	Quantize    benchQuantizeCmd    `cmd:"" help:"Measure casts to FP8."`
	Optimizer   benchOptimizerCmd   `cmd:"" help:"Measure AdamW updates."`
	Collectives benchCollectivesCmd `cmd:"" help:"Measure collectives between ranks."`
}

// benchFlags are the flags that the bench commands share.
type benchFlags struct {
	Calibrate string  `placeholder:"FILE" help:"Add the measured times to this file, for octet plan --calibration."`
	Seconds   float64 `default:"${seconds}" placeholder:"S" help:"Seconds for each measurement, of at least three bursts; default: ${seconds}."`
	JSON      bool    `help:"Print one JSON object for each measurement, the peaks first."`
	device
}

// measured explains the figures of all bench commands.
const measured = `Figures are medians. Bursts of the work alternate with bursts that measure a peak, since the speed of a shared machine drifts. The FMA peak is that of data in the L1 cache, with FP8 operands where those are faster; with emu:amx it is that of AMX. The copy bandwidth is that of arrays larger than all caches, counting bytes read and bytes written. Shares refer to the peak between the bursts, which may differ from the one printed first. `

type benchStepCmd struct {
	Args       []string    `arg:"" optional:"" name:"config.toml | key=value" sep:"none" help:"A configuration file and single keys, such as data.seq=64."`
	Recipe     string      `placeholder:"NAMES" help:"A recipe, or several separated by commas, whose steps alternate. The ratio of pairs is each recipe's step time over that of the first: the median over consecutive steps."`
	Model      config.Once `placeholder:"PRESET" help:"Size of the model: tiny, small, 124m, 1b, llama2-7b, llama3-8b, llama3-70b or llama3-405b (key model.preset); default: tiny."`
	benchFlags `embed:"" set:"seconds=10"`
}

type benchGemmCmd struct {
	Layers     []string `arg:"" optional:"" name:"MxNxK" help:"A layer: M tokens, N output and K input features; default: the layers of the presets small and 124m and two squares."`
	Recipe     string   `placeholder:"NAMES" help:"Recipes, separated by commas, that give formats and scales of the operands; default: fp8, bf16 and fp32."`
	benchFlags `embed:"" set:"seconds=0.5"`
}

type benchAttentionCmd struct {
	Shapes     []string `arg:"" optional:"" name:"BxTxHxD" help:"Sequences, tokens, heads and head size; H/KV for heads that share keys and values; default: 4x256x6x64, 1x1024x12x64 and 1x4096x8/2x128."`
	benchFlags `embed:"" set:"seconds=0.5"`
}

type benchLayersCmd struct {
	Shapes     []string `arg:"" optional:"" name:"RxC" help:"Tokens and features of the tensors; default: 1024x1024 and 32768x2048."`
	benchFlags `embed:"" set:"seconds=0.5"`
}

type benchQuantizeCmd struct {
	Shapes     []string `arg:"" optional:"" name:"RxC" help:"Rows and columns of a matrix; default: 1024x1024 and 8192x8192."`
	benchFlags `embed:"" set:"seconds=1"`
}

type benchOptimizerCmd struct {
	Sizes      []string `arg:"" optional:"" name:"N" help:"Number of parameters; default: 14M and 124M."`
	benchFlags `embed:"" set:"seconds=5"`
}

// Help returns the text that bench step --help adds.
func (benchStepCmd) Help() string {
	return measured + `No data is read, so any model can be measured. "memory" is what the trainer adds to the process, "planned" what octet plan computes for it; "allocations" are those of Go's heap in one step.

Examples:
  octet bench step                             the embedded default's model
  octet bench step --model 124m data.seq=64 train.micro_batch=4
  octet bench step --recipe bf16,fp8-smooth    what FP8 costs on this device
  octet bench step runs/mine/config.toml       the step of a run`
}

// Help returns the text that bench gemm --help adds.
func (benchGemmCmd) Help() string {
	return measured + `A layer has three GEMMs in a step, and the table has a line for each format of the operands:

  fprop   y = x w^T      MxNxK   NT
  dgrad   dx = dy w      MxKxN   NN
  wgrad   dw = dy^T x    NxKxM   TN

fp8 is E4M3 with E5M2 gradients. The operands of a recipe are those of a layer that no slice in a scope selects, without rotations and stochastic rounding. The weight gradient is FP32; other results have the compute format, BF16 of most recipes. With --json each GEMM is an object with its own shape.

Examples:
  octet bench gemm
  octet bench gemm 1024x1024x1024 --recipe fp8-current,mxfp8,nvfp4-plain
  octet bench gemm 4096x4096x4096 --backend cuda:0`
}

// Help returns the text that bench attention --help adds.
func (benchAttentionCmd) Help() string {
	return measured + `Attention is causal, in BF16. FLOPs are those of its matrix products on visible scores: two forward, five backward.

Examples:
  octet bench attention
  octet bench attention 1x8192x32/8x128 --backend cuda:0`
}

// Help returns the text that bench layers --help adds.
func (benchLayersCmd) Help() string {
	return measured + `Tensors are BF16; results that a GEMM reads are E4M3, with a scale and an amax. Bytes count each operand once; an op whose tensors fit the caches can be faster than the copy. C of cross-entropy is the vocabulary.

Examples:
  octet bench layers
  octet bench layers 4096x11008 --threads 1`
}

// Help returns the text that bench quantize --help adds.
func (benchQuantizeCmd) Help() string {
	return measured + `Each cast multiplies by a scale and records the amax. Bytes count each operand once; a matrix that fits the caches can be faster than the copy.

Examples:
  octet bench quantize
  octet bench quantize 4096x4096 --seconds 5`
}

// Help returns the text that bench optimizer --help adds.
func (benchOptimizerCmd) Help() string {
	return measured + `Formats are those of master weights, first and second moment. Bytes count the gradient, read once, and the optimizer state, read and written once; a second pass over scaled state is not counted. An update in place can be faster than the copy.

Examples:
  octet bench optimizer
  octet bench optimizer 1G --backend cuda:0`
}

// open opens the device to measure on.
func (f benchFlags) open() (*bench.Bench, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	if !(f.Seconds >= 0 && f.Seconds <= 1e6) {
		return nil, fmt.Errorf("--seconds %v: expected 0 to 1000000", f.Seconds)
	}
	return bench.Open(bench.Options{Backend: f.Backend, Threads: f.Threads, Seconds: f.Seconds})
}

// output prints results as a table or as JSON.
type output struct {
	w    io.Writer
	json *json.Encoder // nil: a table
}

// begin prints the peaks.
func (f benchFlags) begin(w io.Writer, b *bench.Bench) (*output, error) {
	peaks, err := b.Peaks()
	if err != nil {
		return nil, err
	}
	o := &output{w: w}
	if f.JSON {
		o.json = json.NewEncoder(w)
		for _, p := range peaks {
			if err := o.json.Encode(p); err != nil {
				return nil, err
			}
		}
		return o, nil
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, p := range peaks {
		fmt.Fprintf(tw, "peak of %s, %s\t%.0f GFLOP/s\tcopy %.1f GB/s\n", p.Backend, p.Device, p.PeakGFLOPs, p.CopyGBytes)
	}
	fmt.Fprintln(tw)
	return o, tw.Flush()
}

// cases measures the cases that list returns and prints each result: as JSON, or as a
// table whose lines show prints.
func (f benchFlags) cases(ctx context.Context, t *terminal, list func(*bench.Bench) ([]bench.Case, error), header string, show func(w io.Writer, r bench.Result)) (err error) {
	b, err := f.open()
	if err != nil {
		return badInput(err)
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	cases, err := list(b)
	if err != nil {
		return badInput(err)
	}
	calibration, err := f.calibration(b)
	if err != nil {
		return badInput(err)
	}
	o, err := f.begin(t.out, b)
	if err != nil {
		return err
	}
	if o.json == nil {
		fmt.Fprintln(t.out, header)
	}
	for _, c := range cases {
		r, err := b.Measure(ctx, c)
		if err != nil {
			return err
		}
		if o.json == nil {
			show(t.out, r)
		} else if err := o.json.Encode(r); err != nil {
			return err
		}
	}
	return calibration.write(t)
}

// parseAll parses the arguments, or returns the defaults if there are none.
func parseAll[S any](args []string, parse func(string) (S, error), defaults []S) ([]S, error) {
	if len(args) == 0 {
		return defaults, nil
	}
	var list []S
	for _, a := range args {
		s, err := parse(a)
		if err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	return list, nil
}

func (c benchGemmCmd) Run(ctx context.Context, t *terminal) error {
	layers, err := parseAll(c.Layers, bench.ParseLayer, bench.Layers)
	if err != nil {
		return badInput(err)
	}
	formats, err := c.formats()
	if err != nil {
		return badInput(err)
	}
	width := len("format")
	for _, f := range formats {
		width = max(width, len(f.Name))
	}
	header := fmt.Sprintf("%-18s %-*s", "layer", width, "format")
	for _, p := range bench.Passes {
		header += fmt.Sprintf(" %10s  peak", p)
	}
	n, passes := 0, len(bench.Passes)
	show := func(w io.Writer, r bench.Result) {
		if n%passes == 0 {
			layer := ""
			if n%(passes*len(formats)) == 0 {
				layer = layers[n/(passes*len(formats))].String()
			}
			fmt.Fprintf(w, "%-18s %-*s", layer, width, formats[n/passes%len(formats)].Name)
		}
		fmt.Fprintf(w, " %10s %5s", rateText(r.GFLOPs), shareText(r.PeakShare))
		if n++; n%passes == 0 {
			fmt.Fprintln(w)
		}
	}
	list := func(b *bench.Bench) ([]bench.Case, error) { return b.GEMM(layers, formats) }
	return c.cases(ctx, t, list, "GFLOP/s\n"+header, show)
}

// formats returns the formats and scales to compare.
func (c benchGemmCmd) formats() (list []bench.Operands, err error) {
	if c.Recipe == "" {
		return bench.Formats()
	}
	for name := range strings.SplitSeq(c.Recipe, ",") {
		r, err := config.FindRecipe(name)
		if err != nil {
			return nil, fmt.Errorf("--recipe: %w", err)
		}
		list = append(list, bench.Operands{Name: r.Name, Recipe: r})
	}
	return list, nil
}

func (c benchAttentionCmd) Run(ctx context.Context, t *terminal) error {
	shapes, err := parseAll(c.Shapes, bench.ParseHeads, bench.Attentions)
	if err != nil {
		return badInput(err)
	}
	header := fmt.Sprintf("%-24s", "shape")
	for _, d := range bench.Directions {
		header += fmt.Sprintf(" %10s  peak", d)
	}
	n := 0
	show := func(w io.Writer, r bench.Result) {
		if n%len(bench.Directions) == 0 {
			fmt.Fprintf(w, "%-24s", r.Shape)
		}
		fmt.Fprintf(w, " %10s %5s", rateText(r.GFLOPs), shareText(r.PeakShare))
		if n++; n%len(bench.Directions) == 0 {
			fmt.Fprintln(w)
		}
	}
	list := func(b *bench.Bench) ([]bench.Case, error) { return b.Attention(shapes) }
	return c.cases(ctx, t, list, "GFLOP/s\n"+header, show)
}

func (c benchLayersCmd) Run(ctx context.Context, t *terminal) error {
	shapes, err := parseAll(c.Shapes, bench.ParseMatrix, bench.Activations)
	if err != nil {
		return badInput(err)
	}
	list := func(b *bench.Bench) ([]bench.Case, error) { return b.Layers(shapes) }
	return c.byteCases(ctx, t, list, "op", "shape")
}

func (c benchQuantizeCmd) Run(ctx context.Context, t *terminal) error {
	shapes, err := parseAll(c.Shapes, bench.ParseMatrix, bench.Matrices)
	if err != nil {
		return badInput(err)
	}
	list := func(b *bench.Bench) ([]bench.Case, error) { return b.Quantize(shapes) }
	return c.byteCases(ctx, t, list, "cast", "shape")
}

func (c benchOptimizerCmd) Run(ctx context.Context, t *terminal) error {
	sizes, err := parseAll(c.Sizes, bench.ParseSize, bench.Sizes)
	if err != nil {
		return badInput(err)
	}
	list := func(b *bench.Bench) ([]bench.Case, error) { return b.Optimizer(sizes) }
	return c.byteCases(ctx, t, list, "states", "parameters")
}

// byteCases measures and prints cases that memory bandwidth limits.
func (f benchFlags) byteCases(ctx context.Context, t *terminal, list func(*bench.Bench) ([]bench.Case, error), name, shape string) error {
	const line = "%-34s %12s %12s %8s %8s"
	return f.cases(ctx, t, list, fmt.Sprintf(line, name, shape, "median", "GB/s", "of copy"), func(w io.Writer, r bench.Result) {
		fmt.Fprintf(w, line+"\n", r.Name, r.Shape, millis(r.Median), rateText(r.GBytes), shareText(r.CopyShare))
	})
}

// configs returns the configurations to compare, one for each recipe.
func (c benchStepCmd) configs() (list []train.Config, err error) {
	recipes := []config.Once{{}} // the recipe of the configuration
	if c.Recipe != "" {
		recipes = nil
		for name := range strings.SplitSeq(c.Recipe, ",") {
			recipes = append(recipes, config.Once{Value: name, Given: true})
		}
	}
	for _, recipe := range recipes {
		args, err := configArgs(c.Args, config.Flags{Recipe: recipe, Model: c.Model})
		if err != nil {
			return nil, err
		}
		loaded, err := config.New(args)
		if err != nil {
			return nil, err
		}
		if err := loaded.CheckRanks(); err != nil {
			return nil, err
		}
		list = append(list, loaded.Config)
	}
	return list, nil
}

func (c benchStepCmd) Run(ctx context.Context, t *terminal) (err error) {
	configs, err := c.configs()
	if err != nil {
		return badInput(err)
	}
	b, err := c.open()
	if err != nil {
		return badInput(err)
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	calibration, err := c.calibration(b)
	for i := range configs {
		if calibration != nil && err == nil {
			_, err = bench.Shapes(configs[i])
		}
	}
	if err != nil {
		return badInput(err)
	}
	steps, err := b.Steps(ctx, configs)
	if err != nil {
		return badInput(err)
	}
	defer func() { err = errors.Join(err, steps.Close()) }()
	o, err := c.begin(t.out, b)
	if err != nil {
		return err
	}
	results, err := steps.Measure(ctx)
	if err != nil {
		return err
	}
	if o.json == nil {
		printSteps(t.out, results)
	} else {
		for _, r := range results {
			if err := o.json.Encode(r); err != nil {
				return err
			}
		}
	}
	if calibration == nil {
		return nil
	}
	for _, config := range configs {
		if err := b.CalibrateStep(ctx, config); err != nil {
			return badInput(err)
		}
	}
	return calibration.write(t)
}

// printSteps prints the table of steps, with a column for each configuration. A narrow
// terminal gets several tables.
func printSteps(w io.Writer, results []bench.Result) {
	first := results[0]
	fmt.Fprintf(w, "model %s: %s parameters, %s tokens a step, %d repeats\n",
		first.Model, writers.Count(first.Parameters), writers.Count(first.Tokens), first.Repeats)
	const label, cell = 16, 15
	perTable := len(results)
	if columns := columnsOf(w); columns > 0 {
		perTable = max(1, (columns-label)/cell)
	}
	for part := range slices.Chunk(results, perTable) {
		if &part[0] != &results[0] {
			fmt.Fprintln(w)
		}
		printStepTable(w, part, len(results) > 1)
	}
}

func printStepTable(w io.Writer, results []bench.Result, several bool) {
	line := func(name string, value func(bench.Result) string) {
		fmt.Fprintf(w, "%-16s", name)
		for _, r := range results {
			fmt.Fprintf(w, " %14s", value(r))
		}
		fmt.Fprintln(w)
	}
	line("recipe", func(r bench.Result) string { return r.Name })
	line("tokens/s", func(r bench.Result) string { return writers.Count(int64(r.TokensPerS)) })
	line("step, median", func(r bench.Result) string { return millis(r.Median) })
	line("  min", func(r bench.Result) string { return millis(r.Min) })
	line("  max", func(r bench.Result) string { return millis(r.Max) })
	if several {
		line("  ratio of pairs", func(r bench.Result) string { return fmt.Sprintf("%.3f", r.TimeRatio) })
	}
	line("GFLOP/s", func(r bench.Result) string { return rateText(r.GFLOPs) })
	line("  peak between", func(r bench.Result) string { return rateText(r.PeakGFLOPs) })
	line("  of peak", func(r bench.Result) string { return shareText(r.PeakShare) })
	line("memory", func(r bench.Result) string { return bytesText(r.Memory) })
	line("  planned", func(r bench.Result) string { return bytesText(r.Planned) })
	line("allocations", func(r bench.Result) string { return writers.Count(r.Allocations) })
}

// unknown is printed for a figure that was not measured.
const unknown = "-"

func rateText(giga float64) string {
	if giga == 0 {
		return unknown
	}
	return fmt.Sprintf("%.1f", giga)
}

func shareText(share float64) string {
	if share == 0 {
		return unknown
	}
	return percent(share)
}

func bytesText(n int64) string {
	if n == 0 {
		return unknown
	}
	return writers.Bytes(n)
}

func millis(seconds float64) string {
	if seconds == 0 {
		return unknown
	}
	return fmt.Sprintf("%.3f ms", 1e3*seconds)
}
