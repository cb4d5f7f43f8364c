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
	require.Empty(t, changes(now), "where, how long, how often saved")
	now.Optimizer.Betas[0], now.Train.OnSpike, now.Precision.Rows = 0.5, "off", nil
	require.Equal(t, []string{
		`train.on_spike "log" -> "off"`, "optimizer.betas [0.9, 0.95] -> [0.5, 0.95]",
		`precision.rows [{scope = "lm_head", format = "bf16"}] -> []`,
	}, changes(now))

	// Of keys that the other octet did not know nothing can be said; nor does a file of
	// anybody's steer the terminal, or fill it.
	delete(values, "optimizer.betas")
	values["train.on_spike"] = "\x1b[2J"
	now.Precision.Rows = []train.PrecisionRow{{Scope: "layers.0.self_attn.*", Format: "bf16"}}
	require.Equal(t, []string{"train.on_spike", "precision.rows"}, changes(now))
	list, err := Changes(nil, now)
	require.NoError(t, err)
	require.Empty(t, list, "an older octet's checkpoint")
}

// Every key is a value, so that none changes without a word.
func TestValuesAreWhole(t *testing.T) {
	c := train.Default()
	require.NoError(t, c.Resolve())
	values, err := Values(c)
	require.NoError(t, err)
	for _, s := range sections {
		for _, k := range s.keys {
			require.Equal(t, k.computes(), values[k.name] != "", k.name)
		}
	}
}

// Only what was given is compared, and the length of a run may differ.
func TestDifferences(t *testing.T) {
	there, here := train.Default(), train.Default()
	here.Optimizer.LR, here.Train.Steps, here.Seed = 0.5, 7, 9
	here.Data.Paths = []string{"/a/path/of/some/length/that/no/line/should/hold/twice.txt"}
	list, err := Differences([]string{"train.steps", "optimizer.lr", "data.paths", "recipe"}, there, here)
	require.NoError(t, err)
	require.Equal(t, []string{"optimizer.lr is 0.002 there, 0.5 here", "data.paths"}, list)
	list, err = Differences(nil, there, here)
	require.NoError(t, err)
	require.Empty(t, list)
}
