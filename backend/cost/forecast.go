package cost

import (
	"cmp"
	"math"
	"slices"
)

// Training describes a run for a forecast.
type Training struct {
	Step          *Step
	TokensPerStep float64
	FLOPsPerToken float64
	Snapshot      float64 // bytes that each rank copies to its host for a checkpoint
	Checkpoint    float64 // bytes of a checkpoint, which all ranks write together
	// Tokens of the whole run, the price of a device hour in any currency, and the carbon
	// intensity of the grid in g/kWh; 0: not asked for.
	Tokens, Price, Grid float64
}

// Forecast is a training run as predicted. Of the run's figures, those not asked for are 0.
type Forecast struct {
	Devices      int         `json:"devices"`
	StepSeconds  float64     `json:"step_s"`
	Band         [2]float64  `json:"band"` // of StepSeconds, see [Machine.Band]
	TokensPerS   float64     `json:"tokens_per_s"`
	MFU          float64     `json:"mfu,omitempty"` // of the BF16 peak
	Classes      []ClassTime `json:"classes"`
	WireSeconds  float64     `json:"wire_s,omitempty"` // of all collectives, hidden ones included
	Effects      []Effect    `json:"effects,omitempty"`
	Days         float64     `json:"days,omitempty"` // with failures
	DaysBand     [2]float64  `json:"days_band,omitzero"`
	Cost         float64     `json:"cost,omitempty"`
	KWh          float64     `json:"kwh,omitempty"`
	CO2          float64     `json:"co2_kg,omitempty"`
	Interval     float64     `json:"checkpoint_interval_s"`
	Write        float64     `json:"checkpoint_write_s"`
	Lost         float64     `json:"lost_to_failures"` // share of the run: copies, repeated steps, restarts
	Assumptions  []Origin    `json:"assumptions"`
	Unmeasured   []string    `json:"unmeasured,omitempty"`
	Extended     float64     `json:"extended,omitempty"` // see [Prediction]
	NotValidated []string    `json:"not_validated,omitempty"`
}

// Origin is a number with its name and where it is from.
type Origin struct {
	Name    string  `json:"name"`
	Meaning string  `json:"meaning"` // with the unit
	Value   float64 `json:"value"`
	Low     float64 `json:"low,omitempty"` // see [Number]
	High    float64 `json:"high,omitempty"`
	Kind    string  `json:"kind"` // measured, published or assumed
	Source  string  `json:"source"`
}

