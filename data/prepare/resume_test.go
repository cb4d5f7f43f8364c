package prepare

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/data"
	"octet/internal/disk"
	"octet/internal/disk/powercut"
)

// A call that is killed at any change of the disk, or interrupted at any batch, and started again as
// often as needed, gives the bytes of an uninterrupted one.
func TestKillAndResume(t *testing.T) {
	paths, _ := corpusOf(t, t.TempDir())
	tok := trained(t)
	text := options(t, tok, paths...)
	text.limits, text.Val, text.ShardTokens, text.Threads = tiny, 0.1, 5000, 2
	lines := ""
	for i := range 500 {
		lines += jsonLine(t, map[string]string{"prompt": strings.Repeat("the cat ", i%13), "completion": strings.Repeat(" sat", i%17)})
	}
	masked := options(t, tok, write(t, t.TempDir()+"/a.jsonl", lines))
	masked.Kind, masked.limits, masked.Val, masked.ShardTokens = data.KindCompletion, tiny, 0.1, 1500
	for _, o := range []Options{text, masked} {
		t.Run(o.Kind, func(t *testing.T) { testResume(t, o) })
	}
}

func testResume(t *testing.T, first Options) {
	result, err := Run(t.Context(), first)
	require.NoError(t, err)
	all := result.Total(data.TrainPart).Bytes + result.Total(data.ValPart).Bytes
	require.Equal(t, all, result.Written)
	want := folder(t, first.Out)
	same := func(dir string) {
		t.Helper()
		got := folder(t, dir)
		require.Len(t, got, len(want))
		for name, text := range want {
			require.Equal(t, text, got[name], name)
		}
	}
	killed := errors.New("killed")
	r := rand.New(rand.NewPCG(3, 4))
	for range 4 {
		o := first
		o.Out = filepath.Join(t.TempDir(), "out")
		calls := 0
		for ; ; calls++ {
			require.Less(t, calls, 200)
			left := 12 + r.IntN(50)
			restore := disk.Intercept(func(c disk.Change) error {
				left--
				switch {
				case left > 0:
					return c.Do()
				case left == 0 && c.Half != nil:
					return errors.Join(c.Half(), killed)
				}
				return killed
			})
			_, err := Run(t.Context(), o)
			restore()
			if err == nil {
				break
			}
			require.ErrorIs(t, err, killed)
		}
		require.Greater(t, calls, 0)
		same(o.Out)
	}
	stop := errors.New("stop")
	continued := 0
	for range 5 {
		o := first
		o.Out = filepath.Join(t.TempDir(), "out")
		resumed := 0
		for {
			ctx, cancel := context.WithCancelCause(t.Context())
			left := 1 + r.IntN(60)
			done, size := int64(0), int64(0)
			o.Progress = func(now, all int64) {
				require.LessOrEqual(t, done, now)
				require.LessOrEqual(t, now, all)
				done, size = now, all
				if left--; left == 0 {
					cancel(stop)
				}
			}
			result, err := Run(ctx, o)
			cancel(nil)
			if result.Resumed {
				resumed++
			}
			if err == nil { // it counts what it has read and written, not the calls before
				require.Equal(t, size, done)
				require.LessOrEqual(t, result.Written, all)
				if result.Written < all {
					continued++
				}
				break
			}
			require.ErrorIs(t, err, stop)
		}
		require.Positive(t, resumed)
		same(o.Out)
	}
	require.Positive(t, continued)
}

// After a power cut at any change, what POSIX guarantees of the folder is enough to continue.
func TestPowerCut(t *testing.T) {
	paths, _ := corpusOf(t, t.TempDir())
	tok := trained(t)
	o := options(t, tok, paths...)
	o.limits, o.Val, o.ShardTokens, o.Threads = tiny, 0.1, 6000, 2
	_, err := Run(t.Context(), o)
	require.NoError(t, err)
	want := folder(t, o.Out)
	cut := errors.New("power cut")
	for stop := 5; stop < 400; stop += 41 {
		home := t.TempDir()
		d := powercut.New(home)
		o.Out = filepath.Join(home, "out")
		n := 0
		restore := disk.Intercept(func(c disk.Change) error {
			if n++; n > stop {
				return cut
			}
			return errors.Join(c.Do(), d.Follow(c))
		})
		_, err := Run(t.Context(), o)
		restore()
		if err == nil {
			break
		}
		require.ErrorIs(t, err, cut)
		for _, quick := range []bool{false, true} {
			after := filepath.Join(t.TempDir(), "after")
			require.NoError(t, d.Leave(after, quick))
			o.Out = filepath.Join(after, "out")
			_, err = Run(t.Context(), o)
			require.NoError(t, err, stop)
			require.Equal(t, want, folder(t, o.Out), stop)
		}
	}
}

