// Package cli is the octet command: one file for each subcommand. A subcommand
// reads its arguments, calls the library, and prints.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"octet/backend"
	"octet/checkpoint"
	"octet/internal/disk"
)

// commands is the grammar, in kong's tags.
type commands struct {
	Train     trainCmd     `cmd:"" help:"Train a model and save checkpoints; without arguments, train the embedded default."`
	Sweep     sweepCmd     `cmd:"" help:"Train the runs of a sweep file, several at a time, and compare them: recipes, seeds, keys."`
	Eval      evalCmd      `cmd:"" help:"Measure loss, perplexity and bits per byte of a run or checkpoint."`
	Generate  generateCmd  `cmd:"" help:"Continue a prompt with a trained model."`
	Parity    parityCmd    `cmd:"" help:"Compare the probabilities of training with those of generation or an export, token by token."`
	Export    exportCmd    `cmd:"" help:"Write a run's model as a Hugging Face folder, with Smooth-SwiGLU folded into the weights."`
	Inspect   inspectCmd   `cmd:"" help:"Show the tensors, scales and amax histories of a checkpoint, and what looks wrong."`
	Report    reportCmd    `cmd:"" help:"Write a page that compares runs: losses, casts, throughput, configurations."`
	Board     boardCmd     `cmd:"" help:"Serve pages about the runs in a folder while they train, to this machine only."`
	Diff      diffCmd      `cmd:"" help:"Find the first step, field and tensor in which two runs differ."`
	Plan      planCmd      `cmd:"" help:"Show parameters, memory, FLOPs and programs of a configuration without running it."`
	Recipes   recipesCmd   `cmd:"" help:"List the recipes, or show which GEMM of a recipe reads which format."`
	Compare   compareCmd   `cmd:"" help:"Run the same program on two backends and compare every tensor, op by op."`
	Quantize  quantizeCmd  `cmd:"" help:"Cast matrices to a format and show what the cast loses; --out writes codes and scales."`
	Dump      dumpCmd      `cmd:"" help:"Repeat one step of a run and write its tensors: codes, scales and values."`
	Gemm      gemmCmd      `cmd:"" help:"Compute one GEMM of codes or values; --explain shows its sums step by step."`
	Data      dataCmd      `cmd:"" help:"Turn text into tokens to train on, inspect such folders, and convert data sets to tasks."`
	Tokenizer tokenizerCmd `cmd:"" help:"Train a tokenizer, encode text and decode ids."`
	Bench     benchCmd     `cmd:"" help:"Measure training steps and their parts beside the device's measured peaks."`
	Serve     serveCmd     `cmd:"" help:"Answer requests of another program on standard input and output: casts, GEMMs, runs."`
	Doctor    doctorCmd    `cmd:"" help:"Show which backends work here, what is missing, and how to fix it."`
	Version   versionCmd   `cmd:"" help:"Print the version of octet, its Go version and build tags."`
}

// terminal holds the streams of a command.
type terminal struct {
	name     string   // the name that the command was called by
	args     []string // its arguments
	out, err io.Writer
	sources  fs.FS // Octet's own source: the default corpus without a Go installation
}

// Exit statuses, besides 0 and 128 + signal.
const (
	exitFailed = 1 // after the start
	exitInput  = 2 // nothing was started
)

// inputError marks an error that the user can fix; nothing was started.
type inputError struct{ error }

func (e inputError) Unwrap() error { return e.error }

// badInput wraps an error in inputError; nil stays nil.
func badInput(err error) error {
	if err == nil {
		return nil
	}
	return inputError{err}
}

// stopped ends the command with a status and no message of its own.
type stopped struct{ status int }

func (s stopped) Error() string { return fmt.Sprintf("stopped with status %d", s.status) }

// Main runs the command line and returns the exit status.
func Main(args []string, sources fs.FS) int {
	t := &terminal{name: args[0], out: os.Stdout, err: os.Stderr, sources: sources}
	return t.run(context.Background(), args[1:])
}

