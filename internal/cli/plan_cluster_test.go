package cli

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"octet/backend/cost"
	"octet/internal/chart"
	"octet/train"
)

var update = flag.Bool("update", false, "write the golden files")

const toys = "testdata/devices.toml"

// onToys returns the arguments to predict the smallest model on a cluster of made-up devices.
func onToys(cluster string, more ...string) []string {
	return append(append([]string{"plan", "--devices", toys, "--cluster", cluster}, small...), more...)
}

// predictionOf returns the JSON of one recipe.
func predictionOf(t *testing.T, args ...string) planned {
	t.Helper()
	text, _ := succeed(t, append(args, "--json")...)
	var p planned
	require.NoError(t, json.Unmarshal([]byte(text), &p))
	require.NotNil(t, p.Prediction)
	return p
}

// The output of a prediction is that of a golden file, which go test ./internal/cli -update writes.
func TestPlanClusterText(t *testing.T) {
	const golden = "testdata/plan_cluster.txt"
	out, stderr := succeed(t, onToys("toy:2x2", "--recipe", "bf16,fp8-smooth", "train.zero_stage=1", "--tokens", "150G", "--price", "0.5", "--grid", "400", "--sweep", "1..8")...)
	require.Empty(t, stderr)
	if *update {
		require.NoError(t, os.WriteFile(golden, []byte(out), 0o600))
	}
	require.Equal(t, read(t, golden), out)
	for line := range strings.Lines(out) {
		require.LessOrEqual(t, utf8.RuneCountInString(line), 81, line)
	}
}

func TestPlanClusterJSON(t *testing.T) {
	p := predictionOf(t, onToys("toy:2x2", "--recipe", "bf16", "--tokens", "300M", "--price", "0.5", "--grid", "400", "--mtbf", "500h", "--checkpoint-rate", "20MB/s")...)
	x := p.Prediction
	require.Equal(t, "toy:2x2", x.Cluster)
	require.Equal(t, "Toy", x.Title)
	require.Equal(t, 4, x.Devices)
	require.EqualValues(t, 1<<30, x.Capacity)
	require.Equal(t, p.MemoryBytes+totalOf(p.Memory.Outside), x.Need)
	require.InDelta(t, 12*p.Parameters, x.Save, 64, "master weights and moments in FP32")
	require.EqualValues(t, 2*32*4, p.TokensPerStep, "train.ranks is the number of devices")
	require.InEpsilon(t, float64(p.TokensPerStep)/x.StepSeconds, x.TokensPerS, 1e-9)
	require.InEpsilon(t, x.TokensPerS*p.FLOPsPerToken/(4*0.5e12), x.MFU, 1e-9)
	require.Less(t, x.Band[0], x.StepSeconds)
	require.Greater(t, x.Band[1], x.StepSeconds)
	sum := 0.0
	for _, c := range x.Classes {
		sum += c.Share
	}
	require.InDelta(t, 1, sum, 1e-9)
	require.InEpsilon(t, 300e6/x.TokensPerS/(1-x.Lost)/86400, x.Days, 1e-9)
	require.InEpsilon(t, x.Days*24*4*0.5, x.Cost, 1e-9)
	require.InEpsilon(t, x.Days*24*4*5*1.5/1000, x.KWh, 1e-9)
	require.InEpsilon(t, x.KWh*0.4, x.CO2, 1e-9)
	failures := cost.Failures{MTBF: 500 * 3600 / 4, Restart: 600, Save: float64(p.Memory.Snapshot) / 10e9, Write: float64(x.Save) / 20e6}
	require.InEpsilon(t, failures.Interval(), x.Interval, 1e-9)
	require.InEpsilon(t, 1-1/failures.Slowdown(x.Interval), x.Lost, 1e-9)
	require.Contains(t, x.Assumptions, cost.Origin{Name: "mtbf", Meaning: cost.Names()["mtbf"], Value: 500, Kind: "assumed", Source: "given on the command line"})
	require.Contains(t, x.Assumptions, cost.Origin{Name: "memory", Meaning: cost.Names()["memory"], Value: 1, Kind: "published", Source: "a test"})
	require.Empty(t, x.Sweep)

	text, _ := succeed(t, onToys("toy", "--recipe", "bf16,fp8-smooth", "--json")...)
	var list []planned
	require.NoError(t, json.Unmarshal([]byte(text), &list))
	require.Len(t, list, 2)
	require.Equal(t, "bf16", list[0].Recipe)
	require.Equal(t, "fp8-smooth", list[1].Recipe)
	require.Zero(t, list[0].Prediction.WireSeconds, "one device waits for no other")

	// Without --cluster nothing is predicted.
	text, _ = succeed(t, append([]string{"plan", "--json"}, small...)...)
	require.NotContains(t, text, "prediction")
}

