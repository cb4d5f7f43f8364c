package run

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/internal/writers"
)

func scrape(r *Run) (string, error) {
	a, err := http.Get(r.MetricsURL())
	if err != nil {
		return "", err
	}
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	return string(text), err
}

// The exporter serves the records of the last step, also while a step runs.
func TestExporterServesTheRecords(t *testing.T) {
	c := tinyConfig(t)
	c.Train.Steps, c.Train.EvalEvery, c.Checkpoint.Every = 4, 2, 1
	require.NoError(t, c.Resolve())
	o := Options{Config: c, Dir: filepath.Join(t.TempDir(), "run"), Backend: "emu", Threads: 1, MetricsAddr: "0"}
	r, err := Start(t.Context(), o)
	require.NoError(t, err)
	during, updates := "", 0 // the answer during the second update
	r.Trainer.Execute = func(ctx context.Context, program string, x backend.Executable) error {
		if program == "update" {
			if updates++; updates == 2 {
				during, err = scrape(r)
				require.NoError(t, err)
			}
		}
		return x.Run(ctx)
	}
	served, err := scrape(r)
	require.NoError(t, err)
	require.NotContains(t, served, "octet_step")

	require.NoError(t, r.Train(t.Context(), func(p Progress) {
		served, err := scrape(r)
		require.NoError(t, err)
		var m writers.Metrics
		require.NoError(t, json.Unmarshal(lastLine(t, filepath.Join(o.Dir, metricsFile)), &m))
		require.Equal(t, p.Step, m.Step)
		for name, x := range map[string]any{
			"step": m.Step, "steps": 4, "loss": float64(m.Loss), "grad_norm": float64(m.GradNorm), "learning_rate": float64(m.LR), "skipped_steps_total": 0,
		} {
			require.Contains(t, served, fmt.Sprintf("\noctet_%s %v\n", name, x))
		}
		require.Equal(t, p.Step >= 2, strings.Contains(served, "\noctet_val_loss "))
	}))
	require.Contains(t, during, "\noctet_step 1\n")
	require.Equal(t, 4, r.saver.last.step)
	require.NoError(t, r.Close())

	o.Resume, o.Config.Train.Steps = true, 5
	r, err = Start(t.Context(), o)
	require.NoError(t, err)
	require.NoError(t, r.Train(t.Context(), func(Progress) {}))
	served, err = scrape(r)
	require.NoError(t, err)
	require.Contains(t, served, "\noctet_checkpoint_step 4\n", "of the previous process")
	require.NotContains(t, served, "octet_checkpoint_timestamp")
	require.NoError(t, r.Close())
}

// The exporter serves the times of each rank in the step before the last one.
func TestExporterServesTheRanks(t *testing.T) {
	c := tinyConfig(t)
	c.Train.Steps, c.Train.Ranks = 3, 2
	require.NoError(t, c.Resolve())
	r, err := Start(t.Context(), Options{Config: c, Dir: filepath.Join(t.TempDir(), "run"), Backend: "emu", Threads: 1, MetricsAddr: "0"})
	require.NoError(t, err)
	var before []pace
	require.NoError(t, r.Train(t.Context(), func(p Progress) {
		served, err := scrape(r)
		require.NoError(t, err)
		if p.Step == 1 {
			require.NotContains(t, served, "octet_rank")
		}
		for rank, x := range before {
			require.Contains(t, served, fmt.Sprintf("\noctet_rank_own_seconds{rank=\"%d\"} %v\n", rank, x.own.Seconds()))
			require.Contains(t, served, fmt.Sprintf("\noctet_rank_wait_seconds{rank=\"%d\"} %v\n", rank, x.wait.Seconds()))
			require.Contains(t, served, fmt.Sprintf("\noctet_rank_silence_seconds{rank=\"%d\"} ", rank))
			require.Positive(t, x.own)
			require.Positive(t, x.wait)
		}
		before = slices.Clone(r.stragglers.paces)
	}))
	require.Len(t, before, 2)
	require.NoError(t, r.Close())
}

// Skipped updates are counted, and the last validation loss stays until the next evaluation.
func TestPublishedBeyondAStep(t *testing.T) {
	c := tinyConfig(t)
	require.NoError(t, c.Resolve())
	r, err := Start(t.Context(), Options{Config: c, Dir: filepath.Join(t.TempDir(), "run"), Backend: "emu", Threads: 1, MetricsAddr: "0"})
	require.NoError(t, err)
	loss := func(x writers.Float) *writers.Float { return &x }
	for _, test := range []struct {
		step    writers.Metrics
		valLoss string
		skipped int
	}{
		{writers.Metrics{Step: 1, ValLoss: loss(2.5)}, "2.5", 0},
		{writers.Metrics{Step: 2, Skipped: true}, "2.5", 1},
		{writers.Metrics{Step: 3}, "2.5", 1},
		{writers.Metrics{Step: 4, Skipped: true, ValLoss: loss(1.5)}, "1.5", 2},
	} {
		r.publish(test.step, writers.Timing{})
		served, err := scrape(r)
		require.NoError(t, err)
		require.Contains(t, served, fmt.Sprintf("\noctet_val_loss %s\n", test.valLoss), test.step.Step)
		require.Contains(t, served, fmt.Sprintf("\noctet_skipped_steps_total %d\n", test.skipped), test.step.Step)
	}
	require.NoError(t, r.Close())
}

