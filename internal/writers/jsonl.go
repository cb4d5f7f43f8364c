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

// Float is a float64 that is written to JSON with the fewest digits that read back as the
// same bits. NaN and infinities become null.
type Float float64

// MarshalJSON implements json.Marshaler.
func (f Float) MarshalJSON() ([]byte, error) {
	if !finite(float64(f)) {
		return []byte("null"), nil
	}
	return strconv.AppendFloat(nil, float64(f), 'g', -1, 64), nil
}

// Names of the files in a run folder. TensorBoard's files have generated names.
const (
	MetricsFile = "metrics.jsonl"
	TimingFile  = "timing.jsonl"
	RunLogFile  = "run.log"
)

// Metrics is a line of metrics.jsonl: results of the computation, the same on every run of
// a config. Fields are written in this order.
type Metrics struct {
	Step     int    `json:"step"`
	Loss     Float  `json:"loss"` // nats per token
	ValLoss  *Float `json:"val_loss,omitempty"`
	LR       Float  `json:"lr"`
	GradNorm Float  `json:"grad_norm"`
	Tokens   int64  `json:"tokens"`  // so far
	Skipped  bool   `json:"skipped"` // the update was skipped
	// LossScale is the loss scale after the step, for recipes with loss scaling.
	LossScale *Float `json:"loss_scale,omitempty"`
	// Update describes the step's update, with optimizer.stats or optimizer.clip_rms.
	Update *UpdateStats `json:"update,omitempty"`
	// Routing describes the routers of a mixture of experts.
	Routing *RoutingStats `json:"routing,omitempty"`
	// Preference describes the pairs of the step, with train.objective = "dpo", ValPreference those of
	// an evaluation.
	Preference    *PreferenceStats `json:"preference,omitempty"`
	ValPreference *PreferenceStats `json:"val_preference,omitempty"`

	FP8    map[string]FP8Stats    `json:"fp8,omitempty"`
	SwiGLU map[string]SwiGLUStats `json:"swiglu,omitempty"`
}

// UpdateStats describes the update of the parameters, see train.UpdateResult.
type UpdateStats struct {
	RMS          Float  `json:"rms"`                  // √mean(g²/v̂), the largest over the parameters
	EmbeddingRMS Float  `json:"embedding_rms"`        // of the embedding
	Largest      Float  `json:"largest"`              // largest update of an element over the learning rate
	LargestIn    string `json:"largest_in,omitempty"` // its parameter
	ZeroV        Float  `json:"zero_v"`               // share of the elements with v = 0 and m ≠ 0, the largest over the parameters
	ZeroVIn      string `json:"zero_v_in,omitempty"`  // its parameter, if ZeroV is above 0
}

// PreferenceStats describes pairs of answers, see train.Preference.
type PreferenceStats struct {
	Accuracy Float `json:"accuracy"` // share of the pairs with a larger reward of the chosen answer
	Margin   Float `json:"margin"`   // mean difference of the rewards
}

// RoutingStats describes what routers did in a step, see train.Routing.
type RoutingStats struct {
	Dropped Float `json:"dropped"`  // share of the assignments of tokens to experts
	MaxLoad Float `json:"max_load"` // largest load of an expert over the even one
	AuxLoss Float `json:"aux_loss"` // 1 for balanced experts; without its coefficient
}

// FP8Stats describes a cast of one tensor in a step.
type FP8Stats struct {
	Amax      Float  `json:"amax"`            // of the tensor, whatever the granularity
	Scale     *Float `json:"scale,omitempty"` // of a per-tensor cast; others have the fields below
	Saturated Float  `json:"saturated"`       // share of the elements
	Flushed   Float  `json:"flushed"`         // share of the elements flushed to zero
	AmaxRMS   Float  `json:"amax_rms"`        // largest magnitude over root mean square; 0 for a tensor of zeros
	Kurtosis  Float  `json:"kurtosis"`        // 3 for normal numbers; of a rotated cast, after the rotation
	SQNR      Float  `json:"sqnr_db"`         // signal-to-quantization-noise ratio in dB; null if the cast is exact or the tensor is not finite

	// For per-row and per-block scales.
	ScaleMin      *Float `json:"scale_min,omitempty"`
	ScaleMax      *Float `json:"scale_max,omitempty"`
	ScaleLog2Mean *Float `json:"scale_log2_mean,omitempty"`
	ScaleLog2Std  *Float `json:"scale_log2_std,omitempty"`

	ZeroBlocks      *Float `json:"zero_blocks,omitempty"`       // share of the blocks
	ScaleInvLowest  *Float `json:"scale_inv_lowest,omitempty"`  // share of the scales at the smallest scale_inv of their format
	ScaleInvHighest *Float `json:"scale_inv_highest,omitempty"` // share of the scales at the largest
	Outer           *Float `json:"outer,omitempty"`             // outer scale_inv, of the whole tensor; absent without one
}

