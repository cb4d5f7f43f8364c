// Command models measures the error of accelerators' arithmetic: FP8 dot products of
// each device model against exact sums of the same codes, on random operands by the
// length of the sum, and on the operands of a model in training. It prints the tables
// of docs/device-models.md.
//
//	go run ./study/models
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"text/tabwriter"

	"octet/backend"
	"octet/backend/arith"
	"octet/fp8"
	"octet/study/internal/start"
	"octet/train"
)

func main() {
	log.SetFlags(0)
	steps := flag.Int("steps", 300, "training steps before the one whose operands are sampled")
	flag.Parse()
	if err := byLength(); err != nil {
		log.Fatal(err)
	}
	if err := inTraining(context.Background(), *steps); err != nil {
		log.Fatal(err)
	}
}

// dot is one way to compute a dot product of codes.
type dot struct {
	name    string
	compute func(a, b []uint8, da, db fp8.DType) float64
}

// ways returns emu's FP32 chain and the device models, with and without promotion.
func ways() (list []dot) {
	list = append(list, dot{"emu", fp32})
	for _, m := range arith.Models() {
		fast := dot{m.Name, func(a, b []uint8, da, db fp8.DType) float64 {
			return float64(m.Dot(arith.Operand{Codes: a, DType: da}, arith.Operand{Codes: b, DType: db}, false))
		}}
		if m.Promote > 0 {
			list = append(list, dot{m.Name, func(a, b []uint8, da, db fp8.DType) float64 {
				return float64(m.Dot(arith.Operand{Codes: a, DType: da}, arith.Operand{Codes: b, DType: db}, true))
			}})
			fast.name += ",fast"
		}
		list = append(list, fast)
	}
	return list
}

func fp32(a, b []uint8, da, db fp8.DType) float64 {
	sum := float32(0)
	for i := range a {
		sum += float32(float64(da.Float32(uint32(a[i]))) * float64(db.Float32(uint32(b[i]))))
	}
	return float64(sum)
}

// exact sums in float64, whose relative rounding error is 2^-53.
func exact(a, b []uint8, da, db fp8.DType) (sum float64) {
	for i := range a {
		sum += float64(da.Float32(uint32(a[i]))) * float64(db.Float32(uint32(b[i])))
	}
	return sum
}

// deviation sums up squared errors, squared values, and how far values shrink to 0.
type deviation struct{ diff, norm, shrink, size float64 }

func (e *deviation) add(got, want float64) {
	e.diff += (got - want) * (got - want)
	e.norm += want * want
	e.shrink += (want - got) * math.Copysign(1, want)
	e.size += math.Abs(want)
}

func (e *deviation) relative() float64 { return math.Sqrt(e.diff / e.norm) }

// byLength prints errors of dot products of normal noise, with mean 0 and with a mean of
// one standard deviation.
func byLength() error {
	lengths := []int{64, 256, 1024, 4096, 16384}
	for _, mean := range []float64{0, 1} {
		w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintf(w, "relative error, mean %v\t", mean)
		for _, k := range lengths {
			fmt.Fprintf(w, "K = %d\t", k)
		}
		fmt.Fprintln(w, "mean shrinkage at the last")
		for _, way := range ways() {
			fmt.Fprintf(w, "%s\t", way.name)
			var e deviation
			for _, k := range lengths {
				r := rand.New(rand.NewPCG(1, uint64(k)))
				e = deviation{}
				for range 200 {
					a, b := noise(r, k, mean), noise(r, k, mean)
					e.add(way.compute(a, b, fp8.E4M3, fp8.E4M3), exact(a, b, fp8.E4M3, fp8.E4M3))
				}
				fmt.Fprintf(w, "%.1e\t", e.relative())
			}
			fmt.Fprintf(w, "%+.1e\n", e.shrink/e.size)
		}
		fmt.Fprintln(w)
		if err := w.Flush(); err != nil {
			return err
		}
	}
	return nil
}

// noise returns E4M3 codes of normal noise. The largest of some thousand values is near
// the format's maximum.
func noise(r *rand.Rand, n int, mean float64) []uint8 {
	codes := make([]uint8, n)
	for i := range codes {
		codes[i] = uint8(fp8.E4M3.Nearest(float32(100*(r.NormFloat64()+mean)), fp8.Saturate))
	}
	return codes
}

// inTraining trains the default model for steps, and prints the errors of the GEMMs of
// the next step.
func inTraining(ctx context.Context, steps int) (err error) {
	corpus, _, err := start.Corpus(ctx, 50_000)
	if err != nil {
		return err
	}
	c := train.Default()
	c.Train.Steps = steps + 1
	list := ways()
	sums := map[string][]deviation{}
	see := func(n *backend.Node, m backend.Memory) error {
		op, ok := n.Op.(*backend.MatMul)
		if !ok || !op.A.DType.IsQuantized() {
			return nil
		}
		kind := map[[2]bool]string{{false, true}: "fprop", {false, false}: "dgrad", {true, false}: "wgrad"}[[2]bool{op.TransA, op.TransB}]
		if sums[kind] == nil {
			sums[kind] = make([]deviation, len(list))
		}
		return sample(op, m, list, sums[kind])
	}
	t, closeDevice, err := start.Trainer(ctx, c, "emu", runtime.GOMAXPROCS(0), corpus)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeDevice()) }()
	for step := range steps + 1 {
		if step == steps {
			t.Execute = func(ctx context.Context, _ string, x backend.Executable) error { return x.RunObserved(ctx, see) }
		}
		if _, err := t.Next(ctx); err != nil {
			return err
		}
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "relative error, step %d\tfprop\tdgrad\twgrad\n", steps+1)
	for i, way := range list {
		fmt.Fprintf(w, "%s", way.name)
		for _, kind := range []string{"fprop", "dgrad", "wgrad"} {
			fmt.Fprintf(w, "\t%.1e", sums[kind][i].relative())
		}
		fmt.Fprintln(w)
	}
	return w.Flush()
}

// sample adds the errors of random elements of a GEMM.
func sample(op *backend.MatMul, m backend.Memory, list []dot, sums []deviation) error {
	a, err := m.Read(op.A)
	if err != nil {
		return err
	}
	b, err := m.Read(op.B)
	if err != nil {
		return err
	}
	rows, cols, k := op.Dims()
	r := rand.New(rand.NewPCG(7, uint64(rows*cols)))
	x, y := make([]uint8, k), make([]uint8, k)
	for range 100 {
		i, j := r.IntN(rows), r.IntN(cols)
		for l := range k {
			x[l], y[l] = code(a, op.A, op.TransA, i, l), code(b, op.B, !op.TransB, j, l)
		}
		want := exact(x, y, op.A.DType, op.B.DType)
		for i, way := range list {
			sums[i].add(way.compute(x, y, op.A.DType, op.B.DType), want)
		}
	}
	return nil
}

// code returns the code of element l, along k, of vector i.
func code(raw []byte, t *backend.Tensor, transposed bool, i, l int) uint8 {
	if transposed {
		i, l = l, i
	}
	return raw[i*t.Cols()+l]
}
