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

// checkNoneSaved is an error if run.log says that a checkpoint was written, of a folder
// that holds none: its file system may not be mounted, and to begin at step 0 would cut
// the records of all that was done.
func (f *Folder) checkNoneSaved() error {
	step, err := lastSaved(f.path(logFile))
	if err != nil || step == 0 {
		return err
	}
	return fmt.Errorf("%s says that the checkpoint of step %d was written, and %s holds none: mount its file system or put the checkpoints back; to begin this run again at step 0, which loses the records of its steps, remove %[1]s",
		f.path(logFile), step, f.Checkpoints())
}

// lastSaved is the step of the last checkpoint that a run.log tells of; 0: of none. Lines
// that are damaged, or longer than any that Octet writes, say nothing.
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
