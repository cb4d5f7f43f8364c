package libsynapse

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// sample returns a graph with every feature: c = a·constant, then d = c in place.
func sample() *Graph {
	return &Graph{
		Tensors: []Tensor{
			{Name: "a", Type: E4M3, Sizes: []uint64{4, 2}, Section: 0},
			{Name: "b", Type: F32, Sizes: []uint64{2}, Section: NoSection, Const: []byte{0, 0, 128, 63, 0, 0, 0, 64}},
			{Name: "c", Type: BF16, Sizes: []uint64{4, 2}, Section: 1, Offset: 128},
			{Name: "d", Type: BF16, Sizes: []uint64{4, 2}, Section: 1, Offset: 128},
		},
		Nodes: []Node{
			{GUID: "first", Name: "layers.0", In: []int{0, -1, 1}, Out: []int{2}, Params: []byte{1, 0}},
			{GUID: "second", Name: "layers.0", In: []int{2}, Out: []int{3, -1}, After: []int{0}},
		},
		Sections: 2,
	}
}

func TestKeyIgnoresNames(t *testing.T) {
	key := sample().Key()
	require.Len(t, key, 64)
	require.Equal(t, key, sample().Key())

	g := sample()
	for i := range g.Tensors {
		g.Tensors[i].Name += " of another layer"
	}
	for i := range g.Nodes {
		g.Nodes[i].Name = "layers.1"
	}
	require.Equal(t, key, g.Key())

	seen := map[string]string{key: "nothing"}
	for what, change := range map[string]func(*Graph){
		"sections":        func(g *Graph) { g.Sections++ },
		"type":            func(g *Graph) { g.Tensors[0].Type = E5M2 },
		"sizes":           func(g *Graph) { g.Tensors[0].Sizes = []uint64{2, 4} },
		"rank":            func(g *Graph) { g.Tensors[0].Sizes = []uint64{4, 2, 1} },
		"section":         func(g *Graph) { g.Tensors[0].Section = 1 },
		"no section":      func(g *Graph) { g.Tensors[0].Section = NoSection },
		"offset":          func(g *Graph) { g.Tensors[2].Offset = 256 },
		"constant":        func(g *Graph) { g.Tensors[1].Const[7] = 65 },
		"no constant":     func(g *Graph) { g.Tensors[1].Const = nil },
		"tensor":          func(g *Graph) { g.Tensors = append(g.Tensors, g.Tensors[0]) },
		"kernel":          func(g *Graph) { g.Nodes[0].GUID = "First" },
		"in":              func(g *Graph) { g.Nodes[0].In[1] = 0 },
		"in and out":      func(g *Graph) { n := &g.Nodes[1]; n.In, n.Out = []int{2, 3}, []int{-1} },
		"params":          func(g *Graph) { g.Nodes[0].Params[1] = 1 },
		"fewer params":    func(g *Graph) { g.Nodes[0].Params = g.Nodes[0].Params[:1] },
		"after":           func(g *Graph) { g.Nodes[1].After = nil },
		"node":            func(g *Graph) { g.Nodes = g.Nodes[:1] },
		"order of nodes":  func(g *Graph) { g.Nodes[0], g.Nodes[1] = g.Nodes[1], g.Nodes[0] },
		"order of inputs": func(g *Graph) { in := g.Nodes[0].In; in[0], in[2] = in[2], in[0] },
	} {
		g := sample()
		change(g)
		changed := g.Key()
		require.NotContains(t, seen, changed, "%s and %s", what, seen[changed])
		seen[changed] = what
	}
}

