package cost

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"

	"octet/backend"
	"octet/internal/disk"
)

// Calibration holds what was measured on a device.
type Calibration struct {
	Backend string `toml:"backend"` // as --backend takes it
	Device  string `toml:"device"`  // as the backend describes it
	// Of a CPU backend: the threads of a rank, and the processors of its machine.
	Threads    int              `toml:"threads,omitzero"`
	Processors int              `toml:"processors,omitzero"`
	Octet      string           `toml:"octet"` // version
	Date       string           `toml:"date"`
	Numbers    Numbers          `toml:"number"`
	Curves     map[string]Curve `toml:"curve"` // by Key
}

// Curve is the time of an op:
//
//	Overhead + FLOPs/(TFLOPs·10^12) + bytes/(GBytes·10^9)   seconds
//
// where a rate of 0 leaves its term out.
type Curve struct {
	Overhead float64 `toml:"overhead_us"`
	TFLOPs   float64 `toml:"tflops,omitzero"`
	GBytes   float64 `toml:"gbytes,omitzero"`
	RMS      float64 `toml:"rms"`                  // of the relative errors of the samples
	Samples  int     `toml:"samples"`              // shapes that were measured
	Smallest float64 `toml:"smallest_us,omitzero"` // sample
	Largest  float64 `toml:"largest_us"`
	Bench    string  `toml:"bench"` // gemm, step, …
}

// time returns the seconds of an op and what limits it.
func (c Curve) time(flops, bytes float64) (float64, Bound) {
	overhead, f, b := c.Overhead*1e-6, 0.0, 0.0
	if c.TFLOPs > 0 {
		f = flops / (c.TFLOPs * 1e12)
	}
	if c.GBytes > 0 {
		b = bytes / (c.GBytes * 1e9)
	}
	switch t := overhead + f + b; {
	case overhead >= f && overhead >= b:
		return t, ByLatency
	case f >= b:
		return t, ByFLOPs
	default:
		return t, ByBytes
	}
}

// Sample is the measured time of one op.
type Sample struct {
	Key     string
	Cost    backend.Cost
	Seconds float64
}

// FitCurves returns a curve for each key, which minimizes the squares of relative errors. No term
// is negative.
func FitCurves(bench string, samples []Sample) map[string]Curve {
	byKey := map[string][]Sample{}
	for _, s := range samples {
		if s.Seconds > 0 {
			byKey[s.Key] = append(byKey[s.Key], s)
		}
	}
	curves := map[string]Curve{}
	for key, list := range byKey {
		curves[key] = fitCurve(bench, list)
	}
	return curves
}

func fitCurve(bench string, samples []Sample) Curve {
	best := Curve{RMS: math.Inf(1)}
	for _, terms := range [...]int{byFLOPs, byBytes, constant, byFLOPs | byBytes, constant | byFLOPs, constant | byBytes, constant | byFLOPs | byBytes} {
		x, ok := leastSquares(samples, terms)
		if !ok {
			continue
		}
		c := Curve{Overhead: x[0] * 1e6, Smallest: samples[0].Seconds * 1e6, Bench: bench}
		if x[1] > 0 {
			c.TFLOPs = 1e-12 / x[1]
		}
		if x[2] > 0 {
			c.GBytes = 1e-9 / x[2]
		}
		shapes := map[backend.Cost]bool{}
		sum := 0.0
		for _, s := range samples {
			shapes[s.Cost] = true
			t, _ := c.time(float64(s.Cost.FLOPs), float64(s.Cost.Bytes))
			d := t/s.Seconds - 1
			sum += d * d
			c.Smallest, c.Largest = min(c.Smallest, s.Seconds*1e6), max(c.Largest, s.Seconds*1e6)
		}
		c.RMS, c.Samples = math.Sqrt(sum/float64(len(samples))), len(shapes)
		if c.RMS < 0.99*best.RMS-1e-9 { // a further term must explain something
			best = c
		}
	}
	return best
}

// The terms of a curve, as a bit set.
const (
	constant = 1 << iota
	byFLOPs
	byBytes
)

// leastSquares solves for the terms of a curve. It fails if the samples do not determine them or
// one is negative.
func leastSquares(samples []Sample, terms int) (x [3]float64, ok bool) {
	var a [3][4]float64 // normal equations, weighted by 1/seconds
	for _, s := range samples {
		row := [3]float64{1 / s.Seconds, float64(s.Cost.FLOPs) / s.Seconds, float64(s.Cost.Bytes) / s.Seconds}
		for i := range 3 {
			for j := range 3 {
				a[i][j] += row[i] * row[j]
			}
			a[i][3] += row[i]
		}
	}
	var scale [3]float64
	for i := range 3 {
		if terms>>i&1 == 0 {
			continue
		}
		if a[i][i] == 0 {
			return x, false
		}
		scale[i] = 1 / math.Sqrt(a[i][i])
	}
	for i := range 3 {
		for j := range 3 {
			a[i][j] *= scale[i] * scale[j]
		}
		a[i][3] *= scale[i]
	}
	for i := range 3 { // elimination; a is positive definite if the samples determine the terms
		if terms>>i&1 == 0 {
			continue
		}
		if a[i][i] < 1e-9 {
			return x, false
		}
		for j := range 3 {
			if j == i || terms>>j&1 == 0 {
				continue
			}
			f := a[j][i] / a[i][i]
			for k := range 4 {
				a[j][k] -= f * a[i][k]
			}
		}
	}
	for i := range 3 {
		if terms>>i&1 == 1 {
			if x[i] = a[i][3] / a[i][i] * scale[i]; x[i] < 0 {
				return x, false
			}
		}
	}
	return x, true
}

