package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/study/internal/figure"
)

// A plot has a line for each variant, even if the runs are short.
func TestDrawShortRuns(t *testing.T) {
	variants := make([]variant, 19)
	results := make([][]result, len(variants))
	for i := range variants {
		variants[i].name = fmt.Sprintf("variant %d", i)
	}
	for _, steps := range []int{2, 10, 30, 250} {
		for i := range results {
			r := result{}
			for s := range steps {
				r.Train = append(r.Train, 5+float64(i%9)/1000+1/float64(s+1))
			}
			results[i] = []result{r}
		}
		lines := func(variants []variant) int {
			out := filepath.Join(t.TempDir(), "plot.svg")
			require.NoError(t, draw(variants, results, out))
			svg, err := os.ReadFile(out)
			require.NoError(t, err)
			return strings.Count(string(svg), "<path ")
		}
		// Each variant adds a line to the plot and one to its legend.
		require.Equal(t, 2*(len(variants)-10), lines(variants)-lines(variants[:10]), steps)
	}
}

// Lines that share a colour differ in their dashes.
func TestStylesDiffer(t *testing.T) {
	seen := map[string]int{}
	for i := range 24 {
		s := figure.Style(i)
		key := fmt.Sprint(s.Color, s.Dashes)
		require.NotContains(t, seen, key, i)
		seen[key] = i
	}
}
