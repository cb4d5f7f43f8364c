package train

import (
	"slices"
	"strings"

	"octet/backend"
	"octet/nn"
)

// Line is the persistent memory of one rank for one use, in bytes. The weights of linear layers,
// heads excluded, are those to which the recipe's optimizer formats apply.
type Line struct {
	Name    string   `json:"name"`
	Formats []string `json:"formats,omitempty"` // of the linear layers' tensors
	Layers  int64    `json:"layers"`            // for the weights of linear layers, scales included
	FP32    int64    `json:"layers_fp32"`       // what the same elements take in FP32; 0 for lines after m2
	Rest    int64    `json:"rest"`              // for all else
}

// The names of lines, in their order.
var lineNames = []string{"master weights", "gradients", "m1", "m2", "cast weights", "other"}

// StateLines is the number of lines at the start that hold a parameter's state. An optimizer in FP32
// has 4 bytes per parameter in each of them: 16.
const StateLines = 4

const castLine, otherLine = StateLines, StateLines + 1

// Lines divides the persistent memory of a rank by use: each tensor counts in one line. Cast
// weights are the copies that passes read, other are scales of casts, histories, inputs and outputs.
func (j *Job) Lines() []Line {
	type use struct {
		line  int
		param *nn.Param
		scale bool
	}
	of := map[*backend.Tensor]use{}
	copies := j.Model.WeightCopies()
	for _, p := range j.Model.Params {
		for i, list := range [][]*backend.Tensor{{p.Master}, {p.Grad, p.Reduced}, {j.optimizer.m1[p]}, {j.optimizer.m2[p]}, copies[p]} {
			for _, t := range list {
				if t == nil { // Muon's m2
					continue
				}
				of[t.Root()] = use{line: i, param: p}
				if i < StateLines && t.Scale != nil {
					of[t.Scale.Root()] = use{line: i, param: p, scale: true}
				}
			}
		}
	}
	lines := make([]Line, len(lineNames))
	for i, name := range lineNames {
		lines[i].Name = name
	}
	for t := range j.Vars.All() {
		u, known := of[t]
		if !known { // lowering may add copies of a cast weight: NAME.t
			name := t.Name[:max(0, strings.LastIndexByte(t.Name, '.'))]
			if u, known = of[j.Vars.Lookup(name)]; u.line != castLine {
				u, known = use{line: otherLine}, false
			}
		}
		l := &lines[u.line]
		if !known || !u.param.Quantized {
			l.Rest += t.Bytes()
			continue
		}
		l.Layers += t.Bytes()
		if name := t.DType.String(); !u.scale && !slices.Contains(l.Formats, name) {
			l.Formats = append(l.Formats, name)
		}
		if !u.scale && u.line < StateLines {
			l.FP32 += 4 * int64(t.Elems())
		}
	}
	return lines
}

// ParameterBytes returns what a rank stores for a parameter on average: master weight, gradient and
// moments, with their scales, in bytes. An optimizer in FP32 has 16.
func (j *Job) ParameterBytes() float64 {
	stored := int64(0)
	for _, l := range j.Lines()[:StateLines] {
		stored += l.Layers + l.Rest
	}
	return float64(stored) / float64(j.parameters())
}

// SentBytes returns what a rank sends in a step, in bytes per parameter of the model.
func (j *Job) SentBytes() float64 {
	sent := int64(0)
	for _, t := range j.Traffic() {
		sent += t.Bytes
	}
	return float64(sent) / float64(j.parameters())
}

func (j *Job) parameters() (n int64) {
	for _, g := range j.ParamGroups() {
		n += g.N
	}
	return n
}

// LayerParameters returns the number of weights of linear layers, heads excluded.
func (j *Job) LayerParameters() (n int64) {
	for _, p := range j.Model.Params {
		if p.Quantized {
			n += int64(p.Elems())
		}
	}
	return n
}

// Traffic is what one rank sends to others in a step, in bytes, for one use. A ring of n ranks
// sends (n−1)/n of a tensor that it reduces, scatters or gathers, and all-reduces it in two such
// passes.
type Traffic struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
	// Usual is the traffic with gradients in FP32, and weights and activations in BF16, as often as the
	// stage of ZeRO needs them; 0 for the rest.
	Usual int64 `json:"usual"`
}

// Traffic returns the traffic of gradients, of weights, of activations if ranks share layers, and of
// norms, maxima and the loss. It is nil for one rank.
func (j *Job) Traffic() []Traffic {
	all := j.Config.Train.Ranks
	if all < 2 {
		return nil
	}
	gradients, weights, activations, other := &Traffic{Name: "gradients"}, &Traffic{Name: "weights"}, &Traffic{Name: "activations"}, &Traffic{Name: "other"}
	count := func(p *backend.Program, times int64) {
		for _, node := range p.Nodes() {
			op, whole, g := backend.Exchanged(node.Op)
			if whole == nil {
				continue
			}
			ranks, _ := g.Ranks(all)
			n, l, passes := int64(ranks), other, int64(1)
			switch shared := g.Stride == 1; { // by ranks that share layers
			case shared && op != "all-reduce":
				l = activations
				if bytes := whole.Bytes(); whole.DType.IsFloat() && whole.DType.Size() == 4 {
					l.Usual += times * bytes * (n - 1) / n
				} else {
					l.Usual += times * 2 * int64(whole.Elems()) * (n - 1) / n
				}
			case shared:
			case p == j.Update && op == "all-gather", backend.GathersShards(node.Op):
				l = weights
			case p != j.Update:
				l = gradients
			}
			if op == "all-reduce" {
				passes = 2
			}
			l.Bytes += times * passes * whole.Bytes() * (n - 1) / n
		}
	}
	count(j.Update, 1)
	for v, p := range j.Micro {
		count(p, j.runs(v))
	}
	scatters, gathers := int64(1), int64(1) // of a step
	if j.Config.Train.ZeroStage >= 2 {
		scatters = int64(j.Config.Train.Accumulate)
	}
	if j.Config.Train.ZeroStage >= 3 {
		gathers = 2 * int64(j.Config.Train.Accumulate) // for the forward and for the backward
	}
	for _, p := range j.Model.Params {
		elems, n := int64(p.Elems()), int64(all)
		if p.Split != nn.NotSplit {
			elems, n = elems/int64(j.Config.tensor()), int64(j.Config.dataRanks())
		}
		if !p.Sharded() {
			gradients.Usual += 2 * 4 * elems * (n - 1) / n
			continue
		}
		gradients.Usual += scatters * 4 * elems * (n - 1) / n
		weights.Usual += gathers * 2 * elems * (n - 1) / n
	}
	if j.Config.tensor() > 1 {
		return []Traffic{*gradients, *weights, *activations, *other}
	}
	return []Traffic{*gradients, *weights, *other}
}

// runs returns how often a step runs a variant of micro-batch.
func (j *Job) runs(v Variant) (n int64) {
	last := j.Config.Train.Accumulate - 1
	for i := range last + 1 {
		if v == (Variant{First: i == 0, Last: i == last}) {
			n++
		}
	}
	return n
}
