package bench

import (
	"math"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/cost"
	"octet/train"
)

// Links whose collectives take a latency and a rate are described by these.
func TestExtendLinks(t *testing.T) {
	samples := func(latency, gbytes float64) (list []cost.Sample) {
		for _, bytes := range []int64{1e4, 1e6, 1e8} {
			list = append(list, cost.Sample{Key: collectiveKey, Cost: backend.Cost{Bytes: bytes}, Seconds: latency + float64(bytes)/(gbytes*1e9)})
		}
		return list
	}
	var c cost.Calibration
	require.NoError(t, (&Links{samples: samples(20e-6, 300), nodes: 1, perNode: 8}).Extend(&c, "v1"))
	require.InEpsilon(t, 20, c.Numbers["link_latency"].Value, 1e-3, "µs")
	require.InEpsilon(t, 300, c.Numbers["link"].Value, 1e-3)
	require.Equal(t, 1.0, c.Numbers["link_share"].Value)
	require.NotContains(t, c.Numbers, "nic_share", "the network between nodes was not measured")

	// Four nodes: three levels of a tree, and eight devices enter a node.
	require.NoError(t, (&Links{samples: samples(60e-6, 160), nodes: 4, perNode: 8}).Extend(&c, "v1"))
	require.InEpsilon(t, 20, c.Numbers["nic_latency"].Value, 1e-3)
	require.InEpsilon(t, 20, c.Numbers["nic"].Value, 1e-3)
	require.InEpsilon(t, 300, c.Numbers["link"].Value, 1e-3, "as it was")

	flat := []cost.Sample{{Key: collectiveKey, Seconds: 1e-5}, {Key: collectiveKey, Cost: backend.Cost{Bytes: 1e6}, Seconds: 1e-5}}
	require.ErrorContains(t, (&Links{samples: flat, nodes: 1, perNode: 2}).Extend(&c, "v1"), "do not grow with their bytes")
}

func TestShapes(t *testing.T) {
	c := train.Default()
	c.Data.Seq, c.Train.MicroBatch = 128, 5
	list, err := Shapes(c)
	require.NoError(t, err)
	var shapes [][2]int
	for _, x := range list {
		shapes = append(shapes, [2]int{x.Train.MicroBatch, x.Data.Seq})
	}
	require.Equal(t, [][2]int{{5, 128}, {5, 64}, {2, 256}}, shapes)
	c.Data.Seq, c.Train.MicroBatch = 32, 1
	list, err = Shapes(c)
	require.NoError(t, err)
	require.Len(t, list, 2)
	require.Equal(t, 64, list[1].Data.Seq)
	require.Equal(t, 1, list[1].Train.MicroBatch)
	c.Train.Ranks = 2
	_, err = Shapes(c)
	require.ErrorContains(t, err, "calibrate with train.ranks = 1")
}

// A calibration has the units of package cost, and predicts the steps that it measured.
func TestCalibrate(t *testing.T) {
	b, err := Open(Options{Backend: "emu", Threads: 1})
	require.NoError(t, err)
	defer b.Close()
	c := train.Default()
	c.Model.Layers, c.Model.Dim, c.Model.Heads, c.Model.KVHeads, c.Model.FFN, c.Data.Seq, c.Train.MicroBatch = 1, 64, 2, 1, 96, 64, 4
	require.NoError(t, b.CalibrateStep(t.Context(), c))
	path := filepath.Join(t.TempDir(), "c.toml")
	file, err := OpenCalibration(path, "emu", b.Spec())
	require.NoError(t, err)
	b.Extend(file, "v1")
	require.InEpsilon(t, b.memory(), file.Numbers["memory"].Value*(1<<30), 0.2, "GiB; the free memory changes")
	require.Equal(t, 1.0, file.Numbers["copy_share"].Value)
	bandwidth := file.Numbers["bandwidth"].Value
	require.Greater(t, bandwidth, 1e-4)
	require.Less(t, bandwidth, 10.0, "TB/s")

	worst, ok, err := b.Worst(file)
	require.NoError(t, err)
	require.True(t, ok)
	require.InDelta(t, 0, math.Log(worst.Predicted/worst.Measured), math.Log(4), "a busy machine is off by less than four")
	require.Len(t, b.steps, 3)
	for _, s := range b.steps { // a measured step that is wrong is the worst
		if s.config.Data.Seq == 64 {
			b.steps = []measuredStep{{s.config, s.median}, {s.config, s.median / 100}}
		}
	}
	wrong, _, err := b.Worst(file)
	require.NoError(t, err)
	require.Equal(t, b.steps[1].median, wrong.Measured)

	require.NoError(t, file.Write(path))
	_, err = OpenCalibration(path, "emu:h100", b.Spec())
	require.ErrorContains(t, err, "this is backend emu:h100")
	again, err := OpenCalibration(path, "emu", b.Spec())
	require.NoError(t, err)
	require.Equal(t, file, again)
}
