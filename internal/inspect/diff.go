package inspect

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"

	"octet/checkpoint"
	"octet/fp8"
	"octet/internal/writers"
)

// Difference says where two runs differ.
type Difference struct {
	A           string                `json:"a"`
	B           string                `json:"b"`
	Metrics     MetricsDifference     `json:"metrics"`
	Checkpoints *CheckpointDifference `json:"checkpoints,omitempty"` // nil: no step has an intact one in both runs
}

// Equal reports whether the runs have the same length and the same recorded results.
func (d *Difference) Equal() bool {
	return d.Metrics.Equal() && (d.Checkpoints == nil || d.Checkpoints.Equal())
}

// CheckpointDifference compares the checkpoints of the last step that has an intact one in
// both runs.
type CheckpointDifference struct {
	Step    int               `json:"step"`
	Tensors int               `json:"tensors"` // that both have
	OnlyA   []string          `json:"only_a,omitempty"`
	OnlyB   []string          `json:"only_b,omitempty"`
	Differ  int               `json:"differ"`          // tensors that both have and that differ
	First   string            `json:"first,omitempty"` // the first of these
	Largest *TensorDifference `json:"largest,omitempty"`
	State   *Field            `json:"state,omitempty"` // the first field of state.json that differs; see diffState
}

// Equal reports whether nothing differs.
func (d *CheckpointDifference) Equal() bool {
	return len(d.OnlyA)+len(d.OnlyB)+d.Differ == 0 && d.State == nil
}

// TensorDifference is a tensor that both checkpoints have and that differs.
type TensorDifference struct {
	Name   string `json:"name"`
	A      string `json:"a"` // format and shape
	B      string `json:"b"`
	Differ int64  `json:"differ"` // elements; 0 if format or shape differ
	// ‖A−B‖/‖A‖, null if it is not finite, and the largest |A−B|, of the dequantized values.
	Relative writers.Float `json:"relative"`
	Apart    writers.Float `json:"apart"`
}

// worseThan orders differences by Relative. NaN is worse than any number, and another
// format or shape is worse than NaN.
func (d *TensorDifference) worseThan(e *TensorDifference) bool {
	if d.Differ == 0 || e.Differ == 0 {
		return d.Differ < e.Differ
	}
	return !(d.Relative <= e.Relative) && e.Relative == e.Relative
}

// Diff compares two run folders. It skips damaged checkpoints.
func Diff(a, b string) (d *Difference, err error) {
	d = &Difference{A: a, B: b}
	for _, dir := range []string{a, b} {
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s does not exist: name the folder of a run", dir)
		}
		if info, err := os.Stat(metricsOf(dir)); err != nil || !info.Mode().IsRegular() {
			return nil, fmt.Errorf("%s is not a run folder: it has no %s", dir, writers.MetricsFile)
		}
	}
	if d.Metrics, err = diffMetrics(metricsOf(a), metricsOf(b)); err != nil {
		return nil, err
	}
	ca, cb, err := lastCommon(filepath.Join(a, checkpoint.Dir), filepath.Join(b, checkpoint.Dir))
	if err != nil || ca == nil {
		return d, err
	}
	defer func() { err = errors.Join(err, ca.Close(), cb.Close()) }()
	d.Checkpoints, err = diffCheckpoints(ca, cb)
	return d, err
}

func metricsOf(dir string) string { return filepath.Join(dir, writers.MetricsFile) }

// lastCommon opens the checkpoints of the last step that has an intact one in both folders;
// nil if there is none.
func lastCommon(a, b string) (ca, cb *checkpoint.Checkpoint, err error) {
	listA, err := checkpoint.List(a)
	if err != nil {
		return nil, nil, err
	}
	listB, err := checkpoint.List(b)
	if err != nil {
		return nil, nil, err
	}
	inB := map[int]checkpoint.Entry{}
	for _, e := range listB {
		inB[e.Step] = e
	}
	for _, e := range listA { // newest first
		other, ok := inB[e.Step]
		if !ok {
			continue
		}
		if ca, err = checkpoint.Open(e.Path); err != nil {
			continue
		}
		if cb, err = checkpoint.Open(other.Path); err == nil {
			return ca, cb, nil
		}
		if err := ca.Close(); err != nil {
			return nil, nil, err
		}
	}
	return nil, nil, nil
}