// A network between nodes, and another backend than that of the device.
func TestPlanClusterOptions(t *testing.T) {
	slow := predictionOf(t, onToys("toy:2x2")...).Prediction
	fast := predictionOf(t, onToys("toy:2x2", "--network", "ib-400")...).Prediction
	require.Less(t, fast.WireSeconds, slow.WireSeconds/2)
	require.Equal(t, "emu", predictionOf(t, onToys("toy", "--backend", "emu:gaudi2")...).Backend)
	p := predictionOf(t, onToys("bare", "--recipe", "bf16", "--backend", "cuda:sm_90", "--assume", "memory=2", "--tokens", "1G", "--grid", "1")...)
	require.Equal(t, []string{
		"it is made up: the programs are those of backend cuda:sm_90",
		"no power of bare is known, so there is no energy: give it by --assume watts=W",
	}, p.Prediction.Notes)
	require.Zero(t, p.Prediction.KWh, "no source tells the device's power")

	// The ranks of a node share its processors.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(5))
	text, _ := succeed(t, onToys("toy:2x2", "--backend", "emu", "--json")...)
	require.Contains(t, text, "scratch of 2 threads")

	// Numbers that nothing depends on, and nodes larger than those sold, get a note.
	p = predictionOf(t, onToys("toy", "--recipe", "bf16", "--assume", "int8_peak=5", "--assume", "rest=2")...)
	require.Equal(t, []string{"int8_peak=5 has no effect: no prediction here depends on int8_peak"}, p.Prediction.Notes)
	p = predictionOf(t, "plan", "--json", "--cluster", "h100:16", "--model", "tiny", "--checkpoint-rate", "1kB/s", "--tokens", "2e12")
	require.Contains(t, p.Prediction.Notes, "a node of H100 SXM has up to 8 devices, and h100:16x1 puts 16 into one: link connects them all")
	require.Contains(t, strings.Join(p.Prediction.Notes, "\n"), "follow each other, since writing one takes")
	require.Equal(t, p.Prediction.Write, p.Prediction.Interval)
	require.EqualValues(t, math.Ceil(2e12/float64(p.TokensPerStep)), p.Prediction.Steps)

	file := filepath.Join(t.TempDir(), "my.toml")
	require.NoError(t, os.WriteFile(file, []byte("recipe = \"fp8-delayed\"\n[train]\nranks = 4\n"), 0o600))
	require.Equal(t, "fp8-delayed", predictionOf(t, append(onToys("toy:2x2"), file)...).Recipe)
	scheduled := predictionOf(t, onToys("toy", "--recipe", "bf16", `precision.schedule=[{step=2, recipe="fp8-smooth"}]`)...)
	require.Contains(t, scheduled.Prediction.Notes[0], "of the schedule's recipes, ")
	require.EqualValues(t, train.MaxRanks, cost.Devices().Common["ranks"].Value)
}