// curve returns the curve for an op. Without one of its key it returns, of the curves of the same op
// with other formats, the one whose time for this work is the median, with an rms that covers the
// times of the rest; measured is then false. A GEMM needs a curve of its own.
func (c *Calibration) curve(w *work) (x Curve, measured, ok bool) {
	if x, ok := c.Curves[w.key]; ok {
		return x, true, true
	}
	type candidate struct {
		Curve
		seconds float64
	}
	op, _, _ := strings.Cut(w.key, " ")
	var list []candidate
	for _, key := range slices.Sorted(maps.Keys(c.Curves)) {
		if of, _, _ := strings.Cut(key, " "); of == op {
			t, _ := c.Curves[key].time(w.flops, w.bytes)
			list = append(list, candidate{c.Curves[key], t})
		}
	}
	if len(list) == 0 || w.class == GEMM {
		return Curve{}, false, false
	}
	slices.SortStableFunc(list, func(a, b candidate) int { return cmp.Compare(a.seconds, b.seconds) })
	middle := list[len(list)/2]
	spread := max(list[len(list)-1].seconds/middle.seconds, middle.seconds/list[0].seconds) - 1
	middle.RMS = math.Hypot(middle.RMS, spread)
	return middle.Curve, false, true
}

// Add adds curves, which replace those of the same keys.
func (c *Calibration) Add(curves map[string]Curve) {
	if c.Curves == nil {
		c.Curves = map[string]Curve{}
	}
	maps.Copy(c.Curves, curves)
}

// Set sets a measured number, rounded to four digits.
func (c *Calibration) Set(name string, value float64, source string) {
	if c.Numbers == nil {
		c.Numbers = Numbers{}
	}
	value, _ = strconv.ParseFloat(strconv.FormatFloat(value, 'g', 4, 64), 64) // what FormatFloat wrote
	c.Numbers[name] = Number{Value: value, Measured: source}
}

// Local returns the machine of one device that was calibrated.
func (t Table) Local(c *Calibration) Machine {
	return Machine{Cluster: Cluster{c.Backend, 1, 1}, Title: c.Device, Backend: c.Backend, Numbers: joined(t.Common, c.Numbers), Calibration: c}
}

// Calibrate replaces published and assumed numbers by measured ones. A calibration of another
// backend is an error.
func (m *Machine) Calibrate(c *Calibration) error {
	own, capability, _ := strings.Cut(m.Backend, ":")
	if measured, _, _ := strings.Cut(c.Backend, ":"); own != measured || !suits(c.Device, capability) {
		return fmt.Errorf("the calibration is of backend %s, %s, and %s runs on backend %s", c.Backend, c.Device, m.Title, own)
	}
	network := m.Numbers
	m.Numbers, m.Calibration = joined(m.Numbers, c.Numbers), c
	if m.Network != "" { // the calibration measured another one
		for _, name := range []string{"nic", "nic_share", "nic_latency"} {
			delete(m.Numbers, name)
			if n, ok := network[name]; ok {
				m.Numbers[name] = n
			}
		}
	}
	return nil
}

// suits reports whether the description of a device is of a GPU with a capability such as "sm_90".
// A description without a capability suits every one.
func suits(device, capability string) bool {
	_, own, ok := strings.Cut(device, "compute capability ")
	return !ok || capability == "" || "sm_"+strings.ReplaceAll(own, ".", "") == capability
}

// ReadCalibration reads a file that octet bench --calibrate wrote. Errors name it.
func ReadCalibration(path string) (*Calibration, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	c, err := ParseCalibration(string(text))
	if err != nil {
		return nil, fmt.Errorf("calibration %s: %w", path, err)
	}
	return c, nil
}

// ParseCalibration reads a calibration in TOML.
func ParseCalibration(text string) (*Calibration, error) {
	var c Calibration
	meta, err := toml.Decode(text, &c)
	if err != nil {
		return nil, err
	}
	if unknown := meta.Undecoded(); len(unknown) > 0 {
		return nil, fmt.Errorf("unknown key %s", unknown[0])
	}
	return &c, c.check()
}

func (c *Calibration) check() error {
	if c.Backend == "" || c.Device == "" {
		return fmt.Errorf("backend or device is missing; octet bench --calibrate writes both")
	}
	if c.Threads < 0 || c.Threads > c.Processors {
		return fmt.Errorf("threads is %d and processors %d; expected threads from 0 to processors", c.Threads, c.Processors)
	}
	for key, x := range c.Curves {
		for _, v := range []float64{x.Overhead, x.TFLOPs, x.GBytes, x.RMS, x.Smallest} {
			if !(v >= 0 && v < 1e18) {
				return fmt.Errorf("curve %q has the value %v; expected 0 to 1e18", key, v)
			}
		}
		if x.Overhead == 0 && x.TFLOPs == 0 && x.GBytes == 0 {
			return fmt.Errorf("curve %q takes no time", key)
		}
	}
	return c.Numbers.check("number")
}

// Write writes the calibration to a file.
func (c *Calibration) Write(path string) error {
	var text bytes.Buffer
	if err := toml.NewEncoder(&text).Encode(c); err != nil {
		return err
	}
	return disk.WriteAtomic(path, text.Bytes())
}
