package run

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/train"
)

// fakeSensors return answer(n) for the nth reading, counted from 0.
type fakeSensors struct {
	answer func(n int) (backend.Reading, error)
	reads  atomic.Int32
	closed int
}

func (s *fakeSensors) Read() (backend.Reading, error) {
	return s.answer(int(s.reads.Add(1)) - 1)
}

func (s *fakeSensors) Close() error {
	s.closed++
	return nil
}

// sensedDevice is a device with sensors, or with an error of opening them.
type sensedDevice struct {
	backend.Backend
	sensors *fakeSensors
	err     error
}

func (d sensedDevice) Sensors() (backend.Sensors, error) {
	if d.err != nil {
		return nil, d.err
	}
	return d.sensors, nil
}

func TestEnergyOfOneDevice(t *testing.T) {
	counted := func(j float64) backend.Reading { return backend.Reading{Power: new(1e6), Energy: &j} }
	drawn := func(w float64) backend.Reading { return backend.Reading{Power: &w} }
	silent := backend.Reading{}
	for name, c := range map[string]struct {
		readings []backend.Reading // one every 2 s
		want     []float64         // -1: unknown
	}{
		"a count":                  {[]backend.Reading{counted(7e6), counted(7e6 + 600), counted(7e6 + 1000)}, []float64{0, 600, 1000}},
		"a count with a gap":       {[]backend.Reading{counted(7e6), silent, drawn(9), counted(7e6 + 1000)}, []float64{0, -1, -1, 1000}},
		"a constant power":         {[]backend.Reading{drawn(300), drawn(300), drawn(300)}, []float64{0, 600, 1200}},
		"a power that rises":       {[]backend.Reading{drawn(0), drawn(100), drawn(200), drawn(300)}, []float64{0, 100, 400, 900}},
		"a power with a gap":       {[]backend.Reading{drawn(100), silent, silent, drawn(200)}, []float64{0, -1, -1, 900}},
		"a count that comes later": {[]backend.Reading{drawn(100), {Power: new(100.0), Energy: new(5.0)}}, []float64{0, 200}},
		"the beginning is missing": {[]backend.Reading{silent, counted(5), drawn(5)}, []float64{-1, -1, -1}},
		"a device without values":  {[]backend.Reading{silent, silent}, []float64{-1, -1}},
	} {
		t.Run(name, func(t *testing.T) {
			var m energyMeter
			at := time.Unix(1000, 0)
			for i, r := range c.readings {
				integrates := c.readings[0].Energy == nil && r.Power != nil
				m.add(at, &r)
				at = at.Add(2 * time.Second)
				if c.want[i] < 0 {
					require.Nil(t, r.Energy, i)
					continue
				}
				require.InDelta(t, c.want[i], *r.Energy, 1e-9, i)
				require.Equal(t, integrates, r.EnergyEstimated, i)
			}
		})
	}
}

// Sensors are read at the beginning, every second, and at the end; now never waits.
func TestTelemetryReadsEverySecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slow = 50 * time.Millisecond
		s := &fakeSensors{answer: func(n int) (backend.Reading, error) {
			time.Sleep(slow)
			return backend.Reading{Power: new(float64(100 * n)), Energy: new(float64(1000 + 10*n))}, nil
		}}
		tm := openTelemetry(sensedDevice{sensors: s})
		require.Nil(t, tm.now())
		_, ok := tm.energy(0)
		require.False(t, ok)
		tm.begin()
		require.EqualValues(t, 1, s.reads.Load())
		time.Sleep(3500 * time.Millisecond)
		before := time.Now()
		now := tm.now()
		require.Zero(t, time.Since(before))
		require.Equal(t, 300.0, *now.Power)
		require.Equal(t, 30.0, *now.Energy)
		require.False(t, now.EnergyEstimated)
		tm.end()
		require.EqualValues(t, 5, s.reads.Load())
		e, ok := tm.energy(0)
		require.True(t, ok)
		require.Equal(t, Energy{Joules: 40}, e)
		time.Sleep(time.Minute)
		require.EqualValues(t, 5, s.reads.Load(), "it ended")
		require.Nil(t, tm.now(), "a reading of a minute ago is stale")
		require.NoError(t, tm.close())
		require.Equal(t, 1, s.closed)
		require.NoError(t, tm.failure())
	})
}

// A failure is reported once, and readings continue when the sensors answer again.
func TestTelemetryFailsInTheMiddle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost := errors.New("lost")
		s := &fakeSensors{answer: func(n int) (backend.Reading, error) {
			if n == 1 || n == 2 {
				return backend.Reading{}, lost
			}
			return backend.Reading{Energy: new(float64(n))}, nil
		}}
		tm := openTelemetry(sensedDevice{sensors: s})
		tm.begin()
		require.NoError(t, tm.failure())
		time.Sleep(1500 * time.Millisecond)
		require.ErrorIs(t, tm.failure(), lost)
		require.Nil(t, tm.now())
		_, ok := tm.energy(0)
		require.False(t, ok)
		time.Sleep(2 * time.Second)
		require.NoError(t, tm.failure(), "reported once")
		require.Equal(t, 3.0, *tm.now().Energy)
		require.NoError(t, tm.close())
		e, ok := tm.energy(0)
		require.True(t, ok)
		require.Equal(t, Energy{Joules: 4}, e)
	})
}

// A library that never answers delays the end of a run only by the timeout.
func TestTelemetryHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		never := make(chan struct{})
		s := &fakeSensors{answer: func(n int) (backend.Reading, error) {
			if n == 1 {
				<-never
			}
			return backend.Reading{Energy: new(1.0)}, nil
		}}
		tm := openTelemetry(sensedDevice{sensors: s})
		tm.begin()
		time.Sleep(10 * time.Second)
		require.Nil(t, tm.now())
		start := time.Now()
		tm.end()
		require.Equal(t, lastReadTimeout, time.Since(start))
		_, ok := tm.energy(0)
		require.False(t, ok)
		require.NoError(t, tm.close())
		require.Zero(t, s.closed, "the hung reading still uses it")
		close(never)
	})
}

