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

// examine compiles each kind of node in the programs in a graph of its own, to find which
// kernel is missing or rejects its operands: for a whole layer SynapseAI reports only a
// failure.
func examine(name string, programs []*backend.Program) iter.Seq[backend.Finding] {
	return func(yield func(backend.Finding) bool) {
		b, err := open(name, backend.Options{})
		if err != nil {
			yield(backend.Finding{What: "device", Detail: err.Error()})
			return
		}
		d := b.(*device)
		if examineOn(d, programs, yield) {
			if err := d.Close(); err != nil {
				yield(backend.Finding{What: "device", Detail: err.Error()})
			}
		}
	}
}

// examineOn examines an open device. It returns false once yield does.
func examineOn(d *device, programs []*backend.Program, yield func(backend.Finding) bool) bool {
	h := d.hardware()
	free, total, err := d.memory()
	memory := fmt.Sprintf("%s of %s free", backend.Size(int64(free)), backend.Size(int64(total)))
	if err != nil {
		memory = err.Error()
	}
	if !yield(backend.Finding{What: "device", OK: err == nil, Detail: fmt.Sprintf("%s at %s, %s, addresses aligned to %d bytes", d.spec.Device, h.Bus, memory, h.Align)}) ||
		!yield(examineSensors(d)) || !yield(examineHCCL(d)) {
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
		if !yield(f) { // yielded at once: a crash of the compiler ends this process
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
	return yield(examineMixedPairs(d)) && yield(examineE4M3(d))
}

// tally returns the finding of how many kernels compile.
func tally(compiled, of int) backend.Finding {
	return backend.Finding{What: "kernels", OK: compiled == of, Detail: fmt.Sprintf("%d of %d compile, each in its own graph", compiled, of)}
}

// examineSensors reads the device's sensors from HLML.
func examineSensors(d *device) backend.Finding {
	f := backend.Finding{What: "HLML", Optional: true}
	sensed, ok := any(d).(backend.Sensed)
	if !ok {
		f.Detail = "not in this build"
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
		f.OK, f.Detail = false, err.Error()+"; without it, only the records of training lack these values"
	}
	return f
}

// hintNetwork is the fix for errors in creating a communicator.
const hintNetwork = "set HCCL_SOCKET_IFNAME to the network interface between the ranks: lo on a machine without a network"

// examineHCCL checks that HCCL can create a communicator's id.
func examineHCCL(d *device) backend.Finding {
	if _, err := d.uniqueID(); err != nil {
		return backend.Finding{What: "HCCL", Detail: err.Error(), Fix: hintNetwork}
	}
	return backend.Finding{What: "HCCL", OK: true, Detail: "creates the id of a communicator"}
}

// signature returns the operands of a graph of one node.
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

// kernelsOf returns every kind of node in the programs, each in a graph of its own: a
// kernel with its operand types, as it first appears.
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
				k := singleNode(step.unit.graph, n)
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

// singleNode returns a graph of one node of another graph, with all operands but
// constants in sections.
func singleNode(of *libsynapse.Graph, n libsynapse.Node) program {
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
