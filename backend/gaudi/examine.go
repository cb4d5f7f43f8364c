package gaudi

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"octet/backend"
	"octet/csrc/libsynapse"
)

// examine compiles each kind of node that programs have in a graph of its own: where
// SynapseAI says no more of a layer than that it failed, this says which kernel it
// lacks or wants otherwise.
func examine(name string, programs []*backend.Program) iter.Seq[backend.Finding] {
	return func(yield func(backend.Finding) bool) {
		list, err := open(name, backend.Options{})
		if err != nil {
			yield(backend.Finding{What: "device", Detail: err.Error()})
			return
		}
		d := list[0].(*device)
		if examineOn(d, programs, yield) {
			if err := d.Close(); err != nil {
				yield(backend.Finding{What: "device", Detail: err.Error()})
			}
		}
	}
}

// examineOn reports whether anybody wants more findings.
func examineOn(d *device, programs []*backend.Program, yield func(backend.Finding) bool) bool {
	h := d.hardware()
	free, total, err := d.memory()
	memory := fmt.Sprintf("%s of %s free", backend.Size(int64(free)), backend.Size(int64(total)))
	if err != nil {
		memory = err.Error()
	}
	if !yield(backend.Finding{What: "device", OK: err == nil, Detail: fmt.Sprintf("%s at %s, %s, addresses aligned to %d bytes", d.spec.Device, h.Bus, memory, h.Align)}) ||
		!yield(sensing(d)) || !yield(hccl(d)) {
		return false
	}
	kernels, err := kernelsOf(d.spec, programs)
	if err != nil {
		return yield(backend.Finding{What: "kernels", Detail: err.Error()})
	}
	compiled := 0
	for _, k := range kernels {
		start := time.Now()
		_, err := d.compile([]program{k})
		f := backend.Finding{What: k.Name, OK: err == nil, Detail: fmt.Sprintf("%s, %d ms", signature(k.Graph), time.Since(start).Milliseconds())}
		if err == nil {
			compiled++
		} else {
			f.Detail += fmt.Sprintf(", parameters %x: %v", k.Graph.Nodes[0].Params, err)
		}
		if !yield(f) { // each at once: a compiler that crashes takes this process along
			return false
		}
		if e := (*libsynapse.Error)(nil); errors.As(err, &e) && e.DeviceLost() {
			return yield(tally(compiled, len(kernels)))
		}
	}
	if !yield(tally(compiled, len(kernels))) {
		return false
	}
	if h.Model != "gaudi3" {
		return true
	}
	return yield(mixedPairs(d)) && yield(topOfE4M3(d))
}

// tally is how many kernels compile.
func tally(compiled, of int) backend.Finding {
	return backend.Finding{What: "kernels", OK: compiled == of, Detail: fmt.Sprintf("%d of %d compile, each alone", compiled, of)}
}

// sensing is what HLML tells of the device.
func sensing(d *device) backend.Finding {
	f := backend.Finding{What: "HLML", Optional: true}
	sensed, ok := any(d).(backend.Sensed)
	if !ok {
		f.Detail = "this build has none"
		return f
	}
	s, err := sensed.Sensors()
	if err == nil {
		var r backend.Reading
		r, err = s.Read()
		f.OK, f.Detail = err == nil, r.String()
		err = errors.Join(err, s.Close())
	}
	if err != nil {
		f.OK, f.Detail = false, err.Error()+"; only training's records go without it"
	}
	return f
}

// hintNetwork is for whoever has no group of ranks.
const hintNetwork = "HCCL_SOCKET_IFNAME names the network interface by which ranks find each other: lo on a machine without a network"

// hccl asks whether several devices could work together.
func hccl(d *device) backend.Finding {
	if _, err := d.uniqueID(); err != nil {
		return backend.Finding{What: "HCCL", Detail: err.Error(), Fix: hintNetwork}
	}
	return backend.Finding{What: "HCCL", OK: true, Detail: "names a group of ranks"}
}

// signature is the operands of a graph of one node.
func signature(g *libsynapse.Graph) string {
	operands := func(list []int) string {
		var texts []string
		for _, k := range list {
			if k < 0 {
				texts = append(texts, "none")
				continue
			}
			t := g.Tensors[k]
			text := fmt.Sprintf("%s %v", t.Type, t.Sizes)
			if t.Const != nil {
				text += " constant"
			}
			texts = append(texts, text)
		}
		return strings.Join(texts, ", ")
	}
	return operands(g.Nodes[0].In) + " -> " + operands(g.Nodes[0].Out)
}

// kernelsOf lists every kind of node that programs have, each in a graph of its own:
// a kernel with the types of its operands, as it first appears.
func kernelsOf(s backend.Spec, programs []*backend.Program) ([]program, error) {
	c := newCutter(s, true, programs...)
	seen := map[string]bool{}
	var list []program
	for _, p := range programs {
		schedule, err := c.cut(p)
		if err != nil {
			return nil, err
		}
		for _, step := range schedule.steps {
			if step.unit == nil {
				continue
			}
			for _, n := range step.unit.graph.Nodes {
				k := alone(step.unit.graph, n)
				kind := k.Name
				for _, t := range k.Graph.Tensors {
					kind += " " + t.Type.String()
				}
				if !seen[kind] {
					seen[kind] = true
					list = append(list, k)
				}
			}
		}
	}
	slices.SortStableFunc(list, func(a, b program) int { return cmp.Compare(a.Name, b.Name) })
	return list, nil
}

// alone is a graph of one node of another graph: its operands lie in sections, but
// for constants.
func alone(of *libsynapse.Graph, n libsynapse.Node) program {
	g := &libsynapse.Graph{}
	operands := func(list []int) (moved []int) {
		for _, k := range list {
			if k < 0 {
				moved = append(moved, k)
				continue
			}
			t := of.Tensors[k]
			t.Section, t.Offset = libsynapse.NoSection, 0
			if t.Const == nil {
				t.Section = g.Sections
				g.Sections++
			}
			moved = append(moved, len(g.Tensors))
			g.Tensors = append(g.Tensors, t)
		}
		return moved
	}
	g.Nodes = []libsynapse.Node{{GUID: n.GUID, Name: n.Name, In: operands(n.In), Out: operands(n.Out), Params: n.Params}}
	return program{n.GUID, g}
}
