package cli

import (
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"octet/backend"
	"octet/data"
	"octet/internal/hostmem"
	"octet/internal/writers"
	"octet/train"
)

// memoryWords explain the memory classes.
var memoryWords = map[string]string{
	"param":  "master weights",
	"state":  "moments, scales and their histories",
	"stash":  "gradients and cast weights, between programs",
	"input":  "tokens and targets",
	"output": "losses, norms and flags",
	"temps":  "activations and more, within one program",
}

// programWords explain the programs and the columns of their table.
var programWords = []struct{ name, text string }{
	{"micro", "forward and backward of a micro-batch: .first writes gradients, the\nothers add to them, .last sums them over the ranks"},
	{"update", "the optimizer, and the scales of the next step"},
	{"calibrate", "a pass over the first micro-batch that sets the first scales"},
	{"prepare", "casts the weights after they are initialised or loaded"},
	{"eval", "the loss of a validation batch; with train.objective=dpo also the\nlog-probabilities of each micro-batch, before it"},
	{"health", "a pass that measures casts, every train.health_every steps"},
	{"ops", "operations, in order; emu runs independent matrix products together"},
	{"blocks", "consecutive ops: the forward or the backward pass of one layer"},
	{"distinct", "blocks that differ in more than the tensors they use"},
	{"products", "FLOPs of the matrix products"},
	{"launches", "graphs that the device launches, one after the other"},
	{"compiled", "distinct graphs; each is compiled once"},
}

