package sweep

import (
	"io"
	"os"
	"strings"
)

// Limits of the error that a log holds.
const (
	maxErrorText  = 4 << 10 // bytes read from the end of the log
	maxErrorLines = 3
)

// lastError returns the error with which a process ended: its log from the last line that
// begins with "octet: ", or the end of the log. It reads nothing before offset, the
// output of earlier processes. If there is nothing, the error is that of the process.
func lastError(log *os.File, offset int64, process error) string {
	info, err := log.Stat()
	if err != nil {
		return process.Error()
	}
	offset = max(offset, info.Size()-maxErrorText)
	text, err := io.ReadAll(io.NewSectionReader(log, offset, info.Size()-offset))
	if err != nil {
		return process.Error()
	}
	lines := strings.Split(strings.TrimSpace(strings.ToValidUTF8(string(text), "?")), "\n")
	begin := max(0, len(lines)-maxErrorLines)
	for i := len(lines) - 1; i >= 0; i-- {
		if strings.HasPrefix(lines[i], "octet: ") || strings.HasPrefix(lines[i], "panic: ") || strings.HasPrefix(lines[i], "fatal error: ") {
			begin = i
			break
		}
	}
	lines = lines[begin:min(len(lines), begin+maxErrorLines)]
	lines[0] = strings.TrimPrefix(lines[0], "octet: ")
	if all := strings.Join(lines, " "); all != "" {
		return all
	}
	return process.Error()
}
