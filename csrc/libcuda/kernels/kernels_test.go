package kernels

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSourcesIncludeNothingElse(t *testing.T) {
	include := regexp.MustCompile(`(?m)^\s*#\s*include\s+(\S+)`)
	require.NotEmpty(t, Sources())
	for _, files := range []map[string]string{Sources(), Headers()} {
		for name, text := range files {
			for _, m := range include.FindAllStringSubmatch(text, -1) {
				require.Contains(t, Headers(), strings.Trim(m[1], `"`), "%s includes %s", name, m[1])
			}
		}
	}
}

// A lambda with a parameter of type auto is a template, which NVRTC 12.0 to 13.0 takes
// for a host function and refuses.
func TestSourcesHaveNoGenericLambdas(t *testing.T) {
	lambda := regexp.MustCompile(`\[[&=]?\]\([^)]*\bauto\b[^)]*\)`)
	for _, files := range []map[string]string{Sources(), Headers()} {
		for name, text := range files {
			require.Empty(t, lambda.FindString(text), name)
		}
	}
}

// everyLaunch returns the launches of each op for one shape.
func everyLaunch(rows, cols int) (list []Launches) {
	for op := range shapes {
		l, _ := Of(op, rows, cols)
		list = append(list, l)
	}
	_, _, squares := SquareTable([]Square{{LD: cols, Rows: rows, Cols: cols}})
	_, _, adam, _ := AdamTable([]Adam{{LD: cols, Rows: rows, Cols: cols}}, true, true)
	list = append(list, squares, adam, UpdateStatsLaunches(1, 3), Rope(rows, 128*cols, 128), Hadamard(rows, cols, 16, true), Hadamard(rows, cols, 4, false), SumParts(rows, cols), Quantize(rows, cols, []int{0}), Quantize(rows, cols, []int{0, rows * cols}))
	updates, _ := LinearUpdate(1, rows*cols, 0, true)
	list = append(list, updates)
	layouts, _, _ := ScaleLayout(StoredScales{Count: rows, Bytes: 1}, StoredScales{}, 0, 0)
	list = append(list, layouts)
	for _, by := range []AttentionShape{{}, {Fast: true}, {Fast: true, WGMMA: true}, {Fast: true, Documents: true}, {Fast: true, WGMMA: true, Documents: true}} {
		for _, dim := range []int{64, 128} {
			by.Batch, by.Queries, by.Keys, by.Heads, by.KeyHeads, by.HeadDim = 1, rows, rows, 2, 1, dim
			list = append(list, Attention(by), AttentionGrad(by))
		}
	}
	return list
}

// Names, files and block sizes of launches match the sources, and every kernel of the
// sources is launched by some op.
func TestLaunchesMatchTheSources(t *testing.T) {
	kernel := regexp.MustCompile(`(?m)^KERNEL\((\w+), (\w+), (\w+), \d\) \{`)
	constants := regexp.MustCompile(`(?m)^const \w+ (\w+) = (\w+);`)
	values := map[string]string{}
	for _, files := range []map[string]string{Sources(), Headers()} {
		for _, text := range files {
			for _, m := range constants.FindAllStringSubmatch(text, -1) {
				values[m[1]] = m[2]
			}
		}
	}
	threads := map[string]map[string]string{}
	missing := map[string]bool{}
	for file, text := range Sources() {
		threads[file] = map[string]string{}
		for _, m := range kernel.FindAllStringSubmatch(text, -1) {
			threads[file][m[1]] = m[3]
			if v := values[m[3]]; v != "" {
				threads[file][m[1]] = v
			}
			missing[m[1]] = true
		}
	}
	for _, l := range everyLaunch(100, 300) {
		for _, k := range l.Kernels {
			require.Equal(t, threads[k.Source][k.Name], strconv.Itoa(k.Block), "%s in %s", k.Name, k.Source)
			delete(missing, k.Name)
		}
	}
	require.Empty(t, missing)
	for name, value := range map[string]int{
		"TILE_THREADS": tileThreads, "TILE_ROWS": tileRows, "TILE_COLS": stripCols, "TILE_SPAN": tileSpan,
		"STRIP_ROWS": stripRows, "FLAT_THREADS": flatThreads, "FLAT_ELEMS": flatElems, "HADAMARD_GROUPS": hadamardGroups,
		"SQUARE_ELEMS": squareElems, "ADAM_BLOCKS": adamBlocks, "QUERY_BLOCK": queryBlock, "KEY_BLOCK": keyBlock, "PATTERN": pattern,
	} {
		require.Equal(t, values[name], strconv.Itoa(value), name)
	}
}

