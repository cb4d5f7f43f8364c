package exporter

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/internal/writers"
)

// parse parses the text exposition format 0.0.4 by its published grammar. It returns the
// samples by name and labels, and the type of each family. It requires one HELP and one TYPE
// before the samples of a family, which must be contiguous.
func parse(text string) (samples map[string]float64, types map[string]string, err error) {
	samples, types = map[string]float64{}, map[string]string{}
	sample := regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*)(\{(?:[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*",?)+\})? (\S+)$`)
	if !strings.HasSuffix(text, "\n") {
		return nil, nil, fmt.Errorf("the last line has no end")
	}
	helped, family := "", ""
	for line := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
		f := strings.SplitN(line, " ", 4)
		switch {
		case len(f) == 4 && f[0] == "#" && f[1] == "HELP":
			helped = f[2]
		case len(f) == 4 && f[0] == "#" && f[1] == "TYPE":
			family = f[2]
			if _, twice := types[family]; twice || helped != family || f[3] != "gauge" && f[3] != "counter" {
				return nil, nil, fmt.Errorf("bad family: %q", line)
			}
			types[family] = f[3]
		default:
			m := sample.FindStringSubmatch(line)
			if m == nil || m[1] != family {
				return nil, nil, fmt.Errorf("bad sample: %q", line)
			}
			if _, twice := samples[m[1]+m[2]]; twice {
				return nil, nil, fmt.Errorf("twice: %q", line)
			}
			if samples[m[1]+m[2]], err = strconv.ParseFloat(m[3], 64); err != nil {
				return nil, nil, err
			}
		}
	}
	return samples, types, nil
}

func open(t *testing.T) *Exporter {
	e, err := Open("0", Build{Version: `1.0 "x\y"` + "\n", Go: "go1.26"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	return e
}

func get(t *testing.T, url string) (status int, header http.Header, body string) {
	r, err := http.Get(url)
	require.NoError(t, err)
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	return r.StatusCode, r.Header, string(text)
}

func TestMetrics(t *testing.T) {
	e := open(t)
	const build = `octet_build_info{version="1.0 \"x\\y\"\n",goversion="go1.26"}`
	status, header, body := get(t, e.URL())
	require.Equal(t, 200, status)
	require.Equal(t, "text/plain; version=0.0.4; charset=utf-8", header.Get("Content-Type"))
	samples, _, err := parse(body)
	require.NoError(t, err)
	require.Equal(t, map[string]float64{build: 1}, samples, "before the first step")

	e.Publish(&State{
		At: time.UnixMilli(1_700_000_000_250), Steps: 400, Recipe: "fp8-smooth", Backend: "cuda", Tokens: 1 << 60, ValLoss: new(writers.Float(1.5)), Skipped: 3,
		Metrics: writers.Metrics{Step: 12, Loss: writers.Float(math.NaN()), LR: 3e-3, GradNorm: writers.Float(math.Inf(1)), Tokens: 1 << 50},
		Timing: writers.Timing{
			StepSeconds: 0.25, TokensPerSec: 8192, FlopsPerSec: 5e12, MFU: new(writers.Float(0.5)), Memory: 7 << 30,
			Devices: []writers.Device{
				{Utilization: new(0.97), MemoryUsed: new(int64(5)), MemoryTotal: new(int64(9)), Power: new(612.5), Temperature: new(61.0), Clock: new(1980.0), Throttled: []string{"power"}, Energy: new(1e6)},
				{Power: new(600.0), Throttled: []string{}},
			},
		},
		Checkpoint: 10, CheckpointAt: time.Unix(1_700_000_000, 0),
		Ranks:   []Rank{{Own: 200 * time.Millisecond, Wait: 50 * time.Millisecond}, {Own: 250 * time.Millisecond}},
		Silence: func(rank int) time.Duration { return time.Duration(rank) * time.Second },
		Health: writers.Metrics{
			Step: 10,
			FP8: map[string]writers.FP8Stats{
				"a.e4m3":      {Amax: 3, Scale: new(writers.Float(128)), Saturated: 0.25, Flushed: 0.5, AmaxRMS: 2.5, Kurtosis: 3.5, SQNR: 31.5},
				"a.e4m3.1x32": {Amax: 4, SQNR: writers.Float(math.Inf(1)), ScaleMin: new(writers.Float(2)), ScaleMax: new(writers.Float(8)), ScaleLog2Mean: new(writers.Float(1.5)), ScaleLog2Std: new(writers.Float(0.5))},
			},
			SwiGLU: map[string]writers.SwiGLUStats{"layers.0": {Channel: 7, Amax: 5, Median: 1, Cosine: -0.5, OthersRMS: 2, CosineMean: 0.25}},
		},
	})
	_, _, body = get(t, e.URL())
	samples, types, err := parse(body)
	require.NoError(t, err, body)
	require.True(t, math.IsNaN(samples["octet_loss"]))
	require.Contains(t, body, "octet_loss NaN\n")
	require.Contains(t, body, "octet_grad_norm +Inf\n")
	delete(samples, "octet_loss")
	require.Equal(t, map[string]float64{
		build: 1, `octet_run_info{recipe="fp8-smooth",backend="cuda"}`: 1,
		"octet_step": 12, "octet_steps": 400, "octet_step_timestamp_seconds": 1_700_000_000.25,
		"octet_val_loss": 1.5, "octet_grad_norm": math.Inf(1), "octet_learning_rate": 3e-3,
		"octet_tokens_total": 1 << 60, "octet_skipped_steps_total": 3,
		"octet_tokens_per_second": 8192, "octet_step_seconds": 0.25, "octet_flops_per_second": 5e12, "octet_mfu_ratio": 0.5,
		"octet_memory_bytes": 7 << 30, "octet_checkpoint_step": 10, "octet_checkpoint_timestamp_seconds": 1_700_000_000,
		`octet_device_utilization_ratio{rank="0"}`: 0.97, `octet_device_memory_used_bytes{rank="0"}`: 5, `octet_device_memory_bytes{rank="0"}`: 9,
		`octet_device_power_watts{rank="0"}`: 612.5, `octet_device_power_watts{rank="1"}`: 600,
		`octet_device_temperature_celsius{rank="0"}`: 61, `octet_device_clock_hertz{rank="0"}`: 1.98e9,
		`octet_device_throttled{rank="0"}`: 1, `octet_device_throttled{rank="1"}`: 0, `octet_device_energy_joules_total{rank="0"}`: 1e6,
		`octet_rank_own_seconds{rank="0"}`: 0.2, `octet_rank_own_seconds{rank="1"}`: 0.25,
		`octet_rank_wait_seconds{rank="0"}`: 0.05, `octet_rank_wait_seconds{rank="1"}`: 0,
		`octet_rank_silence_seconds{rank="0"}`: 0, `octet_rank_silence_seconds{rank="1"}`: 1,
		"octet_health_step":                        10,
		`octet_fp8_saturated_ratio{cast="a.e4m3"}`: 0.25, `octet_fp8_saturated_ratio{cast="a.e4m3.1x32"}`: 0,
		`octet_fp8_flushed_ratio{cast="a.e4m3"}`: 0.5, `octet_fp8_flushed_ratio{cast="a.e4m3.1x32"}`: 0,
		`octet_fp8_sqnr_decibels{cast="a.e4m3"}`: 31.5, `octet_fp8_sqnr_decibels{cast="a.e4m3.1x32"}`: math.Inf(1),
		`octet_fp8_amax_rms_ratio{cast="a.e4m3"}`: 2.5, `octet_fp8_amax_rms_ratio{cast="a.e4m3.1x32"}`: 0,
		`octet_fp8_kurtosis{cast="a.e4m3"}`: 3.5, `octet_fp8_kurtosis{cast="a.e4m3.1x32"}`: 0,
		`octet_fp8_amax{cast="a.e4m3"}`: 3, `octet_fp8_amax{cast="a.e4m3.1x32"}`: 4,
		`octet_fp8_scale_min{cast="a.e4m3"}`: 128, `octet_fp8_scale_min{cast="a.e4m3.1x32"}`: 2,
		`octet_fp8_scale_max{cast="a.e4m3"}`: 128, `octet_fp8_scale_max{cast="a.e4m3.1x32"}`: 8,
		`octet_fp8_scale_log2_mean{cast="a.e4m3"}`: 7, `octet_fp8_scale_log2_mean{cast="a.e4m3.1x32"}`: 1.5,
		`octet_fp8_scale_log2_std{cast="a.e4m3"}`: 0, `octet_fp8_scale_log2_std{cast="a.e4m3.1x32"}`: 0.5,
		`octet_swiglu_amax_others_rms{layer="layers.0"}`: 2, `octet_swiglu_cosine_mean{layer="layers.0"}`: 0.25,
		`octet_swiglu_amax{layer="layers.0"}`: 5, `octet_swiglu_amax_median{layer="layers.0"}`: 1, `octet_swiglu_cosine{layer="layers.0"}`: -0.5,
	}, samples)
	for name, kind := range types {
		require.Equal(t, strings.HasSuffix(name, "_total"), kind == "counter", name)
	}

	e.Publish(&State{})
	_, _, body = get(t, e.URL())
	for _, absent := range []string{"octet_val_loss", "octet_mfu", "octet_checkpoint", "octet_device", "octet_fp8", "octet_health", "octet_rank"} {
		require.NotContains(t, body, absent)
	}
}

// Of more than 64 ranks, the 8 slowest have samples.
func TestSlowestRanks(t *testing.T) {
	e := open(t)
	shown := func(n int) (ranks []int) {
		s := &State{Silence: func(rank int) time.Duration { return time.Duration(rank) * time.Second }}
		for rank := range n { // the last ranks are the slowest, but rank 3
			s.Ranks = append(s.Ranks, Rank{Own: time.Duration(rank) * time.Millisecond})
		}
		s.Ranks[3].Own = time.Minute
		e.Publish(s)
		_, _, body := get(t, e.URL())
		samples, _, err := parse(body)
		require.NoError(t, err)
		for rank := range n {
			own, ok := samples[fmt.Sprintf(`octet_rank_own_seconds{rank="%d"}`, rank)]
			silence, same := samples[fmt.Sprintf(`octet_rank_silence_seconds{rank="%d"}`, rank)]
			require.Equal(t, ok, same)
			if ok {
				require.Equal(t, s.Ranks[rank].Own.Seconds(), own)
				require.Equal(t, float64(rank), silence)
				ranks = append(ranks, rank)
			}
		}
		return ranks
	}
	require.Len(t, shown(64), 64)
	require.Equal(t, []int{3, 58, 59, 60, 61, 62, 63, 64}, shown(65))
}

// A run is healthy while it starts, makes steps, or is done. It is unhealthy if a step exceeds
// its timeout, or an error stopped the run.
func TestHealthz(t *testing.T) {
	e := open(t)
	now := time.Unix(1000, 0)
	e.now = func() time.Time { return now }
	url := strings.TrimSuffix(e.URL(), "metrics") + "healthz"
	check := func(want int, text string) {
		t.Helper()
		status, header, body := get(t, url)
		require.Equal(t, want, status)
		require.Equal(t, "text/plain; charset=utf-8", header.Get("Content-Type"))
		require.Equal(t, text+"\n", body)
	}
	check(200, "starting: no step is done yet")
	e.Publish(&State{At: now, Timeout: 80 * time.Second, Steps: 400, Metrics: writers.Metrics{Step: 12}})
	now = now.Add(80 * time.Second)
	check(200, "training: step 12 of 400, 1m20s ago")
	now = now.Add(time.Second)
	check(503, "no step since step 12 of 400, 1m21s ago; the next one was due within 1m20s")
	e.Publish(&State{At: now, Timeout: time.Minute, Steps: 400, Metrics: writers.Metrics{Step: 13}})
	check(200, "training: step 13 of 400, 0s ago")
	e.End(nil)
	now = now.Add(time.Hour)
	check(200, "training is over")
	e.End(errors.New("the disk is full"))
	check(503, "training stopped: the disk is full")
	var none *Exporter
	none.End(nil)
}

func TestRequests(t *testing.T) {
	e := open(t)
	status, _, _ := get(t, strings.TrimSuffix(e.URL(), "metrics"))
	require.Equal(t, http.StatusNotFound, status)
	r, err := http.Post(e.URL(), "text/plain", nil)
	require.NoError(t, err)
	require.NoError(t, r.Body.Close())
	require.Equal(t, http.StatusMethodNotAllowed, r.StatusCode)

	_, err = Open(e.address, Build{})
	require.ErrorContains(t, err, "address already in use; name another port")
	require.NoError(t, e.Close())
	_, err = http.Get(e.URL())
	require.Error(t, err, "closed")

	var none *Exporter
	none.Publish(&State{})
	require.NoError(t, none.Close())
}

// A client that sends nothing is disconnected after the timeout.
func TestSilentClient(t *testing.T) {
	e, err := listen("0", Build{}, 50*time.Millisecond)
	require.NoError(t, err)
	defer e.Close()
	c, err := net.Dial("tcp", e.address)
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Minute))) // ends a failing test
	_, err = c.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
}

// Silent clients replace one another, not clients that send a request, and the number of
// connections is bounded.
func TestSilentClients(t *testing.T) {
	e, err := listen("0", Build{}, time.Hour)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	var silent []net.Conn
	for range 3 * maxConnections {
		c, err := net.Dial("tcp", e.address)
		require.NoError(t, err)
		defer c.Close()
		silent = append(silent, c)
	}
	asking, err := net.Dial("tcp", e.address)
	require.NoError(t, err)
	defer asking.Close()
	require.NoError(t, asking.SetDeadline(time.Now().Add(time.Minute))) // ends a failing test
	_, err = fmt.Fprintf(asking, "GET /metrics HTTP/1.0\r\n\r\n")
	require.NoError(t, err)
	line, err := bufio.NewReader(asking).ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, line, "200 OK")
	for _, c := range silent[:2*maxConnections] {
		require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
		_, err := c.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
	}
}

