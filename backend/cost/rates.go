package cost

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"octet/backend"
)

// rates gives the times of ops on a machine, and records which numbers they depend on.
type rates struct {
	m          *Machine
	used       map[string]float64 // numbers, by name
	unmeasured map[string]bool    // keys without a curve
	rms        float64            // of the last op's curve; 0 without one
	residual   float64            // seconds that the ops may be off, by the rms of their curves
	small      bool               // the last op is far below the samples of its curve
	extended   float64            // seconds of such ops
	op         string             // key of the last op if the calibration lacks it, else ""
	err        error              // the first number without a source
}

func newRates(m *Machine) *rates {
	return &rates{m: m, used: map[string]float64{}, unmeasured: map[string]bool{}}
}

// get returns a number. If there is none it returns 1 and records the error.
func (r *rates) get(name string) float64 {
	if x, ok := r.used[name]; ok {
		return x
	}
	n, ok := r.m.Numbers[name]
	if !ok {
		if r.err == nil {
			r.err = &MissingError{Device: r.m.Device, Name: name, Op: r.op}
		}
		return 1
	}
	r.used[name] = n.Value
	return n.Value
}

// MissingError says that no source gives a number. It wraps ErrNoData.
type MissingError struct {
	Device, Name string
	Op           string // key of an op that needs the number because the calibration has no curve; or ""
}

func (e *MissingError) Error() string {
	if e.Op != "" {
		return fmt.Sprintf("the calibration has no curve of %q: calibrate with a recipe that has such ops, or give a value by --assume %s=VALUE (%s)", e.Op, e.Name, meaning[e.Name])
	}
	measure := "octet bench step"
	switch e.Name {
	case "link", "nic", "link_latency", "nic_latency", "link_share", "nic_share":
		measure = "octet bench collectives"
	case "watts", "host_power", "mtbf", "restart", "snapshot_rate", "checkpoint_rate", "ranks":
		measure = ""
	}
	if measure != "" {
		measure = fmt.Sprintf("measure it there by %s --calibrate FILE, or ", measure)
	}
	return fmt.Sprintf("no data for %s of %s (%s): %sgive a value by --assume %s=VALUE", e.Name, e.Device, meaning[e.Name], measure, e.Name)
}

// Unwrap returns ErrNoData.
func (e *MissingError) Unwrap() error { return ErrNoData }

// farBelow is the ratio of an op's time to the shortest sample's below which a curve is no longer
// trusted: the overhead of an op and its work in caches are then hardly in the samples.
const farBelow = 2

// time returns the seconds of an op and what limits it. A measured curve goes before the roofline.
func (r *rates) time(w *work) (float64, Bound) {
	r.rms, r.small, r.op = 0, false, ""
	if w.class == Communication {
		return r.collective(w)
	}
	if c := r.m.Calibration; c != nil {
		curve, measured, ok := c.curve(w)
		if !measured {
			r.unmeasured[w.key] = true
		}
		if ok {
			t, bound := curve.time(w.flops, w.bytes)
			r.rms, r.small = curve.RMS, t < curve.Smallest*1e-6/farBelow
			return t, bound
		}
		r.op = w.key
	}
	memory := w.bytes / (r.get("bandwidth") * 1e12 * r.get("copy_share"))
	t, bound := memory, ByBytes
	if rate := r.flops(w); rate > 0 && w.flops/rate > memory {
		t, bound = w.flops/rate, ByFLOPs
	}
	if w.class == Attention || w.class == RowOps {
		t *= r.get("rest")
	}
	launch := r.get("launch") * 1e-6
	if launch > t {
		bound = ByLatency
	}
	return t + launch, bound
}

// flops returns the FLOP/s of an op; 0 if memory alone limits it.
func (r *rates) flops(w *work) float64 {
	switch {
	case w.class == GEMM:
		return r.get(w.format+"_peak") * 1e12 * r.get(w.format+"_share") * r.get("gemm") * r.shape(w)
	case w.class == Attention && w.backward:
		return r.get("bf16_peak") * 1e12 * r.get("attention_backward")
	case w.class == Attention:
		return r.get("bf16_peak") * 1e12 * r.get("attention_forward")
	}
	return 0
}

// shape returns the share of the rate of large GEMMs that a GEMM of this shape reaches: by the
// number of tiles of 128×256 for each processor, and by K.
func (r *rates) shape(w *work) float64 {
	processors := r.get("processors")
	if processors == 0 {
		return 1
	}
	waves := float64(ceilDiv(w.m, 128)*ceilDiv(w.n, 256)) / processors
	return waves / (waves + 0.5) * float64(w.k) / (float64(w.k) + r.get("tile_k"))
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }

// collective returns the time of a collective of n devices, of which a node has as many as its group puts
// there:
//
//	link_latency, or between nodes nic_latency·(1 + log2 nodes)
//	ring        + passes·bytes·(n−1)/n / wire
//	all-to-all  + the longer of bytes·(devices of a node − 1)/n / (link·link_share)
//	              and bytes·(n − devices of a node)/n / (nic·nic_share)
//
// The wire of rings is link·link_share. Over several nodes it is at most nic·nic_share times the
// devices of a node, because rings enter a node by all of its devices. In an all-to-all each device
// sends its own data to other nodes.
func (r *rates) collective(w *work) (float64, Bound) {
	perNode, nodes := r.m.spread(w.group)
	n := perNode * nodes
	if n == 1 {
		return 0, ByWire
	}
	latency, within, between := "link_latency", math.Inf(1), math.Inf(1) // bytes/s of a device
	if perNode > 1 {
		within = r.get("link") * 1e9 * r.get("link_share")
	}
	if nodes > 1 {
		latency, between = "nic_latency", r.get("nic")*1e9*r.get("nic_share")
	}
	start := r.get(latency) * 1e-6 * (1 + math.Log2(nodes))
	wire := float64(w.passes) * w.bytes * (n - 1) / n / min(within, between*perNode)
	if w.exchange {
		wire = w.bytes / n * max((perNode-1)/within, (n-perNode)/between)
	}
	if start > wire {
		return start + wire, ByLatency
	}
	return start + wire, ByWire
}

// spread returns how many ranks of a group a node has, and on how many nodes it is.
func (c Cluster) spread(g backend.Group) (perNode, nodes float64) {
	n, err := g.Ranks(c.Devices())
	if err != nil || g.All() {
		return float64(c.PerNode), float64(c.Nodes)
	}
	perNode = float64(min(n, max(1, c.PerNode/g.Stride)))
	return perNode, math.Ceil(float64(n) / perNode)
}

// names returns the names of the numbers that were used, sorted.
func (r *rates) names() []string { return slices.Sorted(maps.Keys(r.used)) }