// Every launch is within the limits of GPUs.
func TestLaunchesFitTheHardware(t *testing.T) {
	const adaShared, hopperShared = 99 << 10, 227 << 10 // bytes a block may have
	for _, rows := range []int{1, 33, 4096} {
		for _, l := range everyLaunch(rows, 1000) {
			for _, k := range l.Kernels {
				require.Positive(t, k.Grid[0]*k.Grid[1]*k.Grid[2], k.Name)
				require.Less(t, k.Grid[1], 1<<16, k.Name)
				require.Less(t, k.Grid[2], 1<<16, k.Name)
				if strings.Contains(k.Name, "_wgmma_") {
					require.LessOrEqual(t, k.Shared, hopperShared, k.Name)
				} else {
					require.LessOrEqual(t, k.Shared, adaShared, k.Name)
				}
			}
		}
	}
}

func TestOf(t *testing.T) {
	l, ok := Of("rms_norm_grad", 33, 5)
	require.True(t, ok)
	require.Equal(t, [3]int{2, 1, 1}, l.Kernels[0].Grid)
	require.EqualValues(t, 2*5*4, l.Scratch)
	_, ok = Of("attention", 1, 1)
	require.False(t, ok)
}

func TestTables(t *testing.T) {
	table, chunks, l := SquareTable([]Square{
		{Address: 256, Format: F32, LD: 10, Rows: 4000, Cols: 10},                  // without gaps: one row of three chunks
		{Address: 512, ScaleInv: 9, Format: E4M3, LD: 20000, Rows: 2, Cols: 17000}, // two chunks to a row
	})
	require.Equal(t, []uint64{256, 0, uint64(F32), 40000, 1, 40000, 0, 512, 9, uint64(E4M3), 20000, 2, 17000, 3}, table)
	require.Equal(t, 7, chunks)
	require.Equal(t, 7, l.Kernels[0].Grid[0])
	require.EqualValues(t, 56, l.Scratch)

	moment := AdamState{Address: 1, ScaleInv: 2, Format: E4M3, NameKey: 3}
	blocked := moment
	blocked.Block, blocked.Expand = 256, true
	table, chunks, _, err := AdamTable([]Adam{
		{Grad: 5, GradScaleInv: 7, GradFormat: E4M3, LD: 100, Rows: 30, Cols: 100, State: [3]AdamState{moment, moment, moment}},
		{Grad: 6, LD: 300, Rows: 30, Cols: 300, State: [3]AdamState{moment, moment, blocked}},
	}, true, true)
	require.NoError(t, err)
	require.Equal(t, []uint64{5, 7, uint64(E4M3), 3000, 1, 3000, 0, 8192}, table[:8])
	require.Equal(t, []uint64{6, 0, uint64(F32), 300, 30, 300, 1, 8192}, table[26:34])
	require.Equal(t, []uint64{1, 2, uint64(E4M3), 256, 1, 3}, table[46:])
	require.Equal(t, 1+30, chunks)
	// Rows that together exceed 32 bits stay rows.
	large, chunks, _, err := AdamTable([]Adam{{LD: 1 << 16, Rows: 1 << 14, Cols: 1 << 16}}, true, true)
	require.NoError(t, err)
	require.Equal(t, []uint64{1 << 16, 1 << 14, 1 << 16, 0, 8192}, large[3:8])
	require.Equal(t, 1<<17, chunks)
	for _, pass := range []struct {
		find, store bool
		kernels     int
	}{{true, false, 2}, {false, true, 4}, {true, true, 5}} {
		_, _, l, err := AdamTable([]Adam{{LD: 8, Rows: 1, Cols: 8}}, pass.find, pass.store)
		require.NoError(t, err)
		require.Len(t, l.Kernels, pass.kernels)
	}
}

// A chunk splits no scale block, and has at most adamBlocks of them.
func TestAdamSpan(t *testing.T) {
	for _, blocks := range [][2]int{{256, 0}, {0, 1}, {128, 256}, {24, 32}, {3000, 0}, {1, 512}, {7, 5}} {
		span, err := adamSpan(blocks[0], blocks[1])
		require.NoError(t, err)
		for _, b := range blocks {
			if b > 0 {
				require.Zero(t, span%b)
				require.LessOrEqual(t, span/b, adamBlocks)
			}
		}
	}
	_, err := adamSpan(1, 1000)
	require.ErrorContains(t, err, "blocks of 1 and 1000")
}
