package config

import (
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCheckDepth(t *testing.T) {
	deep := strings.Repeat("a.", maxDepth)
	for _, text := range []string{
		"", "a = 1", strings.Repeat("[", maxDepth) + strings.Repeat("]", maxDepth), deep + "a = 1\n" + deep + "a = 2",
		"# " + strings.Repeat(".", 1000), "# [[[" + strings.Repeat("[", 1000) + "\na = 1", strings.Repeat("[a]\n", 1000),
		`x = "` + strings.Repeat("[.", 1000) + `"`, `x = '` + strings.Repeat("{.", 1000) + `' # {{`,
		`x = "\"` + strings.Repeat("[", 1000) + `"`, `x = '\'` + strings.Repeat("]", 1000) + "\ny = 1",
		`x = """` + strings.Repeat("[.\n", 1000) + `"" \""" ["""`, `x = '''` + strings.Repeat("[.\n'", 1000) + `'''''`,
		"x = [" + strings.Repeat("0.5, ", 1000) + "]", "[[precision.rows]]\n" + strings.Repeat("scope = \"a.b\"\n[[precision.rows]]\n", 1000),
		`x = """"""`, `x = """`, `x = "`, `x = "\`,
	} {
		require.NoError(t, CheckDepth(text), "%.80q", text)
	}
	for _, text := range []string{
		"\n\n" + deep + "a.b = 1", strings.Repeat(`"a" . `, maxDepth+1) + "a = 1", strings.Repeat("'#'.", maxDepth+1) + "b = 1",
		"x = " + strings.Repeat("[", maxDepth+1), "x = " + strings.Repeat("{a = ", maxDepth+1), "x = " + strings.Repeat("[#]\n", maxDepth+1),
		"[" + deep + "a.b]", `x = [""" """, ` + strings.Repeat("[", maxDepth), `x = ["""a"""", ` + strings.Repeat("[", maxDepth),
		`x = ["\\", ` + strings.Repeat("[", maxDepth), `x = ['\', ` + strings.Repeat("[", maxDepth), "x = \"\n" + strings.Repeat("[", maxDepth+1),
		"x = '''\n''' \n" + deep + "a.b = 1",
	} {
		require.ErrorContains(t, CheckDepth(text), "more than 32 nested lists, tables or names of a key", "%.80q", text)
	}
	require.ErrorContains(t, CheckDepth("x = '''\n''' \n"+deep+"a.b = 1"), "line 3: ")
}

// A file of the largest size takes little memory, whatever it contains.
func TestHostileFile(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{strings.Repeat("a.", maxFile/2-2) + "a=1", "hostile.toml, line 1: more than 32"},
		{"x = " + strings.Repeat("{a=", maxFile/3-2), "hostile.toml, line 1: more than 32"},
		{"x = " + strings.Repeat("[", maxFile-4), "hostile.toml, line 1: more than 32"},
		{strings.Repeat(strings.Repeat("a.", maxDepth)+"a={}\n", maxFile/(2*maxDepth+6)), "is given twice"},
		{strings.Repeat("[[precision.rows]]\n", maxFile/19), ""},
		{"data.paths = [" + strings.Repeat(`"",`, maxFile/3-6) + "]", ""},
	} {
		require.LessOrEqual(t, len(c.text), maxFile)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := parse("hostile.toml", c.text)
		runtime.ReadMemStats(&after)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(256<<20), c.want)
		if c.want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, c.want)
		require.Less(t, len(err.Error()), 1000)
	}
	_, err := parseValue(sections[0].keys[0], `"`+strings.Repeat("[", 50))
	require.NoError(t, err, "a string")
	k, _ := findKey("precision.rows")
	_, err = parseValue(k, strings.Repeat("{scope=", 100_000))
	require.ErrorContains(t, err, "more than 32")
}