func TestPlanClusterRefusals(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	file := write("my.toml", "[train]\nranks = 2\n")
	unsourced := write("unsourced.toml", "[device.x]\nbackend = \"cuda\"\n[device.x.number]\nbandwidth = { value = 1 }\n")
	unlinked := write("unlinked.toml", "[device.x]\nbackend = \"cuda\"\nlink = \"shrt\"\n")
	toy := func(args ...string) []string { return onToys("toy:2x2", args...)[1:] }
	for _, test := range []struct {
		want string
		args []string
	}{
		{"train.ranks = 1025 is more than a run can have", []string{"train.ranks=1025"}},
		{"--network needs --cluster, such as --cluster h100:8x32", []string{"--network", "ib-400"}},
		{"--devices needs --cluster", []string{"--devices", toys}},
		{"--calibration: open c.toml: no such file", []string{"--calibration", "c.toml"}},
		{"--sweep needs --cluster, such as --cluster h100:8x32\n", []string{"--calibration", "c.toml", "--sweep", "1..2"}},
		{"--tokens needs --cluster", []string{"--tokens", "2T"}},
		{"--price needs --cluster", []string{"--price", "2"}},
		{"--grid needs --cluster", []string{"--grid", "2"}},
		{"--mtbf needs --cluster", []string{"--mtbf", "2h"}},
		{"--checkpoint-rate needs --cluster", []string{"--checkpoint-rate", "2GB/s"}},
		{"--assume needs --cluster", []string{"--assume", "rest=2"}},
		{"--sweep needs --cluster", []string{"--sweep", "1..2"}},
		{"--plot needs --cluster", []string{"--plot", "a.svg"}},
		{"--recipe bf16,fp8-smooth: several recipes need --cluster", []string{"--recipe", "bf16,fp8-smooth"}},

		{"--dump prints programs", toy("--dump")},
		{`--recipe names "bf16" twice`, toy("--recipe", "bf16,bf16")},
		{`unknown recipe "fp9"`, toy("--recipe", "bf16,fp9")},
		{`--cluster: cluster "toy:2y2": expected DEVICE:NxM`, []string{"--cluster", "toy:2y2"}},
		{`unknown device "h101"; did you mean h100?`, []string{"--cluster", "h101"}},
		{`unknown network "shrt"; did you mean short?`, toy("--network", "shrt")},
		{"--network is empty", toy("--network=")},
		{"--network connects nodes, but toy:2 is one node", onToys("toy:2", "--network", "short")[1:]},
		{"--tokens \"2X\"", toy("--tokens", "2X")},
		{"--tokens \"0\"", toy("--tokens", "0")},
		{"--tokens \"9999999T\"", toy("--tokens", "9999999T")},
		{"--price needs the length of the run", toy("--price", "2")},
		{"--price \"NaN\"", toy("--price", "NaN", "--tokens", "1M")},
		{"--grid \"-1\"", toy("--grid", "-1", "--tokens", "1M")},
		{"--mtbf \"50\"", toy("--mtbf", "50")},
		{"--mtbf \"0h\"", toy("--mtbf", "0h")},
		{"--checkpoint-rate \"2GB\"", toy("--checkpoint-rate", "2GB")},
		{"the number mtbf is given twice, by --mtbf 5h and by --assume mtbf=5", toy("--mtbf", "5h", "--assume", "mtbf=5")},
		{"given twice, as 1M and as 2M", toy("--tokens", "1M", "--tokens", "2M")},
		{`"bandwith" is not a number of a machine; did you mean bandwidth? (known: attention_backward, `, toy("--assume", "bandwith=1")},
		{"expected rest=VALUE, a number from 0 to 1e+18: time of attention", toy("--assume", "rest=-1")},
		{"the number bandwidth is 0 (assumed: given on the command line)", toy("--assume", "bandwidth=0")},
		{"check --assume and --devices", toy("--assume", "bandwidth=1e-200")},
		{`--sweep "8..1"`, toy("--sweep", "8..1")},
		{`--sweep "0..8"`, toy("--sweep", "0..8")},
		{"--sweep: 7 devices are no full nodes of 2: end it at 6 or 8", toy("--sweep", "1..7")},
		{"--plot \"a.png\": the picture is an SVG file", toy("--plot", "a.png")},
		{"does not exist: make it", toy("--plot", filepath.Join(dir, "none", "a.svg"))},
		{"--devices: open none.toml", []string{"--devices", "none.toml", "--cluster", "h100"}},
		{"--devices: " + unsourced + ": device.x.number.bandwidth: give its source", []string{"--devices", unsourced, "--cluster", "x"}},
		{"--devices: " + unlinked + `: device.x: unknown network "shrt"`, []string{"--devices", unlinked, "--cluster", "x"}},
		{"--calibration: ", toy("--calibration", "none.toml")},
		{"a URL", toy("--calibration", "https://host/c.toml")},

		{"train.ranks is 2 on the command line, but --cluster toy:2x2 has 4 devices: give train.ranks=4, or omit it", toy("train.ranks=2")},
		{"train.ranks is 2 in " + file + ", but --cluster toy:2x2 has 4 devices", toy(file)},
		{"--cluster toy:8x9 needs 72 ranks, one for each device, and a run has at most 64: use toy:8x8, or predict it anyway by --assume ranks=72", onToys("toy:8x9")[1:]},
		{"use toy:64x1, or", onToys("toy:72")[1:]},
		{"--sweep 1..66 needs 66 ranks, one for each device, and a run has at most 64: use 1..64, or predict it anyway", toy("--sweep", "1..66")},
		{"the number ranks is 0", toy("--assume", "ranks=0")},
		{"--cluster bare: it is made up: give --backend", onToys("bare")[1:]},
		{"no data for memory of bare (memory of a device, GiB): measure it there by octet bench step --calibrate FILE, or give a value by --assume memory=VALUE", onToys("bare", "--backend", "cuda:sm_90")[1:]},
		{"no data for fp8_peak of bare ", onToys("bare", "--backend", "cuda:sm_90", "--assume", "memory=9")[1:]},
		{"no data for link of bare ", onToys("bare:2", "--recipe", "bf16", "--backend", "cuda:sm_90", "--assume", "memory=9")[1:]},
		{"unsupported by backend cuda", toy("--recipe", "mxfp8")},
	} {
		status, stdout, stderr := octet(append([]string{"plan"}, test.args...)...)
		require.Equal(t, exitInput, status, "%v\n%s%s", test.args, stdout, stderr)
		require.Empty(t, stdout, test.args)
		requireOneSentence(t, stderr)
		require.Contains(t, stderr, test.want, test.args)
	}
	require.NotEmpty(t, predictionOf(t, onToys("toy:8x9", "--assume", "ranks=72")...).Prediction.Band)
}