func diffCheckpoints(a, b *checkpoint.Checkpoint) (*CheckpointDifference, error) {
	d := &CheckpointDifference{}
	d.Step, _ = checkpoint.StepOf(a.Path)
	for _, pair := range [][2]*checkpoint.Tensors{{a.Model, b.Model}, {a.Optimizer, b.Optimizer}} {
		for _, t := range pair[1].List() {
			if _, ok := pair[0].Lookup(t.Name); !ok {
				d.OnlyB = append(d.OnlyB, t.Name)
			}
		}
		for _, t := range pair[0].List() {
			other, ok := pair[1].Lookup(t.Name)
			if !ok {
				d.OnlyA = append(d.OnlyA, t.Name)
				continue
			}
			d.Tensors++
			found, err := diffTensor(pair[0], pair[1], t, other)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", t.Name, err)
			}
			if found == nil {
				continue
			}
			if d.Differ++; d.Differ == 1 {
				d.First = found.Name
			}
			if d.Largest == nil || found.worseThan(d.Largest) {
				d.Largest = found
			}
		}
	}
	var err error
	d.State, err = diffState(a.State, b.State)
	return d, err
}

// diffTensor compares two tensors of the same name; nil if their bytes and scales are equal.
func diffTensor(fromA, fromB *checkpoint.Tensors, a, b checkpoint.Tensor) (*TensorDifference, error) {
	d := &TensorDifference{Name: a.Name, A: fmt.Sprint(a.DType, a.Shape), B: fmt.Sprint(b.DType, b.Shape)}
	if d.A != d.B {
		return d, nil
	}
	ra, err := fromA.Reader(a.Name)
	if err != nil {
		return nil, err
	}
	rb, err := fromB.Reader(b.Name)
	if err != nil {
		return nil, err
	}
	scalesA, err := scalesOf(fromA, a)
	if err != nil {
		return nil, err
	}
	scalesB, err := scalesOf(fromB, b)
	if err != nil {
		return nil, err
	}
	size := int64(a.DType.Size())
	at, left := int64(0), a.Elems()
	n := min(left, chunk)
	codesA, codesB := make([]byte, n*size), make([]byte, n*size)
	x, y := make([]float32, n), make([]float32, n)
	var square, norm float64
	for ; left > 0; at, left = at+n, left-n {
		n = min(left, chunk)
		codesA, codesB := codesA[:n*size], codesB[:n*size]
		if _, err := io.ReadFull(ra, codesA); err != nil {
			return nil, err
		}
		if _, err := io.ReadFull(rb, codesB); err != nil {
			return nil, err
		}
		decode(a.DType, x[:n], codesA)
		decode(a.DType, y[:n], codesB)
		for i := range n {
			x, y := scalesA.value(at+i, x[i]), scalesB.value(at+i, y[i])
			norm += x * x
			if slices.Equal(scalesA.of(at+i), scalesB.of(at+i)) && bytes.Equal(codesA[i*size:(i+1)*size], codesB[i*size:(i+1)*size]) {
				continue
			}
			apart := x - y
			d.Differ++
			square += apart * apart
			d.Apart = max(d.Apart, writers.Float(math.Abs(apart)))
		}
	}
	if d.Differ == 0 {
		return nil, nil
	}
	if square != 0 { // otherwise only signs of zeros differ
		d.Relative = writers.Float(math.Sqrt(square) / math.Sqrt(norm))
	}
	return d, nil
}

// decode converts codes to FP32; I32 counters become numbers.
func decode(d fp8.DType, x []float32, codes []byte) {
	if d != fp8.I32 {
		d.Decode(x, codes)
		return
	}
	for i := range x {
		x[i] = float32(int32(binary.LittleEndian.Uint32(codes[4*i:])))
	}
}
