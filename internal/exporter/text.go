package exporter

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"octet/internal/writers"
)

// text returns the latest state in the text exposition format 0.0.4: for each family a
// HELP, a TYPE and its samples.
func (e *Exporter) text() []byte {
	var t text
	t.family("octet_build_info", "gauge", "Versions of octet and Go; the value is 1.")
	t.sample(1, "version", e.build.Version, "goversion", e.build.Go)
	s := e.latest.Load()
	if s == nil {
		return t.bytes
	}
	t.family("octet_run_info", "gauge", "Recipe and backend of the run; the value is 1.")
	t.sample(1, "recipe", s.Recipe, "backend", s.Backend)
	for _, f := range families {
		if x, ok := f.of(s); ok {
			t.family(f.name, f.kind, f.help)
			t.sample(x)
		}
	}
	var ranks []string
	for rank := range s.Timing.Devices {
		ranks = append(ranks, strconv.Itoa(rank))
	}
	samples(&t, sensors, "rank", ranks, func(i int) writers.Device { return s.Timing.Devices[i] })
	shown := shownRanks(s.Ranks)
	ranks = ranks[:0]
	for _, rank := range shown {
		ranks = append(ranks, strconv.Itoa(rank))
	}
	samples(&t, paces, "rank", ranks, func(i int) Rank { return s.Ranks[shown[i]] })
	samples(&t, silences, "rank", ranks, func(i int) time.Duration { return s.Silence(shown[i]) })
	if s.Health.Step > 0 {
		t.family("octet_health_step", "gauge", "Step of the octet_fp8 and octet_swiglu metrics.")
		t.sample(float64(s.Health.Step))
		names := slices.Sorted(maps.Keys(s.Health.FP8))
		samples(&t, casts, "cast", names, func(i int) writers.FP8Stats { return s.Health.FP8[names[i]] })
		layers := slices.Sorted(maps.Keys(s.Health.SwiGLU))
		samples(&t, channels, "layer", layers, func(i int) writers.SwiGLUStats { return s.Health.SwiGLU[layers[i]] })
	}
	return t.bytes
}

// samples adds families with a sample for each value of a label.
func samples[T any](t *text, families []family[T], label string, values []string, of func(i int) T) {
	for _, f := range families {
		begun := false
		for i, value := range values {
			x, ok := f.of(of(i))
			if !ok {
				continue
			}
			if !begun {
				t.family(f.name, f.kind, f.help)
				begun = true
			}
			t.sample(x, label, value)
		}
	}
}

// family is a metric: its name, with the unit last, its type, its help, and its value, if
// there is one.
type family[T any] struct {
	name, kind, help string
	of               func(T) (x float64, ok bool)
}

var families = []family[*State]{
	{"octet_step", "gauge", "Steps done, skipped ones included.", always(func(s *State) float64 { return float64(s.Metrics.Step) })},
	{"octet_steps", "gauge", "Steps of the whole run.", always(func(s *State) float64 { return float64(s.Steps) })},
	{"octet_step_timestamp_seconds", "gauge", "Unix time at the end of the last step.", always(func(s *State) float64 { return unix(s.At) })},
	{"octet_loss", "gauge", "Training loss of the last step, nats per token.", always(func(s *State) float64 { return float64(s.Metrics.Loss) })},
	{"octet_val_loss", "gauge", "Validation loss of the last evaluation of this process, nats per token.", known(func(s *State) *writers.Float { return s.ValLoss })},
	{"octet_grad_norm", "gauge", "Gradient norm of the last step, before clipping.", always(func(s *State) float64 { return float64(s.Metrics.GradNorm) })},
	{"octet_learning_rate", "gauge", "Learning rate of the last step.", always(func(s *State) float64 { return float64(s.Metrics.LR) })},
	{"octet_tokens_total", "counter", "Tokens that this process trained on; steps repeated after a rewind count again.", always(func(s *State) float64 { return float64(s.Tokens) })},
	{"octet_skipped_steps_total", "counter", "Steps of this process whose update was skipped, because the gradient norm or an amax was not finite.", always(func(s *State) float64 { return float64(s.Skipped) })},
	{"octet_tokens_per_second", "gauge", "Tokens per second of the last step.", always(func(s *State) float64 { return float64(s.Timing.TokensPerSec) })},
	{"octet_step_seconds", "gauge", "Duration of the last step.", always(func(s *State) float64 { return float64(s.Timing.StepSeconds) })},
	{"octet_flops_per_second", "gauge", "FLOP/s of the matrix products of the last step.", always(func(s *State) float64 { return float64(s.Timing.FlopsPerSec) })},
	{"octet_mfu_ratio", "gauge", "Share of the FMA peak that the steps of the last interval reached; the peak is measured at both ends of the interval.", known(func(s *State) *writers.Float { return s.Timing.MFU })},
	{"octet_memory_bytes", "gauge", "Memory of one rank, as planned.", always(func(s *State) float64 { return float64(s.Timing.Memory) })},
	{"octet_checkpoint_step", "gauge", "Step of the last checkpoint; absent without one.", func(s *State) (float64, bool) { return float64(s.Checkpoint), s.Checkpoint > 0 }},
	{"octet_checkpoint_timestamp_seconds", "gauge", "Unix time at which this process completed its last checkpoint.", func(s *State) (float64, bool) { return unix(s.CheckpointAt), !s.CheckpointAt.IsZero() }},
}