// A cluster with too little memory is refused with the smallest change of settings that fits.
func TestPlanClusterMemory(t *testing.T) {
	args := func(settings ...string) []string {
		list := onToys("toy:2x2", "--recipe", "bf16", "train.recompute=none")
		for _, s := range settings {
			key, _, _ := strings.Cut(s, "=")
			list = slices.DeleteFunc(list, func(a string) bool { return strings.HasPrefix(a, key+"=") })
		}
		return append(list, settings...)
	}
	need := func(settings ...string) int64 { return predictionOf(t, args(settings...)...).Prediction.Need }
	refused := func(capacity int64) string {
		status, stdout, stderr := octet(append(args(), "--assume", fmt.Sprint("memory=", float64(capacity)/(1<<30)))...)
		require.Equal(t, exitInput, status)
		require.Empty(t, stdout)
		requireOneSentence(t, stderr)
		return stderr
	}
	all := need()
	for _, settings := range [][]string{
		{"train.zero_stage=1"},
		{"train.zero_stage=3"},
		{"train.zero_stage=3", "train.recompute=block"},
		{"train.zero_stage=3", "train.recompute=block", "train.micro_batch=1", "train.accumulate=2"},
	} {
		fitting := need(settings...)
		require.Less(t, fitting, all)
		require.Contains(t, refused(fitting), ": set "+strings.Join(settings, " ")+", which needs ")
		all = fitting
	}
	require.Regexp(t, `^octet: one rank of recipe bf16 needs \d+ MB, and Toy has \d+ MB; even train\.zero_stage=3 train\.recompute=block train\.micro_batch=1 train\.accumulate=2 needs \d+ MB, and Octet has no pipeline parallelism`, refused(all-1))

	// Ranks cannot share the state of Muon.
	status, _, stderr := octet(append(args(), "optimizer.kind=muon", "--assume", "memory=0.1")...)
	require.Equal(t, exitInput, status)
	require.Contains(t, stderr, "; even train.recompute=block train.micro_batch=1 train.accumulate=2 needs ")

	var c train.Config
	c.Train.Ranks, c.Train.Recompute = 1, "block"
	require.Equal(t, []saving{{split: 1}}, savings(c, 1, 0))
	require.Equal(t, []int{1, 2, 4, 12}, splits(12))
	require.Equal(t, []int{1, 3}, splits(3))
	require.Equal(t, []int{1}, splits(1))
	c.Train.MicroBatch, c.Train.Accumulate = 12, 3
	changed, settings := savings(c, 4, 0)[0].of(c)
	require.Equal(t, "train.micro_batch=3 train.accumulate=12", settings)
	require.Equal(t, 3, changed.Train.MicroBatch)
	require.Equal(t, 12, c.Train.MicroBatch)
}

