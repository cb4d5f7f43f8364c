package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"time"

	"octet/backend"
	"octet/backend/cost"
	"octet/backend/world"
	"octet/fp8"
)

// CollectiveSizes is the default: bytes of the tensor that all ranks hold together, or reduce.
var CollectiveSizes = []int{1 << 16, 1 << 20, 16 << 20}

var bytesText = regexp.MustCompile(`^([0-9]{1,9})([kMG]?)$`)

// ParseBytes reads a number of bytes: "65536", "64k" or "16M", in powers of 1024.
func ParseBytes(text string) (int, error) {
	n := 0
	if m := bytesText.FindStringSubmatch(text); m != nil {
		n, _ = strconv.Atoi(m[1]) // nine digits
		n <<= map[string]int{"": 0, "k": 10, "M": 20, "G": 30}[m[2]]
	}
	if n < 4 || n > 4<<30 {
		return 0, fmt.Errorf("size %q is not a number of bytes, such as 65536, 64k or 16M, from 4 to 4G", text)
	}
	return n, nil
}

// Links describe a network by the times of collectives.
type Links struct {
	backend.Spec // of a rank's device
	samples      []cost.Sample
	nodes        int
	perNode      int
}

// Collectives measures all-reduce, reduce-scatter and all-gather between ranks: all ranks of this
// process, or this process as one rank, which the other processes call too. It calls show for each
// result; GBytes is the bus bandwidth of NVIDIA's nccl-tests.
func Collectives(ctx context.Context, o Options, groups []*world.Group, sizes []int, show func(Result) error) (l *Links, err error) {
	place := groups[0].Place()
	if place.Size < 2 {
		return nil, errors.New("collectives need at least 2 ranks; name them by --ranks, or start them by a launcher")
	}
	l = &Links{perNode: place.LocalSize, nodes: place.Size / max(1, place.LocalSize)}
	each := world.Each
	if !groups[0].InProcess() {
		each = func(list []*world.Group, f func(*world.Group) error) error { return f(list[0]) }
	}
	ranks := make([]collectiveRank, len(groups))
	of := func(g *world.Group) *collectiveRank { return &ranks[g.Rank()-groups[0].Rank()] }
	defer func() {
		for i := range ranks {
			err = errors.Join(err, ranks[i].close())
		}
	}()
	if err := each(groups, func(g *world.Group) error { return of(g).open(o, g, sizes) }); err != nil {
		return nil, err
	}
	l.Spec = ranks[0].device.Spec()
	collectives := backend.Collectives()
	for i, size := range sizes {
		for j, c := range collectives {
			if err := each(groups, func(g *world.Group) error { return of(g).time(ctx, o.Seconds, i*len(collectives)+j) }); err != nil {
				return nil, err
			}
			part := partBytes(size, place.Size)
			bytes, seconds := float64(c.Passes*part*(place.Size-1)), median(ranks[0].seconds)
			l.samples = append(l.samples, cost.Sample{Key: collectiveKey, Cost: backend.Cost{Bytes: int64(bytes)}, Seconds: seconds})
			if err := show(Result{
				Bench: "collectives", Name: c.Name, Shape: fmt.Sprintf("%dx%d", place.Size, part*place.Size), Backend: l.Backend, Device: l.Device,
				Repeats: len(ranks[0].seconds), Median: seconds, GBytes: bytes / seconds / 1e9,
			}); err != nil {
				return nil, err
			}
		}
	}
	return l, nil
}

const collectiveKey = "collective"

// partBytes returns the bytes of a rank's part of a tensor of FP32.
func partBytes(size, ranks int) int { return (size/4 + ranks - 1) / ranks * 4 }

// collectiveRank is one rank of a measurement.
type collectiveRank struct {
	device   backend.Backend
	group    *world.Group
	programs []backend.Executable // for each size, one for each of backend.Collectives
	wait     func() error
	seconds  []float64 // of one execution, in each burst of the latest measurement
}

func (r *collectiveRank) open(o Options, g *world.Group, sizes []int) (err error) {
	r.group = g
	if r.device, err = backend.Open(o.Backend, backend.Options{Threads: o.Threads, Group: g}); err != nil {
		return err
	}
	v := backend.NewVars()
	var list []*backend.Program
	for i, size := range sizes {
		part := partBytes(size, g.Size()) / 4
		for _, c := range backend.Collectives() {
			p := v.Program(fmt.Sprintf("%s of size %d", c.Name, i))
			p.Add(c.New(v.Tensor(backend.Stash, p.Name()+", whole", fp8.F32, part*g.Size()), v.Tensor(backend.Stash, p.Name()+", part", fp8.F32, part)))
			list = append(list, p)
		}
	}
	r.programs, err = backend.Load(r.device, list...)
	r.wait = waiting(r.device, v)
	return err
}

func (r *collectiveRank) close() error {
	if r.device == nil {
		return nil
	}
	return r.device.Close()
}

// burst returns the seconds of one of n executions, which all ranks begin together.
func (r *collectiveRank) burst(ctx context.Context, program, n int) (float64, error) {
	if _, err := r.group.Exchange(ctx, "the start of a measurement", nil); err != nil {
		return 0, err
	}
	start := time.Now()
	for range n {
		if err := r.programs[program].Run(ctx); err != nil {
			return 0, err
		}
	}
	err := r.wait()
	return time.Since(start).Seconds() / float64(n), err
}

// time measures a program. Rank 0 decides how often it runs.
func (r *collectiveRank) time(ctx context.Context, seconds float64, program int) error {
	if _, err := r.burst(ctx, program, 2); err != nil { // the first connects, or records a graph
		return err
	}
	once, err := r.burst(ctx, program, 1)
	if err != nil {
		return err
	}
	counts := binary.LittleEndian.AppendUint32(nil, uint32(math.Ceil(burstSeconds/max(once, 1e-6))))
	counts = binary.LittleEndian.AppendUint32(counts, uint32(max(minBursts, seconds/max(once, burstSeconds))))
	all, err := r.group.Exchange(ctx, "the number of executions", counts)
	if err != nil {
		return err
	}
	runs, bursts := int(binary.LittleEndian.Uint32(all[0])), binary.LittleEndian.Uint32(all[0][4:])
	r.seconds = nil
	for range bursts {
		s, err := r.burst(ctx, program, runs)
		if err != nil {
			return err
		}
		r.seconds = append(r.seconds, s)
	}
	return nil
}

// Extend sets the latency and the bandwidth that describe the measured times best: those of link, or
// those of nic if the ranks are on several nodes. It returns an error if the times do not grow with
// the bytes.
func (l *Links) Extend(c *cost.Calibration, version string) error {
	date(c, version)
	curve := cost.FitCurves("collectives", l.samples)[collectiveKey]
	source := fmt.Sprintf("octet bench collectives, %d nodes of %d ranks, %s", l.nodes, l.perNode, c.Date)
	name, bandwidth := "link", curve.GBytes
	latency := curve.Overhead
	if l.nodes > 1 {
		name, bandwidth = "nic", curve.GBytes/float64(l.perNode)
		latency /= 1 + math.Log2(float64(l.nodes))
	}
	if bandwidth <= 0 {
		return errors.New("the times of the collectives do not grow with their bytes: measure larger sizes")
	}
	c.Set(name+"_latency", latency, source)
	c.Set(name+"_share", 1, source+": bandwidth is that of collectives")
	c.Set(name, bandwidth, source)
	return nil
}