// Other arguments or sources are refused by name.
func TestResumeRefusals(t *testing.T) {
	dir := t.TempDir()
	path, other := write(t, dir+"/a.jsonl", strings.Repeat(jsonLine(t, map[string]string{"text": "the cat", "b": "dog"}), 400)), write(t, dir+"/b.txt", "dog")
	tok := trained(t)
	begun := func() Options {
		o := options(t, tok, path)
		o.limits = tiny
		ctx, cancel := context.WithCancel(t.Context())
		o.Progress = func(_, _ int64) { cancel() }
		_, err := Run(ctx, o)
		require.ErrorIs(t, err, context.Canceled)
		o.Progress = nil
		return o
	}
	for want, change := range map[string]func(o *Options){
		"--field was text, and is b now":                    func(o *Options) { o.Field = "b" },
		"--val was 0, and is 0.5 now":                       func(o *Options) { o.Val = 0.5 },
		"--special was false, and is true now":              func(o *Options) { o.Special = true },
		"--shard-tokens was 100000000, and is 5 now":        func(o *Options) { o.ShardTokens = 5 },
		"the SHA-256 of --tokenizer was ":                   func(o *Options) { o.Tokenizer = trained(t, "<x>") },
		"file 1 was " + path + ", and is " + other + " now": func(o *Options) { o.Sources = []string{other} },
		"there were 1 files, and are 2 now":                 func(o *Options) { o.Sources = append(o.Sources, other) },
		path + " was modified":                              func(*Options) { require.NoError(t, os.Chtimes(path, time.Time{}, time.Unix(5, 0))) },
		"the id of the end of text (--eos) was 0, and is ":  func(o *Options) { o.Tokenizer = trained(t); require.NoError(t, o.Tokenizer.SetEndOfText("the")) },
	} {
		o := begun()
		changed := o
		change(&changed)
		before := folder(t, o.Out)
		_, err := Run(t.Context(), changed)
		var bad *InputError
		require.ErrorAs(t, err, &bad, want)
		require.ErrorContains(t, err, o.Out+" has the beginning of an earlier call with other arguments: "+want)
		require.ErrorContains(t, err, "give the same arguments and files, or remove "+o.Out+" to start anew")
		require.Equal(t, before, folder(t, o.Out), "nothing is lost")
	}
	// A shard that became shorter is damage.
	o := begun()
	require.NoError(t, os.Truncate(filepath.Join(o.Out, "train-000000.bin"), 100))
	_, err := Run(t.Context(), o)
	require.ErrorContains(t, err, "train-000000.bin has 100 bytes, fewer than were written: remove "+o.Out+" and start again")
	// The state is not lost to a call that only looks, and a complete folder is left alone.
	_, err = Inspect(o.Out, InspectOptions{})
	require.ErrorContains(t, err, "is not complete: start octet data prepare again with the same arguments")
	o = begun()
	run(t, o)
	_, err = Run(t.Context(), o)
	require.ErrorContains(t, err, "is a folder of tokens already: name another folder, or remove this one")
}

// After an error of the system all that is written stays, and the next call continues.
func TestSystemErrors(t *testing.T) {
	dir := t.TempDir()
	text := strings.Repeat(jsonLine(t, map[string]string{"text": "the cat sat on the mat"}), 400)
	first, second := write(t, dir+"/a.jsonl", text), write(t, dir+"/b.jsonl.gz", text)
	tok := trained(t)
	whole := options(t, tok, first, second)
	whole.limits = tiny
	_, err := Run(t.Context(), whole)
	require.NoError(t, err)
	o := whole
	o.Out = filepath.Join(t.TempDir(), "out")
	moved := false
	o.Progress = func(_, _ int64) {
		if !moved {
			require.NoError(t, os.Rename(second, dir+"/moved"))
			moved = true
		}
	}
	_, err = Run(t.Context(), o)
	require.ErrorIs(t, err, os.ErrNotExist)
	var bad *InputError
	require.False(t, errors.As(err, &bad))
	require.FileExists(t, filepath.Join(o.Out, "train-000000.bin"))
	require.NoError(t, os.Rename(dir+"/moved", second))
	r, err := Run(t.Context(), o)
	require.NoError(t, err)
	require.True(t, r.Resumed)
	require.Equal(t, r.Total(data.TrainPart).Bytes/2, r.Written, "all of the first file stayed")
	require.Equal(t, folder(t, whole.Out), folder(t, o.Out))

	// A file that cannot be read is not damaged.
	type row struct {
		Text string `parquet:"text"`
	}
	for _, path := range []string{
		first, second, write(t, dir+"/c.txt", text), write(t, dir+"/c.txt.zst", text), write(t, dir+"/c.jsonl.zst", strings.Repeat(text, 100)),
		table(t, dir+"/d.parquet", []row{{"the cat"}}),
	} {
		o := options(t, tok, path)
		require.NoError(t, o.check())
		list, _, err := findSources(&o)
		require.NoError(t, err)
		in, err := list[0].open()
		require.NoError(t, err)
		require.NoError(t, in.file.Close())
		r := &reader{Options: &o, ctx: t.Context(), sources: list, fresh: func() *batch { return &batch{} }, send: func(*batch) error { return nil }}
		r.batch = r.fresh()
		switch list[0].format {
		case lines:
			err = r.lines(in, position{})
		case rows:
			err = r.parquet(in, position{})
		default:
			err = r.text(in, position{})
		}
		require.ErrorIs(t, err, os.ErrClosed, path)
		require.False(t, errors.As(err, &bad), path)
	}
}
