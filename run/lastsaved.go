package run

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// checkNoneSaved returns an error if run.log records a checkpoint, for a folder that holds
// none: its file system may not be mounted, and starting at step 0 would truncate the
// records.
func (f *folder) checkNoneSaved() error {
	step, err := lastSaved(f.path(logFile))
	if err != nil || step == 0 {
		return err
	}
	return fmt.Errorf("%s records the checkpoint of step %d, but %s holds none: mount its file system or put the checkpoints back; to restart this run at step 0, which loses the records of its steps, remove %[1]s",
		f.path(logFile), step, f.checkpoints())
}

// lastSaved returns the step of the last checkpoint in a run.log; 0 if there is none. It
// ignores lines that are damaged, or longer than any that Octet writes.
func lastSaved(log string) (step int, err error) {
	f, err := os.Open(log)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for lines, whole := bufio.NewReaderSize(f, 64<<10), true; ; {
		text, more, err := lines.ReadLine()
		if errors.Is(err, io.EOF) {
			return step, nil
		}
		if err != nil {
			return 0, err
		}
		var line struct {
			Msg  string `json:"msg"`
			Step int    `json:"step"`
		}
		if whole && !more && bytes.Contains(text, []byte(`"checkpoint"`)) && json.Unmarshal(text, &line) == nil && line.Msg == "checkpoint" {
			step = line.Step
		}
		whole = !more
	}
}