func TestCheck(t *testing.T) {
	require.NoError(t, sample().Check())
	for _, c := range []struct {
		change func(*Graph)
		want   string
	}{
		{func(g *Graph) { g.Nodes = nil }, "the graph has no nodes"},
		{func(g *Graph) { g.Tensors[0].Type = 3 }, "tensor 0 (a): unknown type 3"},
		{func(g *Graph) { g.Tensors[2].Sizes = nil }, "tensor 2 (c): it has 0 dimensions; Gaudi supports 1 to 5"},
		{func(g *Graph) { g.Tensors[2].Sizes = make([]uint64, 6) }, "tensor 2 (c): it has 6 dimensions; Gaudi supports 1 to 5"},
		{func(g *Graph) { g.Tensors[2].Sizes[1] = 0 }, "tensor 2 (c): sizes [4 0]: a dimension is empty"},
		{
			func(g *Graph) { g.Tensors[2].Sizes = []uint64{1 << 16, 1<<15 + 1} },
			"tensor 2 (c): sizes [65536 32769] of bf16 exceed 4 GiB, Gaudi's limit for a tensor",
		},
		{
			func(g *Graph) { g.Tensors[2].Sizes = []uint64{1 << 32, 1 << 32} }, // the number of elements overflows 64 bits to 0
			"tensor 2 (c): sizes [4294967296 4294967296] of bf16 exceed 4 GiB, Gaudi's limit for a tensor",
		},
		{func(g *Graph) { g.Tensors[3].Section = 2 }, "tensor 3 (d): section 2 is not one of the graph's 2"},
		{func(g *Graph) { g.Tensors[3].Section = -2 }, "tensor 3 (d): section -2 is not one of the graph's 2"},
		{func(g *Graph) { g.Tensors[3].Section = NoSection }, "tensor 3 (d): offset 128 without a section"},
		{func(g *Graph) { g.Tensors[1].Section = 0 }, "tensor 1 (b): a constant must not have a section, this one has 0"},
		{func(g *Graph) { g.Tensors[1].Sizes[0] = 3 }, "tensor 1 (b): the constant has 8 bytes, but its sizes [3] of f32 need 12"},
		{
			func(g *Graph) { g.Tensors[1].Sizes[0], g.Tensors[1].Const = 1<<18+1, make([]byte, 1<<20+4) },
			"tensor 1 (b): the constant has 1048580 bytes; the compiler accepts at most 1048576",
		},
		{
			func(g *Graph) { g.Tensors[2].Section, g.Tensors[2].Offset, g.Nodes[0].Out[0] = NoSection, 0, -1 },
			"node 1 (second, layers.0): it reads tensor 2 (c), which no earlier node writes",
		},
		{func(g *Graph) { g.Nodes[0].GUID = "" }, "node 0 (, layers.0): it names no kernel"},
		{func(g *Graph) { g.Nodes[0].In[0] = 5 }, "node 0 (first, layers.0): operand 5 is not one of the 4 tensors"},
		{func(g *Graph) { g.Nodes[1].Out[1] = -2 }, "node 1 (second, layers.0): operand -2 is not one of the 4 tensors"},
		{func(g *Graph) { g.Nodes[1].Out[0] = 1 }, "node 1 (second, layers.0): it writes tensor 1 (b), a constant"},
		{func(g *Graph) { g.Nodes[1].Out[0] = 2 }, "node 1 (second, layers.0): it writes tensor 2 (c), which node 0 already writes"},
		{func(g *Graph) { g.Nodes[1].After[0] = 1 }, "node 1 (second, layers.0): it waits for node 1, which is not an earlier node"},
	} {
		g := sample()
		c.change(g)
		require.EqualError(t, g.Check(), c.want)
	}

	g := sample()
	g.Tensors[2].Sizes = []uint64{1 << 16, 1 << 15}
	require.NoError(t, g.Check(), "exactly 4 GiB")
}

func TestDataTypes(t *testing.T) {
	require.Equal(t, "hf8", E4M3.String())
	require.Equal(t, "synDataType(3)", DataType(3).String())
	for kind, size := range map[DataType]int{I8: 1, E4M3: 1, E5M2: 1, BF16: 2, F16: 2, F32: 4, I32: 4, U32: 4, 0: 0} {
		require.Equal(t, size, kind.Size(), kind.String())
	}
	require.Equal(t, uint64(16), (&Tensor{Type: BF16, Sizes: []uint64{4, 2}}).Bytes())
}
