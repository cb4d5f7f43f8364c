package data

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// counting is a stream in which each token is its own index; its value is the length.
type counting int64

func (c counting) Len() int64 { return int64(c) }

func (c counting) ReadTokens(dst []int32, at int64) error {
	if err := checkRange(int64(c), at, len(dst)); err != nil {
		return err
	}
	for i := range dst {
		dst[i] = int32(at) + int32(i)
	}
	return nil
}

func newTestLoader(t testing.TB, length int64, o LoaderOptions) *Loader {
	l, err := NewLoader(counting(length), o)
	require.NoError(t, err)
	return l
}

// nextRows reads one batch and returns the start of each row in the stream.
func nextRows(t testing.TB, l *Loader, rows int) []int32 {
	seq := l.o.Seq
	inputs, targets := make([]int32, rows*seq), make([]int32, rows*seq)
	require.NoError(t, l.Next(inputs, targets))
	starts := make([]int32, rows)
	for r := range rows {
		starts[r] = inputs[r*seq]
		for i := range seq {
			if inputs[r*seq+i] != starts[r]+int32(i) || targets[r*seq+i] != starts[r]+int32(i)+1 {
				require.Fail(t, "row is not a window of the stream", "row %d: inputs %v, targets %v", r, inputs[r*seq:][:seq], targets[r*seq:][:seq])
			}
		}
	}
	return starts
}

// TestMix compares mix with the published outputs of SplitMix64 for the seed 1234567.
func TestMix(t *testing.T) {
	for i, want := range []uint64{6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821} {
		require.Equal(t, want, mix(1234567, uint64(i)))
	}
}

func TestPermutationIsBijective(t *testing.T) {
	for n := int64(1); n < 300; n++ {
		p := newPermutation(n, uint64(n)*977)
		seen := make([]bool, n)
		for i := range n {
			x := p.at(i)
			require.True(t, x >= 0 && x < n && !seen[x], "n=%d: %d is a duplicate or out of range", n, x)
			seen[x] = true
		}
	}
	// A domain too large for a list: the values must be in range and distinct.
	p := newPermutation(1<<62+12345, 1)
	seen := map[int64]bool{}
	for i := range int64(10000) {
		x := p.at(1<<62 + 12344 - i)
		require.True(t, x >= 0 && x < 1<<62+12345 && !seen[x])
		seen[x] = true
	}
}

// TestPermutationIsUniform counts the positions of each value under many keys. The
// bound is five standard deviations of a binomial count. The keys are fixed, so the
// test is deterministic.
func TestPermutationIsUniform(t *testing.T) {
	const keys = 20000
	for _, n := range []int64{2, 3, 4, 5, 7, 16, 17, 31} {
		counts := make([]int, n*n)
		for key := range uint64(keys) {
			p := newPermutation(n, mix(1, key))
			for i := range n {
				counts[i*n+p.at(i)]++
			}
		}
		want := float64(keys) / float64(n)
		limit := 25 * want * (1 - 1/float64(n))
		for cell, count := range counts {
			d := float64(count) - want
			require.LessOrEqual(t, d*d, limit, "n=%d: position %d has value %d %d times of %d", n, int64(cell)/n, int64(cell)%n, count, keys)
		}
	}
}

// TestShuffleIsStable compares the order with fixed values: a run resumed by another
// version must read the same rows. The values were computed independently.
func TestShuffleIsStable(t *testing.T) {
	l := newTestLoader(t, 1000, LoaderOptions{Seq: 64, Seed: 1})
	require.Equal(t, []int32{811, 299, 235, 427, 619, 555, 171, 107, 363, 43, 491, 875, 683, 747}, nextRows(t, l, 14))
	require.Equal(t, Position{Epoch: 1}, l.Position())
	require.Equal(t, []int32{293, 805, 933, 869, 357, 741, 229, 549, 613, 485, 677, 421, 165, 101}, nextRows(t, l, 14))
}