func (p planned) print(w io.Writer, job *train.Job, spec backend.Spec) error {
	if len(p.Schedule) > 0 {
		fmt.Fprint(w, "schedule of recipes:")
		for i, s := range p.Schedule {
			if i > 0 {
				fmt.Fprintf(w, ", after step %d", s.Step)
			}
			fmt.Fprintf(w, " %s", s.Recipe)
		}
		fmt.Fprintf(w, "\nthe recipe that needs the most memory:\n\n")
	}
	if err := describeRecipe(w, job.Recipe, job.Notes, job.Model.Linears()); err != nil {
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	table := func(groups []train.Group, format func(int64) string, words map[string]string) {
		for _, g := range mergeSmall(groups) {
			fmt.Fprintf(tw, "  %s\t%s", g.Name, format(g.N))
			if word := words[g.Name]; word != "" {
				fmt.Fprintf(tw, "\t%s", word)
			}
			fmt.Fprintln(tw)
		}
	}
	fmt.Fprintf(tw, "\nparameters\t%s\n", writers.Count(p.Parameters))
	if p.Active > 0 {
		fmt.Fprintf(tw, "  active\t%s\tof a token, which goes to some experts\n", writers.Count(p.Active))
	}
	table(p.Groups, writers.Count, nil)
	fmt.Fprintf(tw, "\nmemory of one rank\t%s\n", writers.Bytes(p.MemoryBytes))
	table(memoryGroups(p.Memory), writers.Bytes, memoryWords)
	fmt.Fprintf(tw, "\ncheckpoint\t%s\ta copy in host memory, written to disk while steps run\n", writers.Bytes(p.Memory.Snapshot))
	if !onlyShards(job.Config.Data.Paths) {
		fmt.Fprintf(tw, "\ntext\tat most %s\ta text up to this size is kept in host memory;\n\t\ta larger one is read from its files\n", writers.Bytes(data.MaxInMemory))
	}
	if job.TokenLosses != nil {
		fmt.Fprintf(tw, "\nreference\t16 B per pair\ton the host: log-probabilities of initial weights\n")
	}
	if outside := totalOf(p.Memory.Outside); outside > 0 {
		fmt.Fprintf(tw, "\noutside, estimated\t%s\tdriver and libraries, in none of the sums\n", writers.Bytes(outside))
		table(p.Memory.Outside, writers.Bytes, nil)
	}
	large, small := fittingDevices(job.Config, spec, p.Memory)
	if len(large) > 0 {
		fmt.Fprintf(tw, "\nfits into %s\n", strings.Join(large, ", "))
	}
	if len(small) > 0 {
		fmt.Fprintf(tw, "\nhint: this does not fit into %s; to need less memory, use\n", strings.Join(small, " or "))
		for _, part := range wrap(lessMemory(job.Config, spec), 74) {
			fmt.Fprintf(tw, "      %s\n", strings.TrimSpace(part))
		}
	}
	fmt.Fprintf(tw, "\npersistent, by module\t%s\twithout temps\n", writers.Bytes(totalOf(p.Memory.Persistent)))
	table(p.Memory.Scopes, writers.Bytes, nil)
	p.printLines(tw)
	fmt.Fprintf(tw, "\ncompute\t%s per token\n", writers.Quantity(p.FLOPsPerToken, "FLOP"))
	fmt.Fprintf(tw, "step\t%s tokens\n", writers.Count(p.TokensPerStep))
	if len(p.Exchanges) > 0 {
		fmt.Fprintf(tw, "\nbetween %d ranks\t\tops\tof\n", job.Config.Train.Ranks)
	}
	for _, x := range p.Exchanges {
		fmt.Fprintf(tw, "%s\t%s\t%d\t%s\n", x.Program, x.Op, x.Count, writers.Bytes(x.Bytes))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	return p.printPrograms(w)
}

func (p planned) printPrograms(w io.Writer) error {
	compiled := slices.ContainsFunc(p.Programs, func(r programReport) bool { return r.Compiled > 0 })
	columns := []string{"ops", "blocks", "distinct", "products"}
	if compiled {
		columns = append(columns, "launches", "compiled")
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(tw, "\nprogram on %s\t%s\n", backendName(p.Backend, p.Device), strings.Join(columns, "\t"))
	printed := columns
	for _, r := range p.Programs {
		fmt.Fprintf(tw, "%s\t%d\t%d\t%d\t%s", r.Name, r.Ops, r.Blocks, r.DistinctBlocks, writers.Quantity(float64(r.FLOPs), "FLOP"))
		if compiled {
			fmt.Fprintf(tw, "\t%d\t%d", r.Launches, r.Compiled)
		}
		fmt.Fprintln(tw)
		kind, _, _ := strings.Cut(r.Name, ".")
		printed = append(printed, kind)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	for _, word := range programWords {
		if slices.Contains(printed, word.name) {
			fmt.Fprintf(tw, "%s\t%s\n", word.name, strings.ReplaceAll(word.text, "\n", "\n\t"))
		}
	}
	return tw.Flush()
}

// onlyShards reports whether all paths name shards, which are never kept in memory. A
// folder may hold text.
func onlyShards(paths []string) bool {
	isText := func(path string) bool { return filepath.Ext(path) != ".bin" }
	return len(paths) > 0 && !slices.ContainsFunc(paths, isText)
}

// fittingDevices lists the backend's devices with enough memory and those with too little:
// "H100 (80 GB)". If the device is this machine, it is listed only if it has too little.
func fittingDevices(c train.Config, spec backend.Spec, m train.Memory) (large, small []string) {
	need := m.Total() + totalOf(m.Outside)
	if spec.HostMemory {
		free, bound, ok := hostmem.Free()
		if ok && need*int64(c.Train.Ranks)+m.Snapshot > free { // the check of a run
			small = append(small, fmt.Sprintf("%s, which has %s free", bound, writers.Bytes(free)))
		}
		return nil, small
	}
	for _, k := range spec.Capacities {
		if need <= k.Bytes {
			large = append(large, k.Device)
		} else {
			small = append(small, k.Device)
		}
	}
	return large, small
}

// lessMemory lists the settings that reduce the memory of a configuration.
func lessMemory(c train.Config, spec backend.Spec) string {
	var ways []string
	if c.Train.MicroBatch > 1 {
		ways = append(ways, fmt.Sprintf("a train.micro_batch below %d", c.Train.MicroBatch))
	}
	if c.Train.Recompute != "block" {
		ways = append(ways, "train.recompute=block")
	}
	if c.Train.ZeroStage == train.MaxZeroStage {
		for _, n := range tensorsBeyond(c, 2*c.Train.Tensor) {
			ways = append(ways, fmt.Sprintf("train.tensor_parallel=%d", n))
		}
	}
	switch {
	case c.Train.Ranks > 1 && c.Train.ZeroStage < train.MaxZeroStage:
		ways = append(ways, fmt.Sprintf("train.zero_stage=%d", train.MaxZeroStage))
	case c.Train.Ranks == 1 && !spec.HostMemory: // 8 devices are the usual number in a machine
		ways = append(ways, fmt.Sprintf("train.ranks=8 train.zero_stage=%d", train.MaxZeroStage))
	}
	return strings.Join(append(ways, "a smaller model"), ", ")
}
