package cli

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTable(t *testing.T) {
	rows := table{columns: []column{{head: "name"}, {head: "all elements", short: "n"}, {head: "first", optional: true}, {head: "last", optional: true}}}
	rows.add("layers.0.self_attn.q_proj.weight", "1,024", "0.5", "-")
	rows.add("é", "7", "", "1e-10")
	for columns, want := range map[int][]string{
		0: {
			"name                              all elements  first  last",
			"layers.0.self_attn.q_proj.weight  1,024         0.5    -",
			"é                                 7                    1e-10",
		},
		53: {
			"name                              n      first  last",
			"layers.0.self_attn.q_proj.weight  1,024  0.5    -",
			"é                                 7             1e-10",
		},
		52: {
			"name                             n      first  last",
			"layers.0.self_a…n.q_proj.weight  1,024  0.5    -",
			"é                                7             1e-10",
		},
		44: {
			"name                            n      first",
			"layers.0.self_…n.q_proj.weight  1,024  0.5",
			"é                               7      ",
			"omitted on this terminal, but not in a pipe:",
			"last",
		},
		31: {
			"name                      n",
			"layers.0.se…_proj.weight  1,024",
			"é                         7",
			"omitted on this terminal, but",
			"not in a pipe: first, last",
		},
	} {
		var out strings.Builder
		if columns == 0 {
			require.NoError(t, rows.print(&out))
		} else {
			require.NoError(t, rows.print(reflowed{&out, columns}))
		}
		require.Equal(t, strings.Join(want, "\n")+"\n", out.String(), columns)
	}
}

// Names stay distinct: columns go first, and a line that is still too long stays long.
func TestTableOfSimilarNames(t *testing.T) {
	rows := table{columns: []column{{head: "name"}, {head: "n"}, {head: "last", optional: true}}}
	rows.add("layers.10.self_attn.q_proj.weight", "1", "")
	rows.add("layers.10.self_attn.k_proj.weight", "1", "")
	var out strings.Builder
	require.NoError(t, rows.print(reflowed{&out, 34}))
	require.Equal(t, "name                             n\nlayers.10.self_…n.q_proj.weight  1\n"+
		"layers.10.self_…n.k_proj.weight  1\nomitted on this terminal, but not\nin a pipe: last\n", out.String())
	out.Reset()
	require.NoError(t, rows.print(reflowed{&out, 27}))
	require.Contains(t, out.String(), "layers.10.self_attn.q_proj.weight", "the terminal breaks the line")
	lines := [][]string{{"layers.10.self_attn.q_proj.weight"}, {"layers.10.self_attn.k_proj.weight"}}
	require.True(t, shortenNames(lines, 32))
	require.Equal(t, [][]string{{"layers.10.self_…tn.q_proj.weight"}, {"layers.10.self_…tn.k_proj.weight"}}, lines)
	require.False(t, shortenNames(lines, 25))
	require.False(t, shortenNames(lines, 23))
}

func TestWrapComments(t *testing.T) {
	const text = "[a]\nkey = \"# long value\" # a comment that is rather long\nb = 1 # short\n"
	require.Equal(t, text, wrapComments(text, 0))
	require.Equal(t, "[a]\nkey = \"# long value\" # a comment that is rather\n                     # long\nb = 1 # short\n", wrapComments(text, 50))
	require.Equal(t, text, wrapComments(text, 25), "there is no room for comments")
}
