package backend

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/fp8"
)

// clock is a time that tests set.
type clock struct{ at time.Time }

func (c *clock) now() time.Time { return c.at }

// run is a program whose node i takes i+1 milliseconds.
type run struct {
	Executable
	clock *clock
	nodes []*Node
	fail  error
}

func (x *run) Run(context.Context) error {
	x.clock.at = x.clock.at.Add(time.Hour)
	return x.fail
}

func (x *run) RunObserved(_ context.Context, observe Observer) error {
	for i, n := range x.nodes {
		x.clock.at = x.clock.at.Add(time.Duration(i+1) * time.Millisecond)
		if err := observe(n, nil); err != nil {
			return err
		}
	}
	return x.fail
}

// timedRun reports the times of its nodes by a clock of its own.
type timedRun struct{ *run }

func (x timedRun) RunTimed(_ context.Context, took func(*Node, time.Duration, time.Duration)) error {
	for i, n := range x.nodes {
		took(n, time.Duration(10*i)*time.Microsecond, time.Duration(10*i+7)*time.Microsecond)
	}
	x.clock.at = x.clock.at.Add(time.Second) // the host waits
	return x.fail
}

// profiled returns a profile of two spans of a program of four nodes.
func profiled(t *testing.T) *Profile {
	t.Helper()
	vars := NewVars()
	x := vars.Tensor(Input, "x", fp8.F32, 100, 50)
	w := vars.Tensor(Param, "w", fp8.F32, 200, 50)
	p := vars.Program("micro")
	h := p.Scope("layers.0.mlp.up_proj").Temp("out", fp8.BF16, 100, 200)
	p.Scope("layers.0.mlp.up_proj").Add(&MatMul{A: x, B: w, TransB: true, Out: h})
	y := p.Scope("layers.1.mlp").Temp("out", fp8.F32, 100, 200)
	p.Phase(Backward).Scope("layers.1.mlp").Add(&Add{A: h, B: h, Out: []Cast{{Out: y}}})
	z := p.Scope("lm_head").Temp("out", fp8.F32, 50, 200)
	p.Scope("lm_head").Add(&MatMul{A: x, B: y, TransA: true, Out: z})
	p.On(CommQueue).Add(&Fill{Out: vars.Tensor(Output, "o", fp8.F32, 1), Value: 1})
	require.NoError(t, p.Err())

	c := &clock{at: time.Unix(1000, 0)}
	profile := &Profile{now: c.now}
	ctx, program := t.Context(), &run{clock: c, nodes: p.Nodes()}
	for range 2 {
		require.NoError(t, profile.Run(ctx, "micro", program)) // not recorded
		profile.Begin()
		c.at = c.at.Add(5 * time.Millisecond) // the host's
		require.NoError(t, profile.Run(ctx, "micro", program))
		profile.End()
	}
	return profile
}

func TestProfile(t *testing.T) {
	p := profiled(t)
	require.Equal(t, 2, p.Spans())
	require.Equal(t, 30*time.Millisecond, p.Elapsed())

	// 2·100·200·50 operations in 2 ms; 4·(5000 + 10000) + 2·20000 bytes in 1 ms.
	peaks := Peaks{FLOPs: 1e9, Bytes: 1e8}
	require.Equal(t, []Row{
		{"Fill", 2, 8 * time.Millisecond, Cost{0, 8}, 2 * 40 * time.Nanosecond},
		{"MatMul TN fp32 fp32 fp32", 2, 6 * time.Millisecond, Cost{4e6, 280_000}, 4 * time.Millisecond},
		{"Add", 2, 4 * time.Millisecond, Cost{0, 320_000}, 3200 * time.Microsecond},
		{"MatMul NT fp32 fp32 bf16", 2, 2 * time.Millisecond, Cost{4e6, 200_000}, 4 * time.Millisecond},
	}, p.Rows(peaks, OpKind))

	rows := p.Rows(Peaks{Bytes: 1e8}, Module)
	require.Equal(t, Row{"no module", 2, 8 * time.Millisecond, Cost{0, 8}, 80 * time.Nanosecond}, rows[0])
	// Rows of equal time are sorted by name.
	require.Equal(t, Row{"layers.*.mlp", 4, 6 * time.Millisecond, Cost{4e6, 520_000}, 5200 * time.Microsecond}, rows[1])
	require.Equal(t, Row{"lm_head", 2, 6 * time.Millisecond, Cost{4e6, 280_000}, 2800 * time.Microsecond}, rows[2])
	require.Len(t, rows, 3)

	require.Zero(t, p.Rows(Peaks{}, OpKind)[0].Floor, "unknown peaks have no floor")
}

