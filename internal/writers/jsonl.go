package writers

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"

	"octet/internal/disk"
)

// Float is a float64 that JSON holds in full precision: the fewest digits that
// read back as the same bits. What JSON cannot hold, NaN and infinities, is
// null.
type Float float64

// MarshalJSON implements json.Marshaler.
func (f Float) MarshalJSON() ([]byte, error) {
	if !finite(float64(f)) {
		return []byte("null"), nil
	}
	return strconv.AppendFloat(nil, float64(f), 'g', -1, 64), nil
}

// The files that this package writes, as a run's folder has them. Those of
// TensorBoard have names of their own.
const (
	MetricsFile = "metrics.jsonl"
	TimingFile  = "timing.jsonl"
	RunLogFile  = "run.log"
)

// Metrics is a line of metrics.jsonl: what the computation determines, the same
// on every run of a config. Fields are written in this order.
type Metrics struct {
	Step     int                    `json:"step"`
	Loss     Float                  `json:"loss"` // nats per token
	ValLoss  *Float                 `json:"val_loss,omitempty"`
	LR       Float                  `json:"lr"`
	GradNorm Float                  `json:"grad_norm"`
	Tokens   int64                  `json:"tokens"`  // so far
	Skipped  bool                   `json:"skipped"` // the update did not happen
	FP8      map[string]FP8Stats    `json:"fp8,omitempty"`
	SwiGLU   map[string]SwiGLUStats `json:"swiglu,omitempty"`
}

// FP8Stats describes the casts of one tensor, by its scope, within a step.
type FP8Stats struct {
	Amax      Float  `json:"amax"`            // of the tensor, whatever the granularity
	Scale     *Float `json:"scale,omitempty"` // of a cast with one scale; others have the four below
	Saturated Float  `json:"saturated"`       // share of the elements
	Flushed   Float  `json:"flushed"`         // share that became zero and was not
	SQNR      Float  `json:"sqnr_db"`         // signal-to-quantization-noise ratio; null without an error, or with a tensor that is not finite

	// Of per-row and per-block scales.
	ScaleMin      *Float `json:"scale_min,omitempty"`
	ScaleMax      *Float `json:"scale_max,omitempty"`
	ScaleLog2Mean *Float `json:"scale_log2_mean,omitempty"`
	ScaleLog2Std  *Float `json:"scale_log2_std,omitempty"`
}

// SwiGLUStats describes the channel of an MLP whose activation is largest.
type SwiGLUStats struct {
	Channel int   `json:"channel"`
	Amax    Float `json:"amax"`
	Median  Float `json:"median"` // of all channels' maxima
	Cosine  Float `json:"cosine"` // of its rows of w1 and w2

	NormUp   Float `json:"norm_up"` // lengths of the rows
	NormGate Float `json:"norm_gate"`
}

// Timing is a line of timing.jsonl: what the clock says.
type Timing struct {
	Step         int      `json:"step"`
	StepSeconds  Float    `json:"step_s"`
	TokensPerSec Float    `json:"tokens_per_s"`
	FlopsPerSec  Float    `json:"flops_per_s"`
	MFU          *Float   `json:"mfu,omitempty"`     // of the steps since the line with one before; see docs/running.md
	Memory       int64    `json:"memory"`            // bytes
	Devices      []Device `json:"devices,omitempty"` // one of each rank, as read a second or so before

	// What a step with a checkpoint took beside step_s: to wait until the one before
	// was written, and to copy the state. It is written while the next steps run.
	CheckpointWait *Float `json:"checkpoint_wait_s,omitempty"`
	CheckpointCopy *Float `json:"checkpoint_copy_s,omitempty"`
}

// Device is what a device says of itself. What it does not tell is absent.
type Device struct {
	Utilization *float64 `json:"utilization,omitempty"`  // within [0, 1]
	MemoryUsed  *int64   `json:"memory_used,omitempty"`  // bytes, by all processes
	MemoryTotal *int64   `json:"memory_total,omitempty"` // bytes
	Power       *float64 `json:"power_w,omitempty"`
	Temperature *float64 `json:"temperature_c,omitempty"`
	Clock       *float64 `json:"clock_mhz,omitempty"`
	Throttled   []string `json:"throttled,omitzero"` // what holds the clock down; [] is nothing

	Energy          *float64 `json:"energy_j,omitempty"` // since this process began to train
	EnergyEstimated bool     `json:"energy_estimated,omitempty"`
}

// JSONL appends lines to a file that nothing else writes to.
type JSONL struct {
	file *disk.File
	size int64 // of the file, as far as this process knows
}