func TestEpochVisitsEveryWindowOnce(t *testing.T) {
	for _, c := range []struct{ length, seq, windows int64 }{
		{2, 1, 1}, {3, 1, 2}, {17, 16, 1}, {32, 16, 1}, {33, 16, 1}, {47, 16, 1}, {48, 16, 2}, {49, 16, 2}, {1000, 16, 61}, {1600, 16, 99},
	} {
		t.Run(fmt.Sprintf("%d by %d", c.length, c.seq), func(t *testing.T) {
			l := newTestLoader(t, c.length, LoaderOptions{Seq: int(c.seq), Seed: 3})
			require.Equal(t, c.windows, windowsOf(l).count)
			offsets := map[int32]bool{}
			for epoch := range int64(40) {
				require.Equal(t, Position{Epoch: epoch}, l.Position())
				var starts []int32
				for range c.windows {
					starts = append(starts, nextRows(t, l, 1)...)
				}
				slices.Sort(starts)
				for i, start := range starts {
					require.Equal(t, starts[0]+int32(i)*int32(c.seq), start, "windows are not contiguous")
				}
				offsets[starts[0]] = true
			}
			require.Equal(t, c.length-c.windows*c.seq > 1, len(offsets) > 1, "offsets must differ between epochs if there is room")
		})
	}
}

// TestEveryTokenIsUsed checks that some epoch uses the first and the last token, which
// most offsets exclude.
func TestEveryTokenIsUsed(t *testing.T) {
	const length, seq = 70, 8
	seen := map[int32]bool{}
	l := newTestLoader(t, length, LoaderOptions{Seq: seq, Seed: 5})
	for range 100 {
		for _, start := range nextRows(t, l, int(windowsOf(l).count)) {
			for i := range int32(seq + 1) {
				seen[start+i] = true
			}
		}
	}
	require.Len(t, seen, length)
}

func TestOrderDependsOnSeedAndEpoch(t *testing.T) {
	order := func(seed uint64, epoch int64) string {
		l := newTestLoader(t, 2000, LoaderOptions{Seq: 16, Seed: seed})
		require.NoError(t, l.Restore(Position{Epoch: epoch}))
		offset := windowsOf(l).offset
		starts := nextRows(t, l, int(windowsOf(l).count))
		for i := range starts {
			starts[i] -= int32(offset)
		}
		return fmt.Sprint(starts)
	}
	require.Equal(t, order(1, 0), order(1, 0))
	seen := map[string]bool{}
	for seed := range uint64(10) {
		for epoch := range int64(10) {
			seen[order(seed, epoch)] = true
		}
	}
	require.Len(t, seen, 100)
}

// TestSplitDoesNotChangeTheRows reads the same global batches of 12 rows with several
// numbers of ranks, rows and accumulation steps, across epochs.
func TestSplitDoesNotChangeTheRows(t *testing.T) {
	const global, steps, length, seq = 12, 20, 1000, 16
	run := func(ranks, rows, accumulate int) (order [][]int32, end Position) {
		require.Equal(t, global, ranks*rows*accumulate)
		loaders := make([]*Loader, ranks)
		for rank := range loaders {
			loaders[rank] = newTestLoader(t, length, LoaderOptions{Seq: seq, Seed: 9, Rank: rank, Ranks: ranks})
		}
		for range steps {
			var step []int32
			for range accumulate {
				for _, l := range loaders {
					step = append(step, nextRows(t, l, rows)...)
				}
			}
			order = append(order, step)
		}
		for _, l := range loaders {
			require.Equal(t, loaders[0].Position(), l.Position(), "ranks have different positions")
		}
		return order, loaders[0].Position()
	}
	want, wantEnd := run(1, 12, 1)
	require.Positive(t, wantEnd.Epoch)
	for _, c := range []struct{ ranks, rows, accumulate int }{{2, 6, 1}, {1, 6, 2}, {3, 4, 1}, {2, 2, 3}, {12, 1, 1}, {1, 1, 12}} {
		got, end := run(c.ranks, c.rows, c.accumulate)
		require.Equal(t, want, got, "%+v", c)
		require.Equal(t, wantEnd, end, "%+v", c)
	}
}

