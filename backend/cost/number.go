package cost

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"octet/internal/spelling"
)

// Number is a figure of a machine with its origin: exactly one of Measured, Published and
// Assumed is set, and says where the figure is from.
type Number struct {
	Value     float64 `toml:"value" json:"value"`
	Low       float64 `toml:"low,omitzero" json:"low,omitempty"`   // plausible range of Value
	High      float64 `toml:"high,omitzero" json:"high,omitempty"` // both 0: not given
	Measured  string  `toml:"measured,omitempty" json:"measured,omitempty"`
	Published string  `toml:"published,omitempty" json:"published,omitempty"`
	Assumed   string  `toml:"assumed,omitempty" json:"assumed,omitempty"`
}

// Kind returns "measured", "published" or "assumed".
func (n Number) Kind() string {
	switch {
	case n.Measured != "":
		return "measured"
	case n.Published != "":
		return "published"
	}
	return "assumed"
}

// Source returns where the figure is from.
func (n Number) Source() string { return cmp.Or(n.Measured, n.Published, n.Assumed) }

// check returns an error for a number without one source, or beyond what its name allows.
func (n Number) check(name string) error {
	given := 0
	for _, source := range []string{n.Measured, n.Published, n.Assumed} {
		if source != "" {
			given++
		}
	}
	switch {
	case given != 1:
		return errors.New("give its source, by one of measured, published and assumed")
	case !(n.Value >= 0 && n.Value <= limit(name)):
		return fmt.Errorf("value %v: expected 0 to %v: %s", n.Value, limit(name), meaning[name])
	case (n.Low != 0 || n.High != 0) && !(0 < n.Low && n.Low <= n.Value && n.Value <= n.High && n.High <= limit(name)):
		return fmt.Errorf("range %v to %v: expected one from above 0 to at most %v that contains the value %v", n.Low, n.High, limit(name), n.Value)
	}
	return nil
}

// limit returns the largest value of a number: 1 for shares, and 10^6 for peaks, which are in units
// of 10^12, so that a percentage or a plain FLOP/s is an error.
func limit(name string) float64 {
	switch {
	case strings.HasSuffix(name, "_share"), strings.HasPrefix(name, "attention_"), name == "hidden":
		return 1
	case strings.HasSuffix(name, "_peak"), name == "bandwidth":
		return 1e6
	}
	return 1e18
}

// Numbers are figures by name. [Names] explains the names.
type Numbers map[string]Number

// Names returns the names of all numbers with their meaning and unit.
func Names() map[string]string { return maps.Clone(meaning) }

var meaning = map[string]string{
	"memory":             "memory of a device, GiB",
	"bandwidth":          "memory bandwidth, TB/s",
	"copy_share":         "share of the bandwidth that casts and row ops reach",
	"fp32_peak":          "FLOP/s of FP32 GEMMs, in 10^12",
	"bf16_peak":          "FLOP/s of BF16 and FP16 GEMMs, in 10^12",
	"fp8_peak":           "FLOP/s of FP8 GEMMs, in 10^12",
	"int8_peak":          "op/s of INT8 GEMMs, in 10^12",
	"fp4_peak":           "FLOP/s of FP4 GEMMs, in 10^12",
	"fp32_share":         "share of fp32_peak that large GEMMs reach",
	"bf16_share":         "share of bf16_peak that large GEMMs reach",
	"fp8_share":          "share of fp8_peak that large GEMMs reach",
	"int8_share":         "share of int8_peak that large GEMMs reach",
	"fp4_share":          "share of fp4_peak that large GEMMs reach",
	"gemm":               "rate of GEMMs in a step over that of GEMMs alone",
	"rest":               "time of attention and row ops over their roofline",
	"attention_forward":  "share of bf16_peak that attention reaches",
	"attention_backward": "share of bf16_peak that the gradient of attention reaches",
	"processors":         "processors that share the tiles of a GEMM; 0: shape has no effect",
	"tile_k":             "K at which a GEMM has half its rate, if there are processors",
	"launch":             "time between two ops, µs",
	"link":               "bandwidth of a device to the others of its node, GB/s each way",
	"nic":                "bandwidth of a device to other nodes, GB/s each way",
	"link_share":         "share of link that collectives reach",
	"nic_share":          "share of nic that collectives reach",
	"link_latency":       "latency of a collective within a node, µs",
	"nic_latency":        "latency of a collective between nodes, µs, for each level of a tree",
	"hidden":             "rate of collectives while the device computes, over their rate alone",
	"watts":              "power of a device, W",
	"host_power":         "power of devices and hosts over that of the devices",
	"mtbf":               "mean time between failures of one device, hours",
	"restart":            "time from a failure to the first step after it, s",
	"snapshot_rate":      "rate at which a device copies its part of a checkpoint to its host, GB/s",
	"checkpoint_rate":    "rate at which all ranks together write a checkpoint, GB/s",
	"ranks":              "largest train.ranks of a run",
}

// assumption reads "name=value".
func assumption(text string) (name string, value float64, err error) {
	name, number, ok := strings.Cut(text, "=")
	if _, known := meaning[name]; !known {
		return "", 0, fmt.Errorf("%q is not a number of a machine%s (known: %s)", name,
			spelling.DidYouMean(name, slices.Collect(maps.Keys(meaning))), strings.Join(slices.Sorted(maps.Keys(meaning)), ", "))
	}
	value, err = strconv.ParseFloat(number, 64)
	if !ok || err != nil || !(value >= 0 && value <= limit(name)) {
		return "", 0, fmt.Errorf("%q: expected %s=VALUE, a number from 0 to %v: %s", text, name, limit(name), meaning[name])
	}
	return name, value, nil
}