func TestPlanSweep(t *testing.T) {
	p := predictionOf(t, onToys("toy:2x2", "--recipe", "bf16", "--tokens", "1M", "--sweep", "2..12")...)
	var sizes []int
	for _, s := range p.Prediction.Sweep {
		sizes = append(sizes, s.Devices)
		require.True(t, s.Fits)
		require.EqualValues(t, 64*s.Devices, s.TokensPerStep)
		require.InEpsilon(t, float64(s.TokensPerStep)/s.StepSeconds, s.TokensPerS, 1e-9)
		if s.Devices == 4 {
			require.Equal(t, p.Prediction.StepSeconds, s.StepSeconds)
			require.Equal(t, p.Prediction.Days, s.Days)
			require.Equal(t, p.Prediction.Need, s.Need)
		}
	}
	require.Equal(t, []int{2, 4, 8, 12}, sizes)
	require.EqualValues(t, 1, p.Prediction.Sweep[0].Linear)
	require.Less(t, p.Prediction.Sweep[1].Linear, 1.0, "two nodes share a slow network")

	// Sizes without enough memory have no times; the first one with enough is the base of the others.
	args := onToys("toy:2x4", "--recipe", "bf16", "train.zero_stage=1", "--sweep", "1..8")
	need := predictionOf(t, args...).Prediction.Sweep[2].Need
	args = append(args, "--assume", fmt.Sprint("memory=", float64(need)/(1<<30)))
	list := predictionOf(t, args...).Prediction.Sweep
	require.False(t, list[1].Fits)
	require.Zero(t, list[1].StepSeconds)
	require.EqualValues(t, 1, list[2].Linear)
	out, _ := succeed(t, args...)
	require.Regexp(t, `\n2 +too large +- +- +128 +\d+ MB\n4 +[\d,]+ +100\.0 % +`, out)

	for _, test := range []struct {
		from, to, perNode int
		want              []int
	}{
		{1, 1, 8, []int{1}},
		{1, 32, 8, []int{1, 2, 4, 8, 16, 32}},
		{3, 30, 6, []int{3, 4, 6, 12, 24, 30}},
		{5, 5, 8, []int{5}},
		{1, 4, 1, []int{1, 2, 4}},
		{9, 40, 8, []int{16, 32, 40}},
	} {
		require.Equal(t, test.want, runFlags{sweepFrom: test.from, sweepTo: test.to}.sweepSizes(test.perNode))
	}
}

func TestPlanPlot(t *testing.T) {
	plot := filepath.Join(t.TempDir(), "a.svg")
	texts := func() (list []string) {
		d := xml.NewDecoder(strings.NewReader(read(t, plot)))
		for {
			token, err := d.Token()
			if errors.Is(err, io.EOF) {
				return list
			}
			require.NoError(t, err)
			if text, ok := token.(xml.CharData); ok {
				list = append(list, string(text))
			}
		}
	}
	succeed(t, onToys("toy:2x2", "--recipe", "bf16,fp8-smooth", "--plot", plot)...)
	for _, want := range []string{"Predicted time of a step", "bf16", "fp8-smooth", "GEMMs, bf16", "GEMMs, fp8", "attention", "communication"} {
		require.Contains(t, texts(), want)
	}
	require.NotContains(t, texts(), "Predicted speed")
	succeed(t, onToys("toy:2x2", "--recipe", "bf16,fp8-smooth", "--plot", plot, "--sweep", "1..8")...)
	for _, want := range []string{"Predicted time of a step", "Predicted speed", "devices, Toy", "tokens/s", "linear"} {
		require.Contains(t, texts(), want)
	}
}

