package config

import (
	"testing"

	"github.com/stretchr/testify/require"

	"octet/train"
)

func TestChanges(t *testing.T) {
	before := train.Default()
	before.Precision.Rows = []train.PrecisionRow{{Scope: "lm_head", Format: "bf16"}}
	require.NoError(t, before.Resolve())
	values, err := Values(before)
	require.NoError(t, err)
	require.Equal(t, `[{scope = "lm_head", format = "bf16"}]`, values["precision.rows"])
	require.Equal(t, "[]", values["precision.schedule"])

	changes := func(c train.Config) []string {
		list, err := Changes(values, c)
		require.NoError(t, err)
		return list
	}
	require.Empty(t, changes(before))
	now := before
	now.Train.Steps, now.Data.Paths, now.Model.Init = 7, []string{"elsewhere"}, "there"
	now.Checkpoint.Every++
	require.Empty(t, changes(now), "paths, length and checkpoints do not affect results")
	now.Optimizer.Betas[0], now.Train.OnSpike, now.Precision.Rows = 0.5, "off", nil
	require.Equal(t, []string{
		`train.on_spike "log" -> "off"`, "optimizer.betas [0.9, 0.95] -> [0.5, 0.95]",
		`precision.rows [{scope = "lm_head", format = "bf16"}] -> []`,
	}, changes(now))

	// Changes omits keys that the other version does not know, and values that are long or have
	// control characters.
	delete(values, "optimizer.betas")
	values["train.on_spike"] = "\x1b[2J"
	now.Precision.Rows = []train.PrecisionRow{{Scope: "layers.0.self_attn.*", Format: "bf16"}}
	require.Equal(t, []string{"train.on_spike", "precision.rows"}, changes(now))
	list, err := Changes(nil, now)
	require.NoError(t, err)
	require.Empty(t, list, "a checkpoint of an older version")
}

// Values contains every key that affects results.
func TestValuesAreWhole(t *testing.T) {
	c := train.Default()
	c.Model.LayerScale = new(0.0) // absent otherwise
	require.NoError(t, c.Resolve())
	values, err := Values(c)
	require.NoError(t, err)
	for _, s := range sections {
		for _, k := range s.keys {
			require.Equal(t, k.affectsResults(), values[k.name] != "", k.name)
		}
	}
}

// Differences compares only the given keys, and ignores the length of the run.
func TestDifferences(t *testing.T) {
	run, given := train.Default(), train.Default()
	given.Optimizer.LR, given.Train.Steps, given.Seed = 0.5, 7, 9
	given.Data.Paths = []string{"/a/path/of/some/length/that/no/line/should/hold/twice.txt"}
	list, err := Differences([]string{"train.steps", "optimizer.lr", "data.paths", "recipe"}, run, given)
	require.NoError(t, err)
	require.Equal(t, []string{"optimizer.lr is 0.002 in the run, 0.5 given", "data.paths"}, list)
	list, err = Differences(nil, run, given)
	require.NoError(t, err)
	require.Empty(t, list)
}
