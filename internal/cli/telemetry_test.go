package cli

import (
	"encoding/json"
	"errors"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/run"
)

// The status line, the summary and its JSON show the sensors; sensors that fail give one
// line.
func TestTrainShowsSensors(t *testing.T) {
	emu, _, err := backend.Find("emu")
	require.NoError(t, err)
	openEmu := emu.Open
	emu.Name, emu.Priority = "emu-sensed", -1
	emu.Open = func(device string, o backend.Options) (backend.Backend, error) {
		b, err := openEmu("", o)
		return sensedDevice{b, device == "silent"}, err
	}
	spec := emu.Spec
	emu.Spec = func(string) (backend.Spec, error) { return spec("") }
	t.Cleanup(backend.Register(emu))

	text := corpus(t, 10_000)
	args := func(device string, more ...string) []string {
		return trainArgs(text, filepath.Join(t.TempDir(), "run"), 2, append([]string{"--backend", "emu-sensed" + device}, more...)...)
	}
	stdout, stderr := succeed(t, args("")...)
	require.Contains(t, stderr, "  97% busy  612 W  61 C  ETA ")
	require.Contains(t, stdout, "\nenergy      1.0 kJ (0.000278 kWh), 7.81 J per token; counted by the device, host excluded\n")

	stdout, _ = succeed(t, args("", "--json")...)
	var got map[string]any
	require.NoError(t, json.Unmarshal([]byte(stdout), &got))
	require.Equal(t, 1000.0, got["energy_j"])
	require.Equal(t, 1000.0/128, got["joules_per_token"])
	require.NotContains(t, got, "energy_estimated")

	stdout, stderr = succeed(t, args(":silent")...)
	require.NotContains(t, stdout, "energy")
	require.NotContains(t, stderr, "busy")
	require.Equal(t, 1, strings.Count(stderr, "step 1: the device's sensors cannot be read: out of order; training continues without telemetry (octet doctor shows why)\n"))
	require.Equal(t, 1, strings.Count(stderr, "sensors"))
}

type sensedDevice struct {
	backend.Backend
	silent bool
}

func (d sensedDevice) Sensors() (backend.Sensors, error) { return &sensors{silent: d.silent}, nil }

// sensors count 1 kJ between the first reading and any other.
type sensors struct{ silent, read bool }

func (s *sensors) Read() (r backend.Reading, err error) {
	if s.silent {
		return r, errors.New("out of order")
	}
	r = backend.Reading{Utilization: new(0.97), Power: new(612.0), Temperature: new(61.0), Energy: new(5000.0)}
	if s.read {
		*r.Energy += 1000
	}
	s.read = true
	return r, nil
}

func (*sensors) Close() error { return nil }

func TestEnergyText(t *testing.T) {
	for want, e := range map[string]run.Energy{
		"2.5 MJ (0.694 kWh), 0.0025 J per token; counted by the device, host excluded":                       {Joules: 2.5e6},
		"30 J (8.33e-06 kWh), 3e-08 J per token; estimated from its power, read every second, host excluded": {Joules: 30, Estimated: true},
	} {
		require.Equal(t, want, energyText(e, 1_000_000_000))
	}
}

// The status line combines the readings of several devices.
func TestStatusOfSeveralDevices(t *testing.T) {
	power := func(d backend.Reading) *float64 { return d.Power }
	sum := func(a, b float64) float64 { return a + b }
	one, two := backend.Reading{Power: new(1.0)}, backend.Reading{Power: new(2.0)}
	require.Equal(t, 5.0, *fold([]backend.Reading{two, one, two}, power, sum))
	require.Equal(t, 1.0, *fold([]backend.Reading{two, one, two}, power, math.Min))
	require.Equal(t, 1.0, *fold([]backend.Reading{one}, power, sum))
	for _, list := range [][]backend.Reading{{{}}, {{}, one}, {one, {}}, {one, {}, two}} {
		require.Nil(t, fold(list, power, sum))
	}
	require.Equal(t, 1.0, *one.Power, "fold does not change the readings")
}