func TestPicturesOfPredictions(t *testing.T) {
	a, b := &prediction{Title: "Toy"}, &prediction{}
	a.Classes = []cost.ClassTime{{Name: "GEMMs, bf16", Seconds: 0.5}, {Name: "row ops", Seconds: 0.25}}
	b.Classes = []cost.ClassTime{{Name: "GEMMs, bf16", Seconds: 0.125}, {Name: "casts", Seconds: 2}, {Name: "row ops", Seconds: 1}}
	list := []*predicted{{planned: planned{Recipe: "a", Prediction: a}}, {planned: planned{Recipe: "b", Prediction: b}}}
	bars := barsOf(list)
	require.Equal(t, []string{"a", "b"}, bars.Rows)
	require.Equal(t, []string{"GEMMs, bf16", "casts", "row ops"}, bars.Parts)
	require.Equal(t, [][]float64{{500, 0, 250}, {125, 2000, 1000}}, bars.Data)

	require.Nil(t, speedOf(list))
	a.Sweep = []sweepPoint{{Devices: 1}, {Devices: 2, Fits: true, TokensPerS: 10, Linear: 1}, {Devices: 4, Fits: true, TokensPerS: 16, Linear: 0.8}}
	b.Sweep = []sweepPoint{{Devices: 1}, {Devices: 2}, {Devices: 4, Fits: true, TokensPerS: 30, Linear: 1}}
	require.Equal(t, []chart.Line{
		{Name: "linear", Look: chart.Colors, X: []float64{2, 4}, Y: []float64{10, 20}},
		{Name: "a", X: []float64{2, 4}, Y: []float64{10, 16}},
		{Look: 1 + chart.Colors, X: []float64{4}, Y: []float64{30}},
		{Name: "b", Look: 1, X: []float64{4}, Y: []float64{30}},
	}, speedOf(list).Lines)
}

func TestWordsOfPredictions(t *testing.T) {
	for x, want := range map[float64]string{0: "0", 0.0123: "0.0123", 1.5: "1.50", 12.34: "12.3", 50700: "50700", 123.4: "123"} {
		require.Equal(t, want, threeDigits(x))
	}
	for x, want := range map[float64]string{0.85: "0.85", 50700: "50700", 1e9: "1e+09", 0: "0", 1e-6: "1e-06"} {
		require.Equal(t, want, plain(x))
	}
	for x, want := range map[float64]string{0.0123: "12.3 ms", 1.5: "1.50 s", 300: "5.00 min", 7200: "2.00 h", 864000: "10.0 days"} {
		require.Equal(t, want, duration(x))
	}
	for e, want := range map[cost.Effect]string{
		{Low: 0.9, High: 1.2}: "10 % less to 20 % more time", {Low: 1, High: 1.2}: "up to 20 % more time", {Low: 0.9, High: 1}: "up to 10 % less time",
	} {
		require.Equal(t, want, effectWords(e))
	}
	list := []*predicted{{planned: planned{Prediction: &prediction{}}}, {planned: planned{Prediction: &prediction{}}}}
	for i, names := range [][]string{{"GEMMs, bf16", "attention", "row ops"}, {"GEMMs, fp8", "GEMMs, bf16", "casts", "row ops", "communication"}} {
		for _, n := range names {
			list[i].Prediction.Classes = append(list[i].Prediction.Classes, cost.ClassTime{Name: n})
		}
	}
	require.Equal(t, []string{"GEMMs, bf16", "GEMMs, fp8", "casts", "attention", "row ops", "communication"}, classNames(list))
}
