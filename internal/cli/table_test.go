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
			"name                              n      first",
			"layers.0.self_attn.q_proj.weight  1,024  0.5",
			"é                                 7      ",
			"omitted on this terminal, but not in a pipe: last",
		},
		38: {
			"name                             n",
			"layers.0.self_a…n.q_proj.weight  1,024",
			"é                                7",
			"omitted on this terminal, but not in a",
			"pipe: first, last",
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

func TestWrapComments(t *testing.T) {
	const text = "[a]\nkey = \"# long value\" # a comment that is rather long\nb = 1 # short\n"
	require.Equal(t, text, wrapComments(text, 0))
	require.Equal(t, "[a]\nkey = \"# long value\" # a comment that is rather\n                     # long\nb = 1 # short\n", wrapComments(text, 50))
	require.Equal(t, text, wrapComments(text, 25), "there is no room for comments")
}
