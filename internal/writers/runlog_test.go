package writers

import (
	"encoding/json"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRunLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.log")
	for range 2 { // a resumed run appends
		log, err := OpenRunLog(path)
		require.NoError(t, err)
		log.Debug("not shown")
		log.Warn("skipped", "step", 7, "loss", math.NaN(), "lr", 0.5, slog.Group("g", "norm", math.Inf(-1)))
		require.NoError(t, log.Close())
	}
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	require.Len(t, lines, 2)
	for _, line := range lines {
		var record map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &record))
		require.NotEmpty(t, record["time"])
		delete(record, "time")
		require.Equal(t, map[string]any{
			"level": "WARN", "msg": "skipped", "step": 7.0, "loss": "nan", "lr": 0.5, "g": map[string]any{"norm": "-inf"},
		}, record)
	}
}