// OpenJSONL opens a file to append to, which is made if it is not there.
func OpenJSONL(path string) (*JSONL, error) {
	f, err := disk.Open(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &JSONL{f, info.Size()}, nil
}

// Write appends a value as one line, by one call of the operating system. A file that
// another program has cut or appended to since is an error: lines are missing, or the
// next one would continue a torn one.
func (j *JSONL) Write(line any) error {
	text, err := json.Marshal(line)
	if err != nil {
		return fmt.Errorf("%s: %w", j.file.Name(), err)
	}
	info, err := j.file.Stat()
	if err != nil {
		return err
	}
	if info.Size() != j.size {
		return fmt.Errorf("%s has %d bytes and not %d: another program has written to it or cut it; let none do so while a run writes it", j.file.Name(), info.Size(), j.size)
	}
	n, err := j.file.Write(append(text, '\n'))
	j.size += int64(n)
	return err
}

// Sync returns when all lines are on the disk. A checkpoint that says a step is
// done must not survive a power cut that its line does not. A file that was removed or
// replaced is an error: its path does not lead to the lines.
func (j *JSONL) Sync() error {
	mine, err := j.file.Stat()
	if err != nil {
		return err
	}
	named, err := os.Stat(j.file.Name())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err != nil || !os.SameFile(mine, named) {
		return fmt.Errorf("%s is not there any more, or another file is: put the former one back, or resume from the last checkpoint by --resume", j.file.Name())
	}
	return j.file.Sync()
}

// Close closes the file.
func (j *JSONL) Close() error { return j.file.Close() }

// TruncateAfter cuts a file of lines, whose steps rise, back to its last line
// of that step or an earlier one. A torn end goes too: a last line without its
// newline, or what a power cut left of the last lines. A damaged line with good
// ones after it is an error, and the file stays as it was. A file that is not
// there has nothing to cut.
//
// The cut is a single truncation: it happens or it does not. last is the step of
// the line that it leaves at the end, 0 without one.
func TruncateAfter(path string, step int) (last int, err error) {
	f, err := disk.Open(path, os.O_RDWR)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	keep, last, err := lengthUpTo(f, step)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	if err := f.Truncate(keep); err != nil {
		return 0, err
	}
	return last, f.Sync()
}

// LeastValLoss is the line of metrics with the lowest loss of the validation text; 0 is
// the step of none. What is damaged is passed over.
func LeastValLoss(path string) (step int, loss float64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	lines := bufio.NewReaderSize(f, 64<<10)
	for text := []byte(nil); ; {
		text, _, err = readLine(lines, text[:0])
		if errors.Is(err, io.EOF) {
			return step, loss, nil
		}
		if err != nil {
			return 0, 0, err
		}
		var line struct {
			Step    int      `json:"step"`
			ValLoss *float64 `json:"val_loss"`
		}
		if json.Unmarshal(text, &line) == nil && line.ValLoss != nil && (step == 0 || *line.ValLoss < loss) {
			step, loss = line.Step, *line.ValLoss
		}
	}
}

// lengthUpTo is the number of bytes before the first line of a later step, or
// before a damaged end, and the step of the line that ends there.
func lengthUpTo(r io.Reader, step int) (keep int64, last int, err error) {
	lines := bufio.NewReaderSize(r, 64<<10)
	var at int64
	var text []byte
	damaged := 0
	for n := 1; ; n++ {
		var length int64
		var err error
		text, length, err = readLine(lines, text[:0])
		at += length
		switch {
		case errors.Is(err, io.EOF):
			return keep, last, nil // text, if any, is torn
		case err != nil:
			return 0, 0, err
		}
		var line struct {
			Step *int `json:"step"`
		}
		if err := json.Unmarshal(text, &line); err != nil || line.Step == nil || length > MaxLine {
			if damaged == 0 {
				damaged = n
			}
			continue
		}
		if damaged > 0 {
			return 0, 0, fmt.Errorf("line %d is damaged, with whole lines after it; repair or remove it", damaged)
		}
		if *line.Step > step {
			return keep, last, nil
		}
		keep, last = at, *line.Step
	}
}

// MaxLine bounds what is kept in memory of a line of JSON, in bytes: the longest of ours has some hundred
// bytes for each cast of a model. A power cut can leave gigabytes of zeros, which
// are one line.
const MaxLine = 16 << 20

// readLine appends a line with its newline to text and returns how long it was.
// Of one that is longer than MaxLine it keeps the beginning.
func readLine(r *bufio.Reader, text []byte) (line []byte, length int64, err error) {
	for {
		part, err := r.ReadSlice('\n')
		length += int64(len(part))
		text = append(text, part[:min(len(part), MaxLine-len(text))]...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return text, length, err
		}
	}
}
