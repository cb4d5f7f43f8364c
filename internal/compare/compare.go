// Package compare runs the steps of a training run on two backends at once, from the
// same state on the same data, and reports where their results differ.
package compare

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"

	"golang.org/x/sync/errgroup"

	"octet/backend"
	"octet/data"
	"octet/fp8"
	"octet/train"
)

// Mode selects the inputs of the second backend.
type Mode uint8

const (
	// Forced gives every op of the second backend the inputs that the op had on the
	// first backend, so that a difference comes from that op alone.
	Forced Mode = iota
	// Free lets both backends run independently, so that differences accumulate.
	Free
)

func (m Mode) String() string { return [...]string{"forced", "free"}[m] }

// Diff is the difference between a tensor of the two backends after the op that wrote it.
type Diff struct {
	Step    int    // 1 for the first step; 0 for programs that run before it
	Program string // that contains the op
	Node    *backend.Node
	Tensor  *backend.Tensor

	Differ int // number of elements whose codes differ
	First  int // index of the first of them, -1 if there is none
	// A and B are the values at First. Error is the norm of all differences over the
	// norm of the first backend's values; NaN if the tensor is not finite.
	A, B, Error float64
}

// Equal reports whether all bits are equal.
func (d *Diff) Equal() bool { return d.Differ == 0 }

// Options select the run and the backends to compare.
type Options struct {
	Config  train.Config
	Corpus  *data.Corpus
	A, B    string // backends
	Threads int
	Steps   int
}

// Run runs the steps on both backends and calls see for every tensor that an op wrote,
// in order.
func Run(ctx context.Context, o Options, mode Mode, see func(Diff)) error {
	a, err := backend.SpecOf(o.A)
	if err != nil {
		return err
	}
	b, err := backend.SpecOf(o.B)
	if err != nil {
		return err
	}
	spec := common(a, b)
	// The first backend is at most one node ahead of the second. It closes nodes when it
	// is done; if it fails, its error cancels ctx instead.
	nodes := make(chan written)
	g, ctx := errgroup.WithContext(ctx)
	next := func() (w written, more bool, err error) {
		select {
		case w, more = <-nodes:
			return w, more, nil
		case <-ctx.Done():
			return w, false, ctx.Err()
		}
	}
	step := 0
	g.Go(func() error {
		err := o.train(ctx, spec, o.A, nil, func(program string) backend.Observer {
			return func(n *backend.Node, m backend.Memory) error {
				w, err := read(program, n, m)
				if err != nil {
					return err
				}
				select {
				case nodes <- w:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		})
		if err == nil {
			close(nodes)
		}
		return err
	})
	g.Go(func() error {
		err := o.train(ctx, spec, o.B, &step, func(program string) backend.Observer {
			return func(n *backend.Node, m backend.Memory) error {
				a, more, err := next()
				if err != nil {
					return err
				}
				if !more {
					return fmt.Errorf("%s stopped before %s in program %s", o.A, n.Path(), program)
				}
				b, err := read(program, n, m)
				if err != nil {
					return err
				}
				if a.program != program || len(a.list) != len(b.list) {
					return fmt.Errorf("%s runs %s in program %s where %s runs %s in program %s: only backends that lower programs alike can be compared",
						o.A, a.node.Path(), a.program, o.B, n.Path(), program)
				}
				for i := range a.list {
					see(diff(step, program, n, &a.list[i], &b.list[i]))
					if mode == Forced {
						if err := m.Write(b.list[i].tensor, a.list[i].raw); err != nil {
							return err
						}
					}
				}
				return nil
			}
		})
		if err != nil {
			return err
		}
		_, more, err := next()
		if more {
			return fmt.Errorf("%s ran more nodes than %s", o.A, o.B)
		}
		return err
	})
	return g.Wait()
}

// common returns a Spec whose programs run on both devices: with the pairs of operands, the
// FP16 ops, the casts and the rotations that both support, and an E4M3 that both multiply.
func common(a, b backend.Spec) backend.Spec {
	s := b
	s.Pairs = fp8.CommonPairs(a.Pairs, b.Pairs)
	if e4m3 := (fp8.Encoding{DType: s.E4M3, Scale: fp8.F32}); !s.Multiplies(e4m3, e4m3) {
		s.E4M3 = a.E4M3
	}
	s.F16, s.Masked, s.SeedSigns = a.F16 && b.F16, a.Masked && b.Masked, a.SeedSigns && b.SeedSigns
	return s
}

// train runs the steps on one backend under an observer, and counts them in step if it
// is not nil. Each backend has its own job, because lowering may declare variables.
func (o Options) train(ctx context.Context, spec backend.Spec, name string, step *int, observer func(string) backend.Observer) (err error) {
	job, err := train.NewJob(o.Config, spec)
	if err != nil {
		return err
	}
	d, err := backend.Open(name, backend.Options{Threads: o.Threads})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	t, err := train.NewTrainer(job, o.Corpus, d, nil)
	if err != nil {
		return err
	}
	t.Execute = func(ctx context.Context, program string, x backend.Executable) error {
		return x.RunObserved(ctx, observer(program))
	}
	if dir := o.Config.Model.Init; dir != "" {
		err = t.InitFrom(ctx, dir)
	} else {
		err = t.Init(ctx)
	}
	for n := range o.Steps {
		if err != nil {
			break
		}
		if step != nil {
			*step = n + 1
		}
		_, err = t.Next(ctx)
	}
	return err
}

// written holds the tensors that a node wrote.
type written struct {
	program string
	node    *backend.Node
	list    []contents
}

type contents struct {
	tensor *backend.Tensor
	raw    []byte
	values []float64
}

func read(program string, n *backend.Node, m backend.Memory) (w written, err error) {
	w = written{program: program, node: n}
	for _, o := range n.Operands() {
		if o.Access == backend.In || o.Field == "Amaxes" { // Amaxes is scratch, whose contents are undefined
			continue
		}
		c := contents{tensor: o.Tensor}
		if c.raw, err = m.Read(o.Tensor); err != nil {
			return w, err
		}
		if c.values, err = backend.Values(m, o.Tensor); err != nil {
			return w, err
		}
		w.list = append(w.list, c)
	}
	return w, nil
}

func diff(step int, program string, n *backend.Node, a, b *contents) Diff {
	d := Diff{Step: step, Program: program, Node: n, Tensor: b.tensor, First: -1}
	if bytes.Equal(a.raw, b.raw) {
		return d
	}
	size := b.tensor.DType.Size()
	var norm, sum float64
	for i, x := range a.values {
		y := b.values[i]
		if !bytes.Equal(a.raw[i*size:(i+1)*size], b.raw[i*size:(i+1)*size]) {
			if d.First < 0 {
				d.First, d.A, d.B = i, x, y
			}
			d.Differ++
		}
		norm += x * x
		sum += (y - x) * (y - x)
	}
	if sum > 0 {
		d.Error = math.Sqrt(sum / norm)
	} else {
		d.Error = sum // 0, or NaN
	}
	return d
}
