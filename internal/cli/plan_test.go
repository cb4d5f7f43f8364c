package cli

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/internal/hostmem"
	"octet/train"
)

func TestPlan(t *testing.T) {
	out, _ := succeed(t, append([]string{"plan"}, small...)...)
	for _, want := range []string{"parameters ", "memory of one rank", "per token", "program on emu", "micro.first.last"} {
		require.Contains(t, out, want)
	}
	for _, name := range []string{"emu", "cuda"} {
		status, text, stderr := octet(append([]string{"plan", "--json", "--backend", name}, small...)...)
		require.Zero(t, status, stderr)
		var p planned
		require.NoError(t, json.Unmarshal([]byte(text), &p))
		require.Equal(t, name, p.Backend)
		require.Empty(t, p.Device)
		require.EqualValues(t, 2*256*32+32*32+2*32*16+32*32+3*32*48+3*32, p.Parameters)
		require.Equal(t, p.Memory.Total(), p.MemoryBytes)
		require.NotZero(t, p.Programs[0].FLOPs)
	}
	out, _ = succeed(t, append([]string{"plan", "--json", "--backend", "emu:h100"}, small...)...)
	require.Contains(t, out, `"backend": "emu",
  "device": "h100",`)
	dump, _ := succeed(t, append([]string{"plan", "--dump"}, small...)...)
	require.Contains(t, dump, "layers.0.mlp")
	require.Contains(t, dump, "e4m3")
	dump, _ = succeed(t, append([]string{"plan", "--dump", "--backend", "cuda"}, small...)...)
	require.Contains(t, dump, "weight.e4m3.t:e4m3") // as lowered for cuda: with transposed copies of the codes

	require.NotContains(t, out, "between")
	sharing := append(small, "train.ranks=4", "train.zero_stage=1")
	out, _ = succeed(t, append([]string{"plan"}, sharing...)...)
	require.Regexp(t, `between 4 ranks +ops +of\n(.*\n)*micro\.first\.last +reduce-scatter +[1-9]`, out)
	require.Regexp(t, `update +all-gather +[1-9]`, out)
	of := func(args []string) map[string]int64 {
		text, _ := succeed(t, append([]string{"plan", "--json"}, args...)...)
		var p planned
		require.NoError(t, json.Unmarshal([]byte(text), &p))
		classes := map[string]int64{}
		for _, g := range p.Memory.Persistent {
			classes[g.Name] = g.N
		}
		return classes
	}
	alone, shared := of(small), of(sharing)
	require.EqualValues(t, alone["param"]+3*3*32*4, 4*shared["param"], "except for the norm gains, three vectors of 32")
	require.Less(t, shared["state"], alone["state"]/2)

	// plan runs and writes nothing, so any size can be planned.
	t.Chdir(t.TempDir())
	big, _ := succeed(t, "plan", "--model", "llama3-8b", "--recipe", "bf16")
	require.Contains(t, big, "8.03B")
	require.Empty(t, names(t, "."))
}

// plan explains every word that it prints about programs and memory, within 80 columns.
func TestPlanExplainsItsWords(t *testing.T) {
	for _, name := range []string{"emu", "emu:h100", "cuda:1", "gaudi:gaudi3"} {
		out, _ := succeed(t, append([]string{"plan", "--backend", name, "train.accumulate=3"}, small...)...)
		_, programs, ok := strings.Cut(out, "\nprogram on "+name+" ")
		require.True(t, ok, out)
		table, legend, ok := strings.Cut(programs, "\n\n")
		require.True(t, ok)
		explained := map[string]bool{}
		for line := range strings.Lines(legend) {
			word, _, _ := strings.Cut(line, " ")
			explained[word] = true
		}
		lines := strings.Split(table, "\n")
		words := strings.Fields(lines[0])
		for _, line := range lines[1:] {
			program, _, _ := strings.Cut(line, " ")
			kind, _, _ := strings.Cut(program, ".")
			words = append(words, kind)
		}
		for _, word := range words {
			require.True(t, explained[word], "%s: %s", name, word)
		}
		for _, word := range []string{"launches", "compiled"} {
			require.Equal(t, strings.HasPrefix(name, "gaudi"), explained[word], "%s: %s", name, word)
		}
		for _, word := range []string{"param", "state", "stash", "temps"} {
			require.Regexp(t, `\n  `+word+` +[\d.]+ \wB +[a-z]`, out)
		}
		require.NotContains(t, out, "hint")
		fits := map[string]string{"cuda:1": "H100 (80 GB), H200 (141 GB)", "gaudi:gaudi3": "Gaudi 3 (128 GB)"}[name]
		require.Equal(t, fits != "", strings.Contains(out, "\nfits into "+fits+"\n"), out)
		for line := range strings.Lines(out) {
			require.LessOrEqual(t, utf8.RuneCountInString(line), 81, line)
		}
	}
}