// /healthz reports an error that stopped training as unhealthy, and a finished run as healthy.
func TestHealthAfterTraining(t *testing.T) {
	for _, failure := range []error{nil, errors.New("the device is lost")} {
		c := tinyConfig(t)
		c.Train.Steps = 3
		require.NoError(t, c.Resolve())
		r, err := Start(t.Context(), Options{Config: c, Dir: filepath.Join(t.TempDir(), "run"), Backend: "emu", Threads: 1, MetricsAddr: "0"})
		require.NoError(t, err)
		r.Trainer.Execute = func(ctx context.Context, program string, x backend.Executable) error {
			if r.Trainer.StepsDone() == 2 && failure != nil {
				return failure
			}
			return x.Run(ctx)
		}
		require.ErrorIs(t, r.Train(t.Context(), func(Progress) {}), failure)
		answer, err := http.Get(strings.TrimSuffix(r.MetricsURL(), "metrics") + "healthz")
		require.NoError(t, err)
		text, err := io.ReadAll(answer.Body)
		require.NoError(t, errors.Join(err, answer.Body.Close()))
		if failure == nil {
			require.Equal(t, "200 training is over\n", fmt.Sprint(answer.StatusCode, " ", string(text)))
		} else {
			require.Equal(t, 503, answer.StatusCode)
			require.Contains(t, string(text), "training stopped: ")
			require.Contains(t, string(text), "the device is lost")
		}
		require.NoError(t, r.Close())
	}
}

// The timeout of a step is ten times the longest step so far, at least a minute, plus time
// for an evaluation or a checkpoint that comes with it.
func TestStepTimeout(t *testing.T) {
	c := tinyConfig(t)
	c.Train.Steps, c.Train.EvalEvery, c.Checkpoint.Every = 10, 4, 3
	require.NoError(t, c.Resolve())
	r, err := Start(t.Context(), Options{Config: c, Dir: filepath.Join(t.TempDir(), "run"), Backend: "emu", Threads: 1})
	require.NoError(t, err)
	r.Memory.Snapshot = 10e9 // 100 s
	timeouts := map[int]time.Duration{}
	require.NoError(t, r.Train(t.Context(), func(p Progress) {
		r.published.longest, r.published.step = time.Second, time.Second
		if p.Step == 5 {
			r.published.longest = time.Minute
		}
		timeouts[p.Step] = r.stepTimeout()
	}))
	require.NoError(t, r.Close())
	batches := r.Corpus.Info.ValTokens/int64(c.Train.MicroBatch*c.Data.Seq) + 1
	require.Equal(t, map[int]time.Duration{
		1: time.Minute, 2: 160 * time.Second, 3: time.Minute + time.Duration(10*batches)*time.Second,
		4: time.Minute, 5: 700 * time.Second, 6: time.Minute, 7: time.Minute + time.Duration(10*batches)*time.Second,
		8: 160 * time.Second, 9: 160*time.Second + time.Duration(10*batches)*time.Second, 10: 160 * time.Second,
	}, timeouts)
}

// A counter never decreases: after a rewind the repeated steps count again, as in the run's
// tokens and energy.
func TestTokensOfARewind(t *testing.T) {
	s := spikes()
	c := tinyConfig(t)
	c.Train.Steps, c.Train.OnSpike, c.Checkpoint.Every = 95, "rewind", 10
	require.NoError(t, c.Resolve())
	s.batches = s.batchesOf(t, c, 87, 89)
	r, err := Start(t.Context(), Options{Config: c, Dir: filepath.Join(t.TempDir(), "run"), Backend: "emu-spiky", Threads: 1, MetricsAddr: "0"})
	require.NoError(t, err)
	step, executed := 0, 0
	require.NoError(t, r.Train(t.Context(), func(p Progress) {
		executed++
		require.Equal(t, int64(executed)*r.Trainer.TokensPerStep(), r.Tokens())
		if p.Rewound { // the next step publishes again
			step = 80
			return
		}
		step++
		served, err := scrape(r)
		require.NoError(t, err)
		require.Contains(t, served, fmt.Sprintf("\noctet_step %d\n", step))
		require.Contains(t, served, fmt.Sprintf("\noctet_tokens_total %d\n", r.Tokens()))
	}))
	require.Equal(t, 95, step)
	require.Equal(t, 95+9, executed, "step 89 rewinds to step 80")
	require.NoError(t, r.Close())
}

func lastLine(t *testing.T, path string) []byte {
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return []byte(lines[len(lines)-1])
}
