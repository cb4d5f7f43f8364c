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
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/internal/exporter"
	"octet/internal/writers"
)

func scrape(e *exporter.Exporter) (string, error) {
	r, err := http.Get(e.URL())
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	return string(text), err
}

// What is told is what the last step recorded, also while a step stands still.
func TestExporterTellsWhatWasRecorded(t *testing.T) {
	e, err := exporter.Open("0", exporter.Build{Version: "devel", Go: "go"})
	require.NoError(t, err)
	defer e.Close()
	c := tinyConfig(t)
	c.Train.Steps, c.Train.EvalEvery, c.Checkpoint.Every = 4, 2, 1
	require.NoError(t, c.Resolve())
	o := Options{Config: c, Dir: filepath.Join(t.TempDir(), "run"), Backend: "emu", Threads: 1, Exporter: e}
	r, err := Start(t.Context(), o)
	require.NoError(t, err)
	during, updates := "", 0 // what is told in the second update
	r.Trainer.Execute = func(ctx context.Context, program string, x backend.Executable) error {
		if program == "update" {
			if updates++; updates == 2 {
				during, err = scrape(e)
				require.NoError(t, err)
			}
		}
		return x.Run(ctx)
	}
	told, err := scrape(e)
	require.NoError(t, err)
	require.NotContains(t, told, "octet_step")

	require.NoError(t, r.Train(t.Context(), func(p Progress) {
		told, err := scrape(e)
		require.NoError(t, err)
		var m writers.Metrics
		require.NoError(t, json.Unmarshal(lastLine(t, filepath.Join(o.Dir, metricsFile)), &m))
		require.Equal(t, p.Step, m.Step)
		for name, x := range map[string]any{
			"step": m.Step, "steps": 4, "loss": float64(m.Loss), "grad_norm": float64(m.GradNorm), "learning_rate": float64(m.LR), "skipped_steps_total": 0,
		} {
			require.Contains(t, told, fmt.Sprintf("\noctet_%s %v\n", name, x))
		}
		require.Equal(t, p.Step >= 2, strings.Contains(told, "\noctet_val_loss "))
	}))
	require.Contains(t, during, "\noctet_step 1\n")
	require.Equal(t, 4, r.saver.last.step)
	require.NoError(t, r.Close())

	o.Resume, o.Config.Train.Steps = true, 5
	r, err = Start(t.Context(), o)
	require.NoError(t, err)
	require.NoError(t, r.Train(t.Context(), func(Progress) {}))
	told, err = scrape(e)
	require.NoError(t, err)
	require.Contains(t, told, "\noctet_checkpoint_step 4\n", "of the process before")
	require.NotContains(t, told, "octet_checkpoint_timestamp")
	require.NoError(t, r.Close())
}

// Skipped updates are counted, and the last evaluation stands until the next one.
func TestPublishedBeyondAStep(t *testing.T) {
	e, err := exporter.Open("0", exporter.Build{})
	require.NoError(t, err)
	defer e.Close()
	c := tinyConfig(t)
	require.NoError(t, c.Resolve())
	r, err := Start(t.Context(), Options{Config: c, Dir: filepath.Join(t.TempDir(), "run"), Backend: "emu", Threads: 1, Exporter: e})
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
		told, err := scrape(e)
		require.NoError(t, err)
		require.Contains(t, told, fmt.Sprintf("\noctet_val_loss %s\n", test.valLoss), test.step.Step)
		require.Contains(t, told, fmt.Sprintf("\noctet_skipped_steps_total %d\n", test.skipped), test.step.Step)
	}
	require.NoError(t, r.Close())
}

// A run that an error stopped is unhealthy, with the reason; one that is done is not.
func TestExporterTellsHowTrainingEnds(t *testing.T) {
	for _, failure := range []error{nil, errors.New("the device is lost")} {
		e, err := exporter.Open("0", exporter.Build{})
		require.NoError(t, err)
		defer e.Close()
		c := tinyConfig(t)
		c.Train.Steps = 3
		require.NoError(t, c.Resolve())
		r, err := Start(t.Context(), Options{Config: c, Dir: filepath.Join(t.TempDir(), "run"), Backend: "emu", Threads: 1, Exporter: e})
		require.NoError(t, err)
		r.Trainer.Execute = func(ctx context.Context, program string, x backend.Executable) error {
			if r.Trainer.StepsDone() == 2 && failure != nil {
				return failure
			}
			return x.Run(ctx)
		}
		require.ErrorIs(t, r.Train(t.Context(), func(Progress) {}), failure)
		answer, err := http.Get(strings.TrimSuffix(e.URL(), "metrics") + "healthz")
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

// The next step may take ten times as long as the longest so far, a minute at least,
// and longer with what comes with it alone.
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

// A counter never goes down: after a rewind the repeated steps count again, in it as in
// the run's tokens and energy.
func TestTokensOfARewind(t *testing.T) {
	e, err := exporter.Open("0", exporter.Build{})
	require.NoError(t, err)
	defer e.Close()
	s := spikes()
	c := tinyConfig(t)
	c.Train.Steps, c.Train.OnSpike, c.Checkpoint.Every = 95, "rewind", 10
	require.NoError(t, c.Resolve())
	s.batches = s.batchesOf(t, c, 87, 89)
	r, err := Start(t.Context(), Options{Config: c, Dir: filepath.Join(t.TempDir(), "run"), Backend: "emu-spiky", Threads: 1, Exporter: e})
	require.NoError(t, err)
	step, executed := 0, 0
	require.NoError(t, r.Train(t.Context(), func(p Progress) {
		executed++
		require.Equal(t, int64(executed)*r.Trainer.TokensPerStep(), r.Tokens())
		if p.Rewound { // nothing is told until the step after it
			step = 80
			return
		}
		step++
		told, err := scrape(e)
		require.NoError(t, err)
		require.Contains(t, told, fmt.Sprintf("\noctet_step %d\n", step))
		require.Contains(t, told, fmt.Sprintf("\noctet_tokens_total %d\n", r.Tokens()))
	}))
	require.Equal(t, 95, step)
	require.Equal(t, 95+9, executed, "89 led back to 80")
	require.NoError(t, r.Close())
}

func lastLine(t *testing.T, path string) []byte {
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return []byte(lines[len(lines)-1])
}
