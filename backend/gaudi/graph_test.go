package gaudi

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/csrc/libsynapse"
)

// checkSchedule checks a schedule's units against SynapseAI's rules, and their order
// independently of the builder.
func checkSchedule(t *testing.T, s backend.Spec, c *cutter, schedule *schedule) {
	t.Helper()
	plan := c.planOf(schedule)
	next := 0
	nodes := schedule.program.Nodes()
	for _, step := range schedule.steps {
		require.Same(t, nodes[next], step.node, "a node is missing")
		next = schedule.ranges[next].end + 1
		if step.unit == nil {
			continue
		}
		g := step.unit.graph
		name := step.unit.name
		require.NoError(t, g.Check(), name)
		require.Len(t, step.sections, g.Sections, name)
		for i, r := range step.sections {
			require.Zero(t, r.offset%int64(own(s).align), "%s: section %d", name, i)
			require.LessOrEqual(t, r.offset+r.bytes, c.layouts.of(r.root).Bytes(), "%s: section %d", name, i)
			_, placed := plan.Offsets[r.root]
			require.True(t, placed || r.root.Class != backend.Temp, "%s: section %d, %s, has no address", name, i, r.root)
			for _, q := range step.sections[:i] {
				a, b := addressOf(plan, r), addressOf(plan, q)
				require.True(t, r.root != q.root && (a < 0 || b < 0) || a+r.bytes <= b || b+q.bytes <= a, "%s: sections overlap", name)
			}
		}
		for k, tensor := range g.Tensors {
			if tensor.Section >= 0 {
				require.LessOrEqual(t, int64(tensor.Offset+tensor.Bytes()), step.sections[tensor.Section].bytes, "%s: tensor %d", name, k)
			}
		}
		checkOrder(t, name, g)
	}
	require.Equal(t, len(nodes), next)
}

// addressOf returns an address in the arena, or a negative one within a variable.
func addressOf(plan *backend.Plan, r region) int64 {
	if at, ok := plan.Offsets[r.root]; ok {
		return at + r.offset
	}
	return r.offset - 1<<50
}

// checkOrder requires a path of edges between any two nodes of which one writes what the
// other touches, and a source for every operand.
func checkOrder(t *testing.T, name string, g *libsynapse.Graph) {
	producer := map[int]int{}
	type access struct {
		tensor int
		write  bool
	}
	touched := make([][]access, len(g.Nodes))
	waitsFor := make([]map[int]bool, len(g.Nodes)) // transitive dependencies of a node
	for i, n := range g.Nodes {
		waitsFor[i] = map[int]bool{}
		wait := func(j int) {
			waitsFor[i][j] = true
			for k := range waitsFor[j] {
				waitsFor[i][k] = true
			}
		}
		for _, j := range n.After {
			wait(j)
		}
		for _, k := range n.In {
			if k < 0 {
				continue
			}
			tensor := g.Tensors[k]
			j, written := producer[k]
			require.True(t, written || tensor.Const != nil || tensor.Section >= 0, "%s: node %d, %s, reads tensor %d, which no node writes", name, i, n.GUID, k)
			if written {
				wait(j)
			}
			touched[i] = append(touched[i], access{k, false})
		}
		for _, k := range n.Out {
			if k >= 0 {
				producer[k] = i
				touched[i] = append(touched[i], access{k, true})
			}
		}
		for j := range i {
			for _, a := range touched[i] {
				for _, b := range touched[j] {
					p, q := g.Tensors[a.tensor], g.Tensors[b.tensor]
					if !a.write && !b.write || p.Section < 0 || p.Section != q.Section {
						continue
					}
					if p.Offset < q.Offset+q.Bytes() && q.Offset < p.Offset+p.Bytes() {
						require.True(t, waitsFor[i][j], "%s: node %d, %s, does not wait for node %d, %s, which touches the same bytes", name, i, n.GUID, j, g.Nodes[j].GUID)
					}
				}
			}
		}
	}
}

// keys returns a schedule's launches: the unit and the sections' regions.
func keys(s *schedule) (list []string) {
	for _, step := range s.steps {
		if step.unit == nil {
			list = append(list, fmt.Sprintf("%T", step.collective))
			continue
		}
		key := step.unit.key
		for _, r := range step.sections {
			key += fmt.Sprintf(" %s+%d:%d", r.root.Name, r.offset, r.bytes)
		}
		list = append(list, key)
	}
	return list
}
