//go:build cuda && cgo && linux

package cuda

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/csrc/standin"
	"octet/internal/writers"
	"octet/run"
)

// managed adds the stand-in for NVML to those for CUDA, on a machine with two GPUs.
func managed(t *testing.T) {
	standin.Only(t, "the readings of a real NVML are not known")
	standIns(t)
	standin.Load(t, "libnvidia-ml")
	standin.Set(t, "STANDIN_GPUS", "2")
	standin.Set(t, "STANDIN_NVML_GPUS", "2")
}

// sensorsOf opens a GPU's sensors and closes the GPU.
func sensorsOf(t *testing.T, name string) backend.Sensors {
	opened, err := open(name, backend.Options{})
	require.NoError(t, err)
	s, err := opened.(backend.Sensed).Sensors()
	require.NoError(t, err)
	require.NoError(t, opened.Close())
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// NVML numbers the GPUs in another order than CUDA.
func TestSensorsAreThoseOfTheGPU(t *testing.T) {
	managed(t)
	for name, want := range map[string]struct{ power, temperature float64 }{"0": {300.25, 60}, "1": {400.25, 61}} {
		s := sensorsOf(t, name)
		first, err := s.Read()
		require.NoError(t, err)
		require.Equal(t, backend.Reading{
			Utilization: new(0.97), MemoryUsed: new(int64(6 << 30)), MemoryTotal: new(int64(24 << 30)),
			Power: &want.power, Temperature: &want.temperature, Clock: new(1755.0),
			Throttled: []string{"power cap"}, Energy: first.Energy,
		}, first)
		second, err := s.Read()
		require.NoError(t, err)
		require.Equal(t, 5.0, *second.Energy-*first.Energy)
	}
}

func TestUnavailableReadingsAreNil(t *testing.T) {
	managed(t)
	s := sensorsOf(t, "")
	standin.Set(t, "STANDIN_NVML_UNSUPPORTED", "UtilizationRates,TotalEnergyConsumption,CurrentClocksThrottleReasons")
	r, err := s.Read()
	require.NoError(t, err)
	require.Equal(t, backend.Reading{
		MemoryUsed: new(int64(6 << 30)), MemoryTotal: new(int64(24 << 30)),
		Power: new(300.25), Temperature: new(60.0), Clock: new(1755.0),
	}, r)
	standin.Set(t, "STANDIN_NVML_UNSUPPORTED", "all")
	r, err = s.Read()
	require.NoError(t, err)
	require.Equal(t, backend.Reading{}, r)
}

func TestSensorsFail(t *testing.T) {
	managed(t)
	t.Run("in the middle", func(t *testing.T) {
		s := sensorsOf(t, "")
		standin.Set(t, "STANDIN_NVML_LOST", "2")
		_, err := s.Read()
		require.NoError(t, err)
		for range 2 {
			r, err := s.Read()
			require.ErrorIs(t, err, nvml.ERROR_GPU_IS_LOST)
			require.EqualError(t, err, "nvmlDeviceGetUtilizationRates of the GPU at 0000:10:00.0: GPU is lost")
			require.Equal(t, backend.Reading{}, r)
		}
	})
	t.Run("not to be found", func(t *testing.T) {
		standin.Set(t, "STANDIN_BUS", "0")
		require.NoError(t, forgetGPUs())
		_, err := openOne(t).Sensors()
		require.EqualError(t, err, "the CUDA driver does not report the GPU's PCI bus, by which NVML finds it")
	})
	t.Run("at the start", func(t *testing.T) {
		require.NoError(t, forgetGPUs())
		d := openOne(t)
		standin.Set(t, "STANDIN_NVML_GPUS", "0")
		_, err := d.Sensors()
		require.EqualError(t, err, "NVML does not show the GPU at 0000:10:00.0: not found")
		standin.Set(t, "STANDIN_NVML_INIT", "9")
		_, err = d.Sensors()
		require.EqualError(t, err, "NVML did not start: driver not loaded")
		t.Setenv("OCTET_LIBNVML", filepath.Join(t.TempDir(), "missing.so"))
		_, err = d.Sensors()
		require.ErrorIs(t, err, nvml.ERROR_LIBRARY_NOT_FOUND)
	})
}

// olderNVML lacks a function.
type olderNVML struct {
	nvmlLibrary
	lacks string
}

type olderSymbols struct {
	nvml.ExtendedInterface
	lacks string
}

func (l olderNVML) Extensions() nvml.ExtendedInterface {
	return olderSymbols{l.nvmlLibrary.Extensions(), l.lacks}
}

func (l olderSymbols) LookupSymbol(name string) error {
	if name == l.lacks {
		return errors.New("no such symbol")
	}
	return l.ExtendedInterface.LookupSymbol(name)
}

func TestMissingFunctionsAreNotCalled(t *testing.T) {
	managed(t)
	s := sensorsOf(t, "").(*sensors)
	whole, err := s.Read()
	require.NoError(t, err)
	s.lib = olderNVML{s.lib, "nvmlDeviceGetPowerUsage"}
	r, err := s.Read()
	require.NoError(t, err)
	require.Nil(t, r.Power)
	require.Equal(t, whole.Temperature, r.Temperature)
}

func TestThrottled(t *testing.T) {
	for bits, want := range map[uint64][]string{
		0:        {},
		1:        {}, // idle
		4 | 1:    {"power cap"},
		32 | 64:  {"heat", "heat, hardware"},
		8 | 128:  {"hardware slowdown", "power brake"},
		2 | 16:   {"clock setting", "sync boost"},
		256:      {"display clock"},
		512 | 32: {"heat", "reasons 0x200"},
	} {
		require.Equal(t, want, throttled(bits), bits)
	}
}

// TestRunReportsSensors follows a reading from the driver's bus number to timing.jsonl.
func TestRunReportsSensors(t *testing.T) {
	managed(t)
	c := small("bf16")
	c.Model.Layers, c.Train.Steps, c.Data.ValBytes, c.Checkpoint.Every = 1, 3, 0, 0
	text := filepath.Join(t.TempDir(), "text.txt")
	require.NoError(t, os.WriteFile(text, []byte(strings.Repeat("to be or not to be, ", 200)), 0o600))
	c.Data.Paths = []string{text}
	dir := filepath.Join(t.TempDir(), "run")
	r, err := run.Start(t.Context(), run.Options{Config: c, Dir: dir, Backend: "cuda:1"})
	require.NoError(t, err)
	require.NoError(t, r.Train(t.Context(), func(p run.Progress) { require.NoError(t, p.SensorError) }))
	require.NoError(t, r.Close())

	written, err := os.ReadFile(filepath.Join(dir, "timing.jsonl"))
	require.NoError(t, err)
	steps, last := 0, 0.0
	for text := range strings.Lines(string(written)) {
		var line writers.Timing
		require.NoError(t, json.Unmarshal([]byte(text), &line))
		require.Len(t, line.Devices, 1)
		d := line.Devices[0]
		require.Zero(t, math.Mod(*d.Energy, 5))
		require.GreaterOrEqual(t, *d.Energy, last)
		last, d.Energy = *d.Energy, nil
		require.Equal(t, writers.Device{
			Utilization: new(0.97), MemoryUsed: new(int64(6 << 30)), MemoryTotal: new(int64(24 << 30)),
			Power: new(400.25), Temperature: new(61.0), Clock: new(1755.0), Throttled: []string{"power cap"},
		}, d)
		steps++
	}
	require.Equal(t, 3, steps)
	e, ok := r.Energy()
	require.True(t, ok)
	require.False(t, e.Estimated)
	require.GreaterOrEqual(t, e.Joules, last+5, "one more reading at the end")
}