// Effect is the change of the step over the range of a number: its time at both ends of the range over
// that at the number's value, the shorter one first.
type Effect struct {
	Name string  `json:"name"`
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// Band returns the time of a step if the numbers with a range lie elsewhere in it: the effects of
// all numbers, each alone, and the error of the calibration's curves, combined as independent errors
// of the logarithm. Effects are those of the numbers, largest first.
func (m *Machine) Band(s *Step, p Prediction) (band [2]float64, effects []Effect, err error) {
	low := math.Log1p(p.Residual)
	high := low
	for _, name := range p.Used {
		n := m.Numbers[name]
		if n.Low == 0 {
			continue
		}
		var ends [2]float64
		for i, value := range []float64{n.Low, n.High} {
			q, err := m.with(name, value).Predict(s)
			if err != nil {
				return band, nil, err
			}
			ends[i] = q.Step / p.Step
		}
		e := Effect{name, min(ends[0], ends[1], 1), max(ends[0], ends[1], 1)}
		if e.Low < 1 || e.High > 1 {
			effects = append(effects, e)
		}
		low, high = math.Hypot(low, math.Log(e.Low)), math.Hypot(high, math.Log(e.High))
	}
	slices.SortStableFunc(effects, func(a, b Effect) int { return cmp.Compare(b.High/b.Low, a.High/a.Low) })
	return [2]float64{p.Step * math.Exp(-low), p.Step * math.Exp(high)}, effects, nil
}

// failures returns the failures of a run on m by the numbers that get returns.
func (m *Machine) failures(t Training, get func(name string) float64) Failures {
	return Failures{
		MTBF: get("mtbf") * 3600 / float64(m.Devices()), Restart: get("restart"),
		Save: t.Snapshot / (get("snapshot_rate") * 1e9), Write: t.Checkpoint / (get("checkpoint_rate") * 1e9),
	}
}

// daysBand returns the days of a run with the band of the step and the ranges of the numbers of
// failures, combined as independent errors. An end beyond maxSlowdown is cut off there.
func (m *Machine) daysBand(t Training, f Forecast, slowdown float64) [2]float64 {
	low, high := math.Log(f.StepSeconds/f.Band[0]), math.Log(f.Band[1]/f.StepSeconds)
	for _, name := range []string{"mtbf", "restart", "snapshot_rate", "checkpoint_rate"} {
		n := m.Numbers[name]
		if n.Low == 0 {
			continue
		}
		shorter, longer := 0.0, 0.0
		for _, value := range []float64{n.Low, n.High} {
			x := m.with(name, value)
			failures := x.failures(t, func(name string) float64 { return x.Numbers[name].Value })
			change := math.Log(min(failures.Slowdown(failures.Interval()), maxSlowdown) / slowdown)
			shorter, longer = min(shorter, change), max(longer, change)
		}
		low, high = math.Hypot(low, shorter), math.Hypot(high, longer)
	}
	return [2]float64{f.Days * math.Exp(-low), f.Days * math.Exp(high)}
}

// with returns m with another value of a number.
func (m *Machine) with(name string, value float64) *Machine {
	changed := *m
	changed.Numbers = joined(m.Numbers, nil)
	n := changed.Numbers[name]
	n.Value = value
	changed.Numbers[name] = n
	return &changed
}

// Forecast predicts a run. The error wraps ErrNoData if a number has no source.
func (m *Machine) Forecast(t Training) (Forecast, error) {
	p, err := m.Predict(t.Step)
	if err != nil {
		return Forecast{}, err
	}
	f := Forecast{
		Devices: m.Devices(), StepSeconds: p.Step, Classes: p.Classes, WireSeconds: p.Wire,
		TokensPerS: t.TokensPerStep / p.Step, Unmeasured: p.Unmeasured, Extended: p.Extended, NotValidated: t.Step.NotValidated(),
	}
	if f.Band, f.Effects, err = m.Band(t.Step, p); err != nil {
		return Forecast{}, err
	}
	used := slices.Clone(p.Used)
	get := func(name string) float64 {
		x, ok := m.Numbers[name]
		if !ok {
			err = cmp.Or(err, error(&MissingError{Device: m.Device, Name: name}))
		}
		used = append(used, name)
		return x.Value
	}
	devices := float64(m.Devices())
	if _, ok := m.Numbers["bf16_peak"]; ok {
		f.MFU = f.TokensPerS * t.FLOPsPerToken / (devices * get("bf16_peak") * 1e12)
	}
	failures := m.failures(t, get)
	if err != nil {
		return f, err
	}
	f.Interval, f.Write = failures.Interval(), failures.Write
	slowdown, err := failures.slowdown(f.Interval)
	if err != nil {
		return f, err
	}
	f.Lost = 1 - 1/slowdown
	if t.Tokens > 0 {
		hours := t.Tokens / f.TokensPerS * slowdown / 3600
		f.Days, f.Cost = hours/24, hours*devices*t.Price
		f.DaysBand = m.daysBand(t, f, slowdown)
		if _, ok := m.Numbers["watts"]; ok {
			f.KWh = hours * devices * get("watts") * get("host_power") / 1000
			f.CO2 = f.KWh * t.Grid / 1000
		}
	}
	used = append(used, "memory", "ranks") // whether the run is possible
	slices.Sort(used)
	for _, name := range slices.Compact(used) {
		if n, ok := m.Numbers[name]; ok {
			f.Assumptions = append(f.Assumptions, Origin{name, meaning[name], n.Value, n.Low, n.High, n.Kind(), n.Source()})
		}
	}
	return f, err
}