// sensors are the families with a sample for each rank whose device has the value.
var sensors = []family[writers.Device]{
	{"octet_device_utilization_ratio", "gauge", "Share of the last sampling period in which the device was busy.", known(func(d writers.Device) *float64 { return d.Utilization })},
	{"octet_device_memory_used_bytes", "gauge", "Memory of the device in use, by all processes.", known(func(d writers.Device) *int64 { return d.MemoryUsed })},
	{"octet_device_memory_bytes", "gauge", "Memory of the device.", known(func(d writers.Device) *int64 { return d.MemoryTotal })},
	{"octet_device_power_watts", "gauge", "Power drawn by the board.", known(func(d writers.Device) *float64 { return d.Power })},
	{"octet_device_temperature_celsius", "gauge", "Temperature of the device.", known(func(d writers.Device) *float64 { return d.Temperature })},
	{"octet_device_clock_hertz", "gauge", "Clock of the compute units.", func(d writers.Device) (float64, bool) {
		mhz, ok := known(func(d writers.Device) *float64 { return d.Clock })(d)
		return 1e6 * mhz, ok
	}},
	{"octet_device_throttled", "gauge", "1 if the clock is throttled.", func(d writers.Device) (float64, bool) {
		return float64(min(1, len(d.Throttled))), d.Throttled != nil
	}},
	{"octet_device_energy_joules_total", "counter", "Energy since this process started to train.", known(func(d writers.Device) *float64 { return d.Energy })},
}

// paces are the families with a sample for each rank, or for the slowest ranks, see shownRanks.
var paces = []family[Rank]{
	{"octet_rank_own_seconds", "gauge", "Own time of the rank in the step before the last one: its duration without collectives. Of more than 64 ranks, the 8 slowest have this and the other octet_rank metrics.", always(func(r Rank) float64 { return r.Own.Seconds() })},
	{"octet_rank_wait_seconds", "gauge", "Time of the rank in collectives in the step before the last one, and in the exchange before that step.", always(func(r Rank) float64 { return r.Wait.Seconds() })},
}

// silences are those of the signs of life.
var silences = []family[time.Duration]{
	{"octet_rank_silence_seconds", "gauge", "Time since the last sign of life of the rank, which sends one a second.", always(time.Duration.Seconds)},
}

const (
	manyRanks    = 64 // whose samples a server stores without effort
	slowestRanks = 8
)

// shownRanks returns the ranks that have samples, in order: all, or of more than manyRanks the
// slowestRanks with the longest own time.
func shownRanks(all []Rank) []int {
	list := make([]int, len(all))
	for rank := range list {
		list[rank] = rank
	}
	if len(all) <= manyRanks {
		return list
	}
	slices.SortStableFunc(list, func(a, b int) int { return cmp.Compare(all[b].Own, all[a].Own) })
	list = list[:slowestRanks]
	slices.Sort(list)
	return list
}