func TestAddress(t *testing.T) {
	for text, want := range map[string]string{
		"9100": "127.0.0.1:9100", ":9100": "127.0.0.1:9100", "localhost:9100": "127.0.0.1:9100",
		"127.0.0.1:0": "127.0.0.1:0", "0.0.0.0:80": "0.0.0.0:80", "[::]:80": "[::]:80", "10.1.2.3:80": "10.1.2.3:80",
	} {
		at, err := Address(text)
		require.NoError(t, err, text)
		require.Equal(t, want, at.String(), text)
	}
	for _, text := range []string{"", ":", "x", "70000", "-1", "example.com:80", "::1:80:", "1.2.3.4", "unix:/tmp/x", "http://localhost:80"} {
		_, err := Address(text)
		require.ErrorContains(t, err, "is not HOST:PORT: give a port", text)
	}
}

// The wildcard of IPv4 listens on IPv4 only; that of IPv6 listens on both.
func TestWildcards(t *testing.T) {
	port := func(address string) string {
		e, err := Open(address, Build{})
		if err != nil {
			t.Skipf("no address %s here: %v", address, err)
		}
		t.Cleanup(func() { require.NoError(t, e.Close()) })
		_, port, err := net.SplitHostPort(e.address)
		require.NoError(t, err)
		return port
	}
	dial := func(network, host, port string) error {
		c, err := net.Dial(network, net.JoinHostPort(host, port))
		if err == nil {
			require.NoError(t, c.Close())
		}
		return err
	}
	both, four := port("[::]:0"), port("0.0.0.0:0")
	require.NoError(t, dial("tcp6", "::1", both))
	require.NoError(t, dial("tcp4", "127.0.0.1", both))
	require.NoError(t, dial("tcp4", "127.0.0.1", four))
	require.Error(t, dial("tcp6", "::1", four))
}