func TestModule(t *testing.T) {
	for scope, want := range map[string]string{
		"": "no module", "embed": "embed", "adamw.layers": "adamw", "layers.12": "layers.*",
		"layers.3.mlp.down_proj": "layers.*.mlp", "layers.0.input_layernorm": "layers.*.input_layernorm",
	} {
		require.Equal(t, want, Module(&Node{Scope: scope}), scope)
	}
}

func TestWriteTrace(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, profiled(t).WriteTrace(&b))
	var trace struct {
		TraceEvents []map[string]any
	}
	require.NoError(t, json.Unmarshal(b.Bytes(), &trace), b.String())
	require.Len(t, trace.TraceEvents, 8)
	require.Equal(t, map[string]any{
		"name": "Add", "cat": "bwd", "ph": "X", "ts": 6000.0, "dur": 2000.0, "pid": 0.0, "tid": 0.0,
		"args": map[string]any{"path": "layers.1.mlp", "program": "micro", "flops": 0.0, "bytes": 160_000.0},
	}, trace.TraceEvents[1])
	require.EqualValues(t, CommQueue, trace.TraceEvents[3]["tid"])
	// The second span begins an hour after the first one's end.
	require.Equal(t, (15*time.Millisecond+time.Hour+5*time.Millisecond).Seconds()*1e6, trace.TraceEvents[4]["ts"])
	for i, e := range trace.TraceEvents[1:4] {
		before := trace.TraceEvents[i]
		require.Equal(t, before["ts"].(float64)+before["dur"].(float64), e["ts"], "one node after the other")
	}

	b.Reset()
	require.NoError(t, NewProfile().WriteTrace(&b))
	require.True(t, json.Valid(b.Bytes()), b.String())
	broken := errors.New("no space left")
	require.ErrorIs(t, profiled(t).WriteTrace(failing{broken}), broken)
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

// If the device has a clock, the host's clock counts only for the span.
func TestProfileWithTheDevicesClock(t *testing.T) {
	vars := NewVars()
	p := vars.Program("update")
	for _, name := range []string{"a", "b"} {
		p.Add(&Fill{Out: vars.Tensor(Output, name, fp8.F32, 1), Value: 1})
	}
	c := &clock{at: time.Unix(1000, 0)}
	profile := &Profile{now: c.now}
	ctx, x := t.Context(), timedRun{&run{clock: c, nodes: p.Nodes()}}
	require.NoError(t, profile.Run(ctx, "update", x)) // not recorded
	for range 2 {
		profile.Begin()
		c.at = c.at.Add(time.Millisecond)
		require.NoError(t, profile.Run(ctx, "update", x))
		profile.End()
	}
	require.Equal(t, 2*(time.Second+time.Millisecond), profile.Elapsed())
	rows := profile.Rows(Peaks{}, OpKind)
	require.Len(t, rows, 1)
	require.Equal(t, 4, rows[0].Calls)
	require.Equal(t, 4*7*time.Microsecond, rows[0].Time)
	for i, want := range []time.Duration{1000, 1010, 1_002_000, 1_002_010} {
		require.Equal(t, want*time.Microsecond, profile.events[i].start)
	}
}

// Run returns the program's error, with either clock.
func TestProfileFails(t *testing.T) {
	broken := errors.New("the device is lost")
	c := &clock{at: time.Unix(1000, 0)}
	profile := &Profile{now: c.now}
	x := &run{clock: c, fail: broken}
	require.ErrorIs(t, profile.Run(t.Context(), "micro", x), broken)
	profile.Begin()
	require.ErrorIs(t, profile.Run(t.Context(), "micro", x), broken)
	require.ErrorIs(t, profile.Run(t.Context(), "micro", timedRun{x}), broken)
}

func TestTimes(t *testing.T) {
	times := profiled(t).Times()
	require.Len(t, times, 4)
	for n, list := range times {
		require.Len(t, list, 2, "one for each span")
		require.Equal(t, list[0], list[1], n.Path())
	}
}
