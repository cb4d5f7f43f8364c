package writers

import (
	"log/slog"
	"os"

	"octet/internal/disk"
)

// RunLog appends JSON records to run.log, one line each.
type RunLog struct {
	*slog.Logger
	file *disk.File
}

// OpenRunLog opens a log to append to, and creates it if necessary. It drops records below
// slog.LevelInfo.
func OpenRunLog(path string) (*RunLog, error) {
	f, err := disk.Open(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND)
	if err != nil {
		return nil, err
	}
	h := slog.NewJSONHandler(f, &slog.HandlerOptions{ReplaceAttr: nameNonFinite})
	return &RunLog{slog.New(h), f}, nil
}

// NoRunLog returns a log that drops all records.
func NoRunLog() *RunLog { return &RunLog{slog.New(slog.DiscardHandler), nil} }

// Close closes the file.
func (l *RunLog) Close() error { return l.file.Close() }

// nameNonFinite replaces NaN and infinities by their names. slog would write an error
// instead, and a training log must be able to show a loss that is not finite.
func nameNonFinite(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindFloat64 {
		if x := a.Value.Float64(); !finite(x) {
			return slog.String(a.Key, number(x, ""))
		}
	}
	return a
}