// SwiGLUStats describes the channels of an MLP, see train.SwiGLUHealth.
type SwiGLUStats struct {
	Channel int   `json:"channel"` // with the largest activation
	Amax    Float `json:"amax"`
	Median  Float `json:"median"` // of the amaxes of all channels
	Cosine  Float `json:"cosine"` // between the channel's rows of w1 and w2

	NormUp   Float `json:"norm_up"` // norms of these rows
	NormGate Float `json:"norm_gate"`

	OthersRMS   Float `json:"others_rms"`  // root mean square of the other channels' amaxes
	CosineMean  Float `json:"cosine_mean"` // of the magnitudes over all channels
	Aligned     Float `json:"aligned"`     // share of the channels with a magnitude above 0.5
	Correlation Float `json:"correlation"` // rank correlation of these magnitudes and the amaxes
}

// Timing is a line of timing.jsonl: times, memory and devices of a step.
type Timing struct {
	Step         int      `json:"step"`
	StepSeconds  Float    `json:"step_s"`
	TokensPerSec Float    `json:"tokens_per_s"`
	FlopsPerSec  Float    `json:"flops_per_s"`
	MFU          *Float   `json:"mfu,omitempty"`     // of the steps since the last line with an mfu; see docs/running.md
	Memory       int64    `json:"memory"`            // bytes
	Devices      []Device `json:"devices,omitempty"` // one for each rank, read about a second before

	// Time of a step with a checkpoint, in addition to step_s: the wait for the previous
	// checkpoint, and the copy of the state. The copy is written while the next steps run.
	CheckpointWait *Float `json:"checkpoint_wait_s,omitempty"`
	CheckpointCopy *Float `json:"checkpoint_copy_s,omitempty"`
}

// Device is a reading of a device's sensors. Values that it does not report are absent.
type Device struct {
	Utilization *float64 `json:"utilization,omitempty"`  // within [0, 1]
	MemoryUsed  *int64   `json:"memory_used,omitempty"`  // bytes, by all processes
	MemoryTotal *int64   `json:"memory_total,omitempty"` // bytes
	Power       *float64 `json:"power_w,omitempty"`
	Temperature *float64 `json:"temperature_c,omitempty"`
	Clock       *float64 `json:"clock_mhz,omitempty"`
	Throttled   []string `json:"throttled,omitzero"` // reasons for throttling; [] is none

	Energy          *float64 `json:"energy_j,omitempty"` // since this process started to train
	EnergyEstimated bool     `json:"energy_estimated,omitempty"`
}

// JSONL appends lines to a file that no other process writes to.
type JSONL struct {
	file *disk.File
	size int64 // expected size of the file
}

// OpenJSONL opens a file to append to, and creates it if necessary.
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

// Write appends a value as one line, in one system call. It returns an error if another
// program has truncated the file or appended to it: lines are missing, or the next one
// would continue a torn line.
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
		return fmt.Errorf("%s has %d bytes, expected %d: another program has written to it or truncated it; do not change it while the run is active", j.file.Name(), info.Size(), j.size)
	}
	n, err := j.file.Write(append(text, '\n'))
	j.size += int64(n)
	return err
}

// Sync returns when all lines are on disk. After a power cut, a checkpoint must not exist
// without the lines of its steps. Sync returns an error if the file was removed or
// replaced, since its path no longer leads to the lines.
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
		return fmt.Errorf("%s was removed or replaced: put the original file back, or resume from the last checkpoint with --resume", j.file.Name())
	}
	return j.file.Sync()
}

// Close closes the file.
func (j *JSONL) Close() error { return j.file.Close() }

// TruncateAfter truncates a file of lines with increasing steps after its last line of that
// step or an earlier one. It also removes a torn end: a last line without a newline, or the
// damage of a power cut. If intact lines follow a damaged one, it returns an error and
// leaves the file as it was. A missing file is no error.
//
// TruncateAfter truncates once, so it takes effect completely or not at all. last is the
// step of the last line that remains; 0 if there is none.
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

// MinValLoss returns the first step with the lowest validation loss in a metrics file; step
// 0 if there is none. It skips damaged lines.
func MinValLoss(path string) (step int, loss float64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	lines := bufio.NewReaderSize(f, 64<<10)
	for text := []byte(nil); ; {
		text, _, err = ReadLine(lines, text[:0])
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

// lengthUpTo returns the number of bytes before the first line of a later step or before a
// damaged end, and the step of the line that ends there.
func lengthUpTo(r io.Reader, step int) (keep int64, last int, err error) {
	lines := bufio.NewReaderSize(r, 64<<10)
	var at int64
	var text []byte
	damaged := 0
	for n := 1; ; n++ {
		var length int64
		var err error
		text, length, err = ReadLine(lines, text[:0])
		at += length
		switch {
		case errors.Is(err, io.EOF):
			return keep, last, nil // any remaining text is torn
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
			return 0, 0, fmt.Errorf("line %d is damaged and intact lines follow; repair or remove it", damaged)
		}
		if *line.Step > step {
			return keep, last, nil
		}
		keep, last = at, *line.Step
	}
}

// MaxLine bounds the bytes of a line that are kept in memory. The longest lines of Octet
// have some hundred bytes for each cast of a model. A power cut can leave gigabytes of
// zeros, which form one line.
const MaxLine = 16 << 20

// ReadLine appends a line with its newline to text and returns the length of the line. It
// keeps only the first MaxLine bytes.
func ReadLine(r *bufio.Reader, text []byte) (line []byte, length int64, err error) {
	for {
		part, err := r.ReadSlice('\n')
		length += int64(len(part))
		text = append(text, part[:min(len(part), MaxLine-len(text))]...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return text, length, err
		}
	}
}