func TestBatchLargerThanEpochs(t *testing.T) {
	small := newTestLoader(t, 50, LoaderOptions{Seq: 16, Seed: 2})
	large := newTestLoader(t, 50, LoaderOptions{Seq: 16, Seed: 2})
	require.EqualValues(t, 2, windowsOf(small).count)
	var want []int32
	for range 11 {
		want = append(want, nextRows(t, small, 1)...)
	}
	require.Equal(t, want, nextRows(t, large, 11))
	require.Equal(t, Position{Epoch: 5, Index: 1}, large.Position())
}

func TestResumeAnywhere(t *testing.T) {
	const batches = 50
	o := LoaderOptions{Seq: 16, Seed: 4, Rank: 1, Ranks: 2}
	whole := newTestLoader(t, 700, o)
	var rows [][]int32
	var positions []Position
	for range batches {
		positions = append(positions, whole.Position())
		rows = append(rows, nextRows(t, whole, 3))
	}
	require.Greater(t, whole.Position().Epoch, int64(3))
	for i, position := range positions {
		text, err := json.Marshal(position)
		require.NoError(t, err)
		var saved Position
		require.NoError(t, json.Unmarshal(text, &saved))

		resumed := newTestLoader(t, 700, o)
		require.NoError(t, resumed.Restore(saved))
		for _, want := range rows[i:min(i+20, batches)] {
			require.Equal(t, want, nextRows(t, resumed, 3))
		}
	}
}

// TestFailedBatchKeepsPosition lets the stream fail in the middle of a batch.
func TestFailedBatchKeepsPosition(t *testing.T) {
	stream := &flaky{counting: 400}
	l, err := NewLoader(stream, LoaderOptions{Seq: 16, Seed: 1, Rank: 1, Ranks: 2})
	require.NoError(t, err)
	nextRows(t, l, 5)
	before := l.Position()
	stream.left = 11 // fail after the end of the epoch: 23 windows < 10 + 5 + 11 rows
	stream.fails = true
	inputs := make([]int32, 15*16)
	require.ErrorContains(t, l.Next(inputs, inputs), "flaky")
	require.Equal(t, before, l.Position())
	stream.fails = false

	again := newTestLoader(t, 400, l.o)
	require.NoError(t, again.Restore(before))
	require.Equal(t, nextRows(t, again, 15), nextRows(t, l, 15))
}

type flaky struct {
	counting
	fails bool
	left  int
}

func (f *flaky) ReadTokens(dst []int32, at int64) error {
	if f.fails {
		if f.left--; f.left < 0 {
			return fmt.Errorf("flaky")
		}
	}
	return f.counting.ReadTokens(dst, at)
}

func TestLoaderErrors(t *testing.T) {
	for _, c := range []struct {
		name   string
		length int64
		o      LoaderOptions
		want   string
	}{
		{"too short", 256, LoaderOptions{Seq: 256}, "256 tokens are too few for training: one window of data.seq=256 and its last target need 257; give more text, or lower data.seq"},
		{"empty", 0, LoaderOptions{Seq: 1}, "0 tokens are too few"},
		{"no seq", 256, LoaderOptions{}, "data.seq is 0"},
		{"negative seq", 256, LoaderOptions{Seq: -5}, "data.seq is -5"},
		{"rank too high", 256, LoaderOptions{Seq: 16, Rank: 2, Ranks: 2}, "rank 2 of 2"},
		{"negative rank", 256, LoaderOptions{Seq: 16, Rank: -1}, "rank -1 of 1"},
		{"negative ranks", 256, LoaderOptions{Seq: 16, Ranks: -1}, "rank 0 of -1"},
	} {
		_, err := NewLoader(counting(c.length), c.o)
		requireSentence(t, err, c.want)
	}
	l := newTestLoader(t, 1000, LoaderOptions{Seq: 16})
	for _, sizes := range [][2]int{{0, 0}, {16, 32}, {15, 15}, {24, 24}} {
		requireSentence(t, l.Next(make([]int32, sizes[0]), make([]int32, sizes[1])), "rows of 16 tokens")
	}
	for _, p := range []Position{{Epoch: -1, Index: 0}, {Index: -1}, {Index: 61}} {
		requireSentence(t, l.Restore(p), "61 windows", "another corpus or data.seq")
	}
	require.NoError(t, l.Restore(Position{Epoch: 3, Index: 60}))
}

