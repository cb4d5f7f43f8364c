package run

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/train"
)

// A measured step has every cast and every layer in metrics.jsonl, in TensorBoard's events
// and in the Prometheus metrics, for all granularities of scales.
func TestHealthIsWrittenEverywhere(t *testing.T) {
	for name, edit := range map[string]func(c *train.Config){
		"mxfp8":       func(c *train.Config) { c.Recipe = "mxfp8" },
		"torchao-row": func(c *train.Config) { c.Recipe = "torchao-row" },
		"one layer per row": func(c *train.Config) {
			c.Recipe = "fp8-delayed"
			c.Precision.Rows = []train.PrecisionRow{{Scope: "layers.0.mlp.*", Granularity: "row", Scaling: "current", Rounding: "nearest"}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := tinyConfig(t)
			edit(&c)
			c.Model.FFN, c.Train.Steps, c.Train.HealthEvery = 64, 3, 2
			require.NoError(t, c.Resolve())
			r, err := Start(t.Context(), Options{Config: c, Dir: filepath.Join(t.TempDir(), "run"), Backend: "emu", Threads: 1, MetricsAddr: "0"})
			require.NoError(t, err)
			require.NoError(t, r.Train(t.Context(), func(Progress) {}))
			served, err := scrape(r)
			require.NoError(t, err)
			var names []string
			for _, cast := range r.Trainer.Model.HealthCasts() {
				names = append(names, cast.Name)
			}
			require.NoError(t, r.Close())

			text, err := os.ReadFile(r.folder.path(metricsFile))
			require.NoError(t, err)
			var line struct {
				FP8    map[string]map[string]*float64 `json:"fp8"`
				SwiGLU map[string]any                 `json:"swiglu"`
			}
			require.NoError(t, json.Unmarshal([]byte(strings.Split(string(text), "\n")[1]), &line))
			require.NotEmpty(t, names)
			require.ElementsMatch(t, names, slices.Collect(maps.Keys(line.FP8)))
			files, err := filepath.Glob(r.folder.path("events.out.tfevents.*"))
			require.NoError(t, err)
			events, err := os.ReadFile(files[0])
			require.NoError(t, err)
			for name, cast := range line.FP8 {
				keys := []string{"amax", "saturated", "flushed", "amax_rms", "kurtosis", "sqnr_db", "scale"}
				if strings.Contains(strings.TrimPrefix(name, "layers."), "x") { // 1x32, 1x*
					keys = append(keys[:6], "scale_min", "scale_max", "scale_log2_mean", "scale_log2_std", "zero_blocks", "scale_inv_lowest", "scale_inv_highest")
				}
				require.ElementsMatch(t, keys, slices.Collect(maps.Keys(cast)), name)
				require.True(t, *cast["sqnr_db"] > 10 && *cast["sqnr_db"] < 60, "%s: %v dB", name, *cast["sqnr_db"])
				require.True(t, *cast["kurtosis"] >= 1 && *cast["amax_rms"] >= 1, "%s: %v %v", name, *cast["kurtosis"], *cast["amax_rms"])
				tags := []string{"saturated", "flushed", "amax_rms", "kurtosis", "sqnr_db", "amax", "scale_log2"}
				if cast["scale"] == nil {
					tags = append(tags, "scale_min", "scale_max", "scale_log2_std", "zero_blocks", "scale_inv_lowest", "scale_inv_highest")
					for i, key := range keys[6:] {
						metric := key
						if i >= 4 {
							metric += "_ratio"
						}
						require.Contains(t, served, fmt.Sprintf("\noctet_fp8_%s{cast=%q} %s\n", metric, name, strconv.FormatFloat(*cast[key], 'g', -1, 64)))
					}
				}
				for _, tag := range tags {
					require.Contains(t, string(events), "fp8/"+name+"/"+tag+"\x15", "followed by the tag of the value")
				}
				for metric, key := range map[string]string{"saturated_ratio": "saturated", "flushed_ratio": "flushed", "sqnr_decibels": "sqnr_db", "amax": "amax", "amax_rms_ratio": "amax_rms", "kurtosis": "kurtosis"} {
					require.Contains(t, served, fmt.Sprintf("\noctet_fp8_%s{cast=%q} %s\n", metric, name, strconv.FormatFloat(*cast[key], 'g', -1, 64)))
				}
			}
			require.Contains(t, line.SwiGLU, "layers.0")
			require.Contains(t, string(events), "swiglu/cosine/layers.0")
			require.Contains(t, served, "\noctet_swiglu_cosine{layer=\"layers.0\"} ")
			require.Contains(t, served, "\noctet_health_step 2\n", "the last measured step")
		})
	}
}