func (t *terminal) run(ctx context.Context, args []string) (status int) {
	t.args = args
	if len(args) == 0 || args[0] == "help" {
		args = append([]string{"--help"}, args[min(1, len(args)):]...)
		if len(args) > 1 {
			args = append(args[1:], "--help")
		}
	}
	if args[0] == "--version" { // the flag that most programs have
		args = append([]string{"version"}, args[1:]...)
	}
	// kong ends the process after --help; here it unwinds to this function.
	defer func() {
		if r := recover(); r != nil {
			s, ok := r.(stopped)
			if !ok {
				panic(r)
			}
			status = s.status
		}
	}()
	var c commands
	parser, err := kong.New(&c,
		kong.Name(filepath.Base(t.name)),
		kong.Description("Octet trains large language models in FP8."),
		kong.Writers(t.out, t.err),
		kong.Exit(func(status int) { panic(stopped{status}) }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, Summary: false}),
		kong.Bind(t),
		kong.BindTo(ctx, (*context.Context)(nil)),
	)
	if err != nil {
		panic(err) // the grammar above is wrong: a test parses it
	}
	var k *kong.Context
	args, err = flagsFirst(parser.Model, args)
	if err == nil {
		k, err = parser.Parse(args)
	}
	if err != nil {
		fmt.Fprintf(prose(t.err), "octet: %v\n", err)
		return exitInput
	}
	if err := errors.Join(checkBackendNames(k), checkLocalPaths(k)); err != nil {
		return t.status(badInput(err))
	}
	return t.status(k.Run())
}

// checkBackendNames refuses --backend="": an unset variable of a script must not select
// the best backend that is present.
func checkBackendNames(k *kong.Context) error {
	for _, p := range k.Path {
		if p.Flag == nil || p.Flag.Name != "backend" {
			continue
		}
		names, ok := p.Flag.Target.Interface().([]string)
		if !ok {
			names = []string{p.Flag.Target.String()}
		}
		if slices.Contains(names, "") {
			return errors.New("--backend is empty: name one, such as emu, or omit the flag for the best that is present")
		}
	}
	return nil
}

// checkLocalPaths refuses a URL in every argument and flag, except --prompt and
// --metrics-addr.
func checkLocalPaths(k *kong.Context) error {
	for _, p := range k.Path {
		var value *kong.Value
		switch {
		case p.Positional != nil:
			value = p.Positional
		case p.Flag != nil && p.Flag.Name != "prompt" && p.Flag.Name != "metrics-addr":
			value = p.Flag.Value
		default:
			continue
		}
		var paths []string
		switch v := value.Target.Interface().(type) {
		case string:
			paths = []string{v}
		case []string:
			paths = v
		}
		for _, path := range paths {
			if err := disk.CheckLocal(path); err != nil {
				return err
			}
		}
	}
	return nil
}

// status prints an error and returns the exit status of the process.
func (t *terminal) status(err error) int {
	if err == nil {
		return 0
	}
	if s, ok := errors.AsType[stopped](err); ok {
		return s.status
	}
	t.printError(err)
	if _, ok := errors.AsType[inputError](err); ok {
		return exitInput
	}
	return exitFailed
}

// printError prints an error and what to do about it.
func (t *terminal) printError(err error) {
	fmt.Fprintf(prose(t.err), "octet: %v%s\n", err, openFilesHint(err))
}

// openFilesHint returns what to do about an error caused by the limit of open files, or "".
func openFilesHint(err error) string {
	if text := err.Error(); !errors.Is(err, syscall.EMFILE) || strings.Contains(text, "ulimit") {
		return ""
	}
	return "; raise the limit, for example with ulimit -n 1024"
}

// device holds the flags that select the backend, its device and its threads.
type device struct {
	Backend string `placeholder:"NAME" help:"Backend and device, such as emu, emu:h100 or cuda:0; default: the best that is present."`
	Threads int    `placeholder:"N" help:"Threads of the CPU backend; default: 0, all processors."`
}

const maxThreads = 1 << 16

// check returns an error for a number of threads that is out of range.
func (d device) check() error {
	if d.Threads < 0 || d.Threads > maxThreads {
		return fmt.Errorf("--threads %d is out of range: use 1 to %d, or 0 for all processors", d.Threads, maxThreads)
	}
	return nil
}

// open opens the one device of a command that needs no ranks.
func (d device) open() (backend.Backend, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	return backend.Open(d.Backend, backend.Options{Threads: d.Threads})
}

// reportSkipped prints the damaged checkpoints that are newer than the one in use.
func (t *terminal) reportSkipped(skipped []checkpoint.Entry) {
	for _, e := range skipped {
		fmt.Fprintf(prose(t.err), "octet: skipped a damaged checkpoint: %s: %v\n", e.Path, e.Damage)
	}
}