func TestSweepCountsEveryTokenOnce(t *testing.T) {
	const seq = 16
	for _, length := range []int64{17, 18, 32, 33, 34, 100, 161} {
		for _, rows := range []int{1, 3, 8} {
			s, err := NewSweep(counting(length), seq)
			require.NoError(t, err)
			require.Equal(t, length-1, s.Targets())
			inputs, targets := make([]int32, rows*seq), make([]int32, rows*seq)
			next := int32(1)
			var valid int64
			for first := int64(0); first < s.Rows(); first += int64(rows) {
				n, err := s.Batch(first, inputs, targets)
				require.NoError(t, err)
				valid += int64(n)
				for i, target := range targets {
					if target == IgnoreTarget {
						require.EqualValues(t, length, next, "padding before the end of the stream")
						require.Zero(t, inputs[i])
						continue
					}
					require.Equal(t, next, target)
					require.Equal(t, target-1, inputs[i])
					next++
				}
			}
			require.EqualValues(t, length, next)
			require.Equal(t, length-1, valid)
			n, err := s.Batch(s.Rows(), inputs, targets)
			require.NoError(t, err)
			require.Zero(t, n)
		}
	}
}

func TestSweepErrors(t *testing.T) {
	_, err := NewSweep(counting(256), 256)
	requireSentence(t, err, "256 tokens are too few for validation", "need 257", "raise data.val_bytes")
	s, err := NewSweep(counting(1000), 16)
	require.NoError(t, err)
	_, err = s.Batch(0, make([]int32, 20), make([]int32, 20))
	requireSentence(t, err, "rows of 16 tokens")
	_, err = s.Batch(-1, make([]int32, 16), make([]int32, 16))
	requireSentence(t, err, "outside the stream")
}

func TestBatchesDoNotAllocate(t *testing.T) {
	shards, err := openTestShards(t, Options{}, shardFile{"a.bin", ramp(0, 2000)}, shardFile{"b.bin", ramp(2000, 2000)})
	require.NoError(t, err)
	inputs, targets := make([]int32, 4*64), make([]int32, 4*64)
	for name, tokens := range map[string]Tokens{"text": Text(make([]byte, 4000)), "shards": shards.Train} {
		l, err := NewLoader(tokens, LoaderOptions{Seq: 64})
		require.NoError(t, err)
		s, err := NewSweep(tokens, 64)
		require.NoError(t, err)
		// A garbage collection may empty the pool of read buffers once. AllocsPerRun
		// rounds down, so fewer than one allocation per batch passes.
		require.Zero(t, testing.AllocsPerRun(200, func() {
			if l.Next(inputs, targets) != nil {
				panic("Next failed")
			}
			if _, err := s.Batch(3, inputs, targets); err != nil {
				panic(err)
			}
		}), name)
	}
}

func BenchmarkNext(b *testing.B) {
	l, err := NewLoader(Text(make([]byte, 1<<20)), LoaderOptions{Seq: 256})
	require.NoError(b, err)
	inputs, targets := make([]int32, 8*256), make([]int32, 8*256)
	b.SetBytes(8 * 256)
	for b.Loop() {
		require.NoError(b, l.Next(inputs, targets))
	}
}

// windowsOf returns the only source of a loader.
func windowsOf(l *Loader) *windows { return l.sources[0].(*windows) }