// Ranks in one machine share its processors, and thus the memory of its threads.
func TestPlanOfRanksSharesProcessors(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(5))
	for ranks, want := range map[int]string{1: "scratch of 5 threads", 2: "scratch of 2 threads", 8: "scratch of 1 thread "} {
		out, _ := succeed(t, append([]string{"plan", fmt.Sprint("train.ranks=", ranks)}, small...)...)
		require.Contains(t, out, want)
	}
}

func TestPlanHintsAtTooMuchMemory(t *testing.T) {
	out, _ := succeed(t, "plan", "--model", "llama2-7b", "--backend", "cuda")
	require.Contains(t, out, "\nhint: this does not fit into H100 (80 GB) or H200 (141 GB); to need less memory, use\n"+
		"      a train.micro_batch below 8, train.recompute=block,\n      train.ranks=8 train.zero_stage=3, a smaller model\n")
	for name, want := range map[string]string{"gaudi:gaudi2": "Gaudi 2 (96 GB)", "gaudi:gaudi3": "Gaudi 3 (128 GB)"} {
		spec, err := backend.SpecOf(name)
		require.NoError(t, err)
		large, small := fittingDevices(train.Config{}, spec, train.Memory{Arena: 200e9})
		require.Empty(t, large)
		require.Equal(t, []string{want}, small)
	}
}

// fittingDevices sorts devices by whether their memory suffices, and lists this machine only
// if it is the device and has too little.
func TestFittingDevices(t *testing.T) {
	c := train.Config{}
	c.Train.Ranks = 2
	spec := backend.Spec{Capacities: []backend.Capacity{{Device: "A", Bytes: 1 << 30}, {Device: "B", Bytes: 2 << 30}}}
	memory := func(arena, outside int64) train.Memory {
		return train.Memory{Arena: arena, Outside: []train.Group{{Name: "driver", N: outside}}}
	}
	check := func(spec backend.Spec, m train.Memory, wantLarge, wantSmall []string) {
		t.Helper()
		large, small := fittingDevices(c, spec, m)
		require.Equal(t, wantLarge, large)
		require.Equal(t, wantSmall, small)
	}
	check(spec, memory(1<<30-1, 1), []string{"A", "B"}, nil)
	check(spec, memory(1<<30, 1), []string{"B"}, []string{"A"}) // each rank has its own device
	check(spec, memory(1<<31, 1), nil, []string{"A", "B"})
	check(backend.Spec{}, memory(1<<60, 0), nil, nil) // unknown capacities

	host := backend.Spec{HostMemory: true}
	check(host, memory(1, 0), nil, nil)
	if free, _, ok := hostmem.Free(); ok {
		_, small := fittingDevices(c, host, memory(3*free/4, 0))
		require.Len(t, small, 1, "both ranks are here")
		require.Regexp(t, `^this (machine|container).*, which has .*B free$`, small[0])
		copied := memory(free/8, 0)
		check(host, copied, nil, nil)
		copied.Snapshot = 2 * free
		_, small = fittingDevices(c, host, copied)
		require.Len(t, small, 1, "the host copy of a checkpoint counts")
	}
}

func TestLessMemory(t *testing.T) {
	var c train.Config
	c.Train.MicroBatch, c.Train.Recompute = 1, "block"
	host := backend.Spec{HostMemory: true}
	require.Equal(t, "a smaller model", lessMemory(c, host))
	c.Train.Ranks = 1
	require.Equal(t, "a smaller model", lessMemory(c, host), "two ranks need more of one machine")
	require.Equal(t, "train.ranks=8 train.zero_stage=3, a smaller model", lessMemory(c, backend.Spec{}))
	c.Train.MicroBatch, c.Train.Recompute, c.Train.Ranks = 4, "attention", 2
	require.Equal(t, "a train.micro_batch below 4, train.recompute=block, train.zero_stage=3, a smaller model", lessMemory(c, host))
}

// plan mentions host memory for text, except if all files are shards.
func TestPlanOfTextInMemory(t *testing.T) {
	out, _ := succeed(t, "plan")
	require.Regexp(t, `\ntext +at most 67 MB  a text up to this size is kept in host memory;\n +a larger one is read from its files\n`, out)
	out, _ = succeed(t, "plan", "--data", "shards/train_000001.bin", "--data", "notes.txt")
	require.Contains(t, out, "\ntext ")
	out, _ = succeed(t, "plan", "--data", "shards/train_000001.bin", "--data", "shards/val_000000.bin")
	require.NotContains(t, out, "\ntext ")
}