func TestTelemetryOfDevicesWithoutSensors(t *testing.T) {
	type deaf struct{ backend.Backend }
	absent := errors.New("no library")
	for _, c := range []struct {
		device backend.Backend
		want   error
	}{{deaf{}, nil}, {sensedDevice{err: absent}, absent}} {
		tm := openTelemetry(c.device)
		tm.begin()
		require.Nil(t, tm.now())
		require.Empty(t, tm.message())
		tm.end()
		_, ok := tm.energy(0)
		require.False(t, ok)
		require.ErrorIs(t, tm.failure(), c.want)
		require.NoError(t, tm.close())
	}
}

// Ranks tell each other their readings; the energy is that of all devices.
func TestTelemetryOfRanks(t *testing.T) {
	s := &fakeSensors{answer: func(n int) (backend.Reading, error) {
		return backend.Reading{Power: new(50.0), Energy: new(float64(10 * n)), Throttled: []string{"hot"}}, nil
	}}
	mine := openTelemetry(sensedDevice{sensors: s})
	mine.begin()
	other := []byte(`{"Energy":7,"EnergyEstimated":true}`)
	require.NoError(t, mine.receive([][]byte{other, mine.message(), nil}))
	require.Equal(t, []backend.Reading{{Energy: new(7.0), EnergyEstimated: true}, *mine.now(), {}}, mine.ranks)
	_, ok := mine.energy(1)
	require.False(t, ok, "rank 2 has no sensors")
	require.NoError(t, mine.receive([][]byte{other, mine.message()}))
	mine.end()
	e, ok := mine.energy(1)
	require.True(t, ok)
	require.Equal(t, Energy{Joules: 7 + 10, Estimated: true}, e, "with the last reading of this rank")
	require.NoError(t, mine.receive([][]byte{nil, nil}))
	require.Nil(t, mine.ranks)
	require.ErrorContains(t, mine.receive([][]byte{nil, []byte("{")}), "the sensors of rank 1")
}

// sensed registers emu with sensors, which outlive the devices that a schedule closes.
var sensed = sync.OnceValue(func() *sensedDevice {
	emu, _, err := backend.Find("emu")
	if err != nil {
		panic(err)
	}
	d := &sensedDevice{}
	emu.Name, emu.Priority = "emu-sensed", emu.Priority-1
	openEmu := emu.Open
	emu.Open = func(device string, o backend.Options) (backend.Backend, error) {
		b, err := openEmu(device, o)
		return sensedDevice{b, d.sensors, d.err}, err
	}
	backend.Register(emu)
	return d
})

// runSensed trains three steps, the last under another recipe, and returns the reports,
// timing.jsonl, run.log, and the energy.
func runSensed(t *testing.T) (list []Progress, lines []map[string]any, log string, e Energy, known bool) {
	c := tinyConfig(t)
	c.Train.Steps = 3
	c.Precision.Schedule = []train.RecipeChange{{Step: 2, Recipe: "fp8-delayed"}}
	require.NoError(t, c.Resolve())
	dir := filepath.Join(t.TempDir(), "run")
	r, err := Start(t.Context(), Options{Config: c, Dir: dir, Backend: "emu-sensed", Threads: 1, Profile: true})
	require.NoError(t, err)
	require.NoError(t, r.Train(t.Context(), func(p Progress) { list = append(list, p) }))
	e, known = r.Energy()
	require.NoError(t, r.Close())
	text, err := os.ReadFile(filepath.Join(dir, timingFile))
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		var m map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &m))
		lines = append(lines, m)
	}
	text, err = os.ReadFile(filepath.Join(dir, logFile))
	require.NoError(t, err)
	return list, lines, string(text), e, known
}

func TestRunRecordsItsSensors(t *testing.T) {
	d := sensed()
	d.sensors, d.err = &fakeSensors{answer: func(n int) (backend.Reading, error) {
		return backend.Reading{Temperature: new(70.0), Throttled: []string{}, Energy: new(float64(100 + n))}, nil
	}}, nil
	list, lines, log, e, known := runSensed(t)
	require.Len(t, lines, 3)
	require.Equal(t, "fp8-delayed", list[2].Recipe)
	for i, p := range list {
		require.NoError(t, p.SensorError)
		require.Equal(t, 70.0, *p.Devices[0].Temperature)
		got := lines[i]["devices"].([]any)[0].(map[string]any)
		require.Equal(t, *p.Devices[0].Energy, got["energy_j"])
		delete(got, "energy_j")
		require.Equal(t, map[string]any{"temperature_c": 70.0, "throttled": []any{}}, got)
	}
	require.True(t, known)
	require.Equal(t, Energy{Joules: float64(d.sensors.reads.Load() - 1)}, e, "from the first to the last reading")
	require.Equal(t, 1, d.sensors.closed)
	require.NotContains(t, log, "telemetry")
}

func TestSensorErrorIsReportedOnce(t *testing.T) {
	d := sensed()
	d.err = errors.New("no library")
	list, lines, log, _, known := runSensed(t)
	for i, p := range list {
		require.Equal(t, i == 0, p.SensorError != nil)
		require.Nil(t, p.Devices)
		require.NotContains(t, lines[i], "devices")
	}
	require.False(t, known)
	require.Equal(t, 1, strings.Count(log, `"msg":"no telemetry","step":1,"reason":"the device's sensors cannot be read: no library"`))
}