// casts are the families with a sample for each cast to FP8. For a per-tensor cast,
// scale_min and scale_max are its one scale, and the standard deviation is 0.
var casts = []family[writers.FP8Stats]{
	{"octet_fp8_saturated_ratio", "gauge", "Share of the elements that the cast saturated.", always(func(c writers.FP8Stats) float64 { return float64(c.Saturated) })},
	{"octet_fp8_flushed_ratio", "gauge", "Share of the elements that the cast flushed to zero.", always(func(c writers.FP8Stats) float64 { return float64(c.Flushed) })},
	{"octet_fp8_sqnr_decibels", "gauge", "Signal-to-quantization-noise ratio of the cast; +Inf if the cast is exact.", always(func(c writers.FP8Stats) float64 { return float64(c.SQNR) })},
	{"octet_fp8_amax_rms_ratio", "gauge", "Largest magnitude of the tensor over its root mean square.", always(func(c writers.FP8Stats) float64 { return float64(c.AmaxRMS) })},
	{"octet_fp8_kurtosis", "gauge", "Kurtosis of the tensor: 3 for normal numbers.", always(func(c writers.FP8Stats) float64 { return float64(c.Kurtosis) })},
	{"octet_fp8_amax", "gauge", "Largest magnitude of the tensor before the cast.", always(func(c writers.FP8Stats) float64 { return float64(c.Amax) })},
	{"octet_fp8_scale_min", "gauge", "Smallest scale of the cast, which multiplies before the cast.", known(func(c writers.FP8Stats) *writers.Float { return cmp.Or(c.Scale, c.ScaleMin) })},
	{"octet_fp8_scale_max", "gauge", "Largest scale of the cast.", known(func(c writers.FP8Stats) *writers.Float { return cmp.Or(c.Scale, c.ScaleMax) })},
	{"octet_fp8_scale_log2_mean", "gauge", "Mean of log2 of the cast's scales.", known(func(c writers.FP8Stats) *writers.Float {
		if c.Scale != nil {
			return new(writers.Float(math.Log2(float64(*c.Scale))))
		}
		return c.ScaleLog2Mean
	})},
	{"octet_fp8_scale_log2_std", "gauge", "Standard deviation of log2 of the cast's scales.", known(func(c writers.FP8Stats) *writers.Float {
		if c.Scale != nil {
			return new(writers.Float(0))
		}
		return c.ScaleLog2Std
	})},
	{"octet_fp8_zero_blocks_ratio", "gauge", "Share of the cast's blocks whose elements are all 0; absent for a per-tensor scale.", known(func(c writers.FP8Stats) *writers.Float { return c.ZeroBlocks })},
	{"octet_fp8_scale_inv_lowest_ratio", "gauge", "Share of the cast's scales at the smallest scale_inv of their format.", known(func(c writers.FP8Stats) *writers.Float { return c.ScaleInvLowest })},
	{"octet_fp8_scale_inv_highest_ratio", "gauge", "Share of the cast's scales at the largest scale_inv of their format.", known(func(c writers.FP8Stats) *writers.Float { return c.ScaleInvHighest })},
}

// channels are the families with a sample for each layer with a gate.
var channels = []family[writers.SwiGLUStats]{
	{"octet_swiglu_amax", "gauge", "Largest activation of the layer's largest channel.", always(func(c writers.SwiGLUStats) float64 { return float64(c.Amax) })},
	{"octet_swiglu_amax_median", "gauge", "Median of the largest activations of the layer's channels.", always(func(c writers.SwiGLUStats) float64 { return float64(c.Median) })},
	{"octet_swiglu_cosine", "gauge", "Cosine between the largest channel's rows of the up and gate weights.", always(func(c writers.SwiGLUStats) float64 { return float64(c.Cosine) })},
	{"octet_swiglu_amax_others_rms", "gauge", "Root mean square of the largest activations of the layer's other channels.", always(func(c writers.SwiGLUStats) float64 { return float64(c.OthersRMS) })},
	{"octet_swiglu_cosine_mean", "gauge", "Mean magnitude of the cosines of the layer's channels.", always(func(c writers.SwiGLUStats) float64 { return float64(c.CosineMean) })},
}

func always[T any](of func(T) float64) func(T) (float64, bool) {
	return func(x T) (float64, bool) { return of(x), true }
}

// known returns the value of a family that may be absent (nil).
func known[T any, N ~int64 | ~float64](of func(T) *N) func(T) (float64, bool) {
	return func(x T) (float64, bool) {
		if n := of(x); n != nil {
			return float64(*n), true
		}
		return 0, false
	}
}

func unix(t time.Time) float64 { return float64(t.UnixMilli()) / 1e3 }

// text builds the lines of the format.
type text struct {
	bytes []byte
	name  string // of the current family
}

func (t *text) family(name, kind, help string) {
	t.bytes = fmt.Appendf(t.bytes, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
	t.name = name
}

var escape = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// sample adds a value with its labels: name, value, name, value.
func (t *text) sample(x float64, labels ...string) {
	t.bytes = append(t.bytes, t.name...)
	for i := 0; i < len(labels); i += 2 {
		t.bytes = fmt.Appendf(t.bytes, `%c%s="%s"`, "{,"[min(i, 1)], labels[i], escape.Replace(labels[i+1]))
	}
	if len(labels) > 0 {
		t.bytes = append(t.bytes, '}')
	}
	t.bytes = append(t.bytes, ' ')
	t.bytes = strconv.AppendFloat(t.bytes, x, 'g', -1, 64) // writes NaN, +Inf and -Inf as the format does
	t.bytes = append(t.bytes, '\n')
}
