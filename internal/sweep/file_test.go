package sweep

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/internal/config"
)

// all has every key of a sweep file.
const all = `config = "base.toml"
recipes = ["bf16", "recipes/mine.toml"]
seeds = [3, 1, 2]
backends = ["emu", "emu:h100"]
data = [["a.txt"], ["b/", "c.txt"]]
set = ["train.steps=5"]
[grid]
"optimizer.lr" = [1e-3, 3e-3]
train.accumulate = [1, 2]
[[variants]]
name = "m1 e5m2"
set = ["recipe=fp8-smooth", "precision.m1=e5m2"]
[[conditions]]
name = "long"
set = ["train.steps=9"]
`

func TestParse(t *testing.T) {
	f, err := parse(all)
	require.NoError(t, err)
	require.Equal(t, "base.toml", f.Config)
	require.Equal(t, []int64{3, 1, 2}, f.Seeds)
	require.Equal(t, [][]string{{"a.txt"}, {"b/", "c.txt"}}, f.Data)
	require.Equal(t, []gridKey{{"optimizer.lr", []string{"0.001", "0.003"}}, {"train.accumulate", []string{"1", "2"}}}, f.grid)
	require.Equal(t, []settings{{"m1 e5m2", []string{"recipe=fp8-smooth", "precision.m1=e5m2"}}}, f.Variants)
	require.Equal(t, []settings{{"long", []string{"train.steps=9"}}}, f.Conditions)
}

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"recipe = [\"bf16\"]":                   "unknown key recipe; did you mean recipes?",
		"[[variants]]\nnames = \"a\"\nset = []": "unknown key variants.names; did you mean variants.name?",
		"steps = 5":                             `unknown key steps; for a configuration key write set = ["train.steps=VALUE"]`,
		"micro_batch = 5":                       `for a configuration key write set = ["train.micro_batch=VALUE"]`,
		"zzz = 1":                               "a sweep file has the keys config, recipes,",
		"[extra]\na = 1":                        "unknown key extra;",
		"seeds = [1, 1]":                        "seeds lists 1 twice",
		"\nseeds = \"1\"":                       "line 2: seeds must be a list, not a text",
		"seeds = [1.5]":                         "line 1: seeds must be a whole number, not a fraction",
		"[[variants]]\nset = []":                "variants: variant 1 has no name",
		"[[conditions]]\nset = []":              "conditions: condition 1 has no name",
		"[[conditions]]\nname = \"x\"\n[[conditions]]\nname = \"x\"": "conditions lists x twice",
		"seeds = [":                                     "line 1: ",
		"recipes = [\"bf16\", \"\"]":                    "recipes and variants: value 2 is empty",
		"recipes = [\"a/x.toml\", \"b/x.toml\"]":        "recipes and variants lists x twice",
		"recipes = [\"x\"]\n[[variants]]\nname = \"x\"": "recipes and variants lists x twice",
		"data = [[\"a\"], []]":                          "data: value 2 names no file",
		"grid = 1":                                      "grid is a table",
		"[grid]\nx = 1":                                 "grid: x must be a list of values",
		"[grid]\nx = []":                                "grid: x must be a list of values",
		"[grid]\nseed = [1, 2]":                         "grid: write the list of seeds as seeds = [1, 2]",
		"[grid]\nx = [1, 1.0, 1]":                       "grid: x lists 1 twice",
		"[grid]\nx = [{a = 1}]":                         "is not a number, a text or a list of these",
		"[grid]\nx = [[{a = 1}]]":                       "is not a number, a text or a list of these",
		strings.Repeat("[", 100):                        "nest",
	} {
		_, err := parse(text)
		require.ErrorContains(t, err, want, text)
	}
	// All problems are listed.
	_, err := parse("zzz = 1\nyyy = 2\nseeds = [1, 1]\nbackends = [\"emu\", \"emu\"]")
	for _, want := range []string{"zzz", "yyy", "seeds lists 1", "backends lists emu"} {
		require.ErrorContains(t, err, want)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(all)
	f.Add("[grid.optimizer]\nlr = [1, \"a\", [1]]\n[grid.\"model\"]\nx = [{a=1}]")
	f.Add("[[grid]]\na=[1]\n[[grid]]\nb=[2]")
	f.Fuzz(func(t *testing.T, text string) {
		parsed, err := parse(text)
		if err != nil {
			return
		}
		for _, k := range parsed.grid {
			require.NotEmpty(t, k.values)
			for _, v := range k.values {
				require.NotContains(t, v, "\n")
			}
		}
		parsed.dimensions()
	})
}

// small is the smallest model that every recipe can train.
const small = `set = ["model.layers=1", "model.dim=32", "model.heads=2", "model.kv_heads=1", "model.ffn=48", "data.seq=32", "train.micro_batch=2", "train.steps=2"]` + "\n"

// readVariants returns the variants of a file in a new folder.
func readVariants(t *testing.T, text string) (dir string, list []*Variant, err error) {
	t.Helper()
	dir = t.TempDir()
	path := filepath.Join(dir, "sweep.toml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	f, err := readFile(path)
	require.NoError(t, err)
	list, err = f.variants()
	return dir, list, err
}

func TestVariants(t *testing.T) {
	dir, list, err := readVariants(t, small+`
recipes = ["bf16"]
seeds = [7, 8]
data = [["a.txt", "b.txt"]]
backends = ["emu", "emu:h100"]
[grid]
"optimizer.lr" = [1e-3, 3e-3]
"data.val_bytes" = [300]
[[variants]]
name = "m1 e5m2"
set = ["recipe=fp8-smooth", "precision.m1=e5m2"]
`)
	require.NoError(t, err)
	var names, folders, baselines []string
	for _, v := range list {
		names, folders = append(names, v.Name), append(folders, v.Folder)
		if v.Baseline == nil {
			baselines = append(baselines, "")
		} else {
			baselines = append(baselines, v.Baseline.Name)
		}
		require.Equal(t, []int64{7, 8}, v.Seeds)
		require.Equal(t, []string{filepath.Join(dir, "a.txt"), filepath.Join(dir, "b.txt")}, v.Config.Data.Paths)
		require.EqualValues(t, 7, v.Config.Seed)
		require.EqualValues(t, 8, v.configOf(8).Seed)
	}
	// Single values are in the folders only.
	require.Equal(t, []string{
		"bf16 on emu lr=0.001", "bf16 on emu lr=0.003", "bf16 on emu:h100 lr=0.001", "bf16 on emu:h100 lr=0.003",
		"m1 e5m2 on emu lr=0.001", "m1 e5m2 on emu lr=0.003", "m1 e5m2 on emu:h100 lr=0.001", "m1 e5m2 on emu:h100 lr=0.003",
	}, names)
	require.Equal(t, append([]string{"", "", "", ""}, names[:4]...), baselines)
	require.Equal(t, "bf16_on_emu_data=a.txt+b.txt_lr=0.001_val_bytes=300", folders[0])
	require.Equal(t, "m1_e5m2_on_emu_h100_data=a.txt+b.txt_lr=0.003_val_bytes=300", folders[7])
	require.Equal(t, "emu:h100", list[7].Backend)
	require.Equal(t, 3e-3, list[7].Config.Optimizer.LR)
	require.Equal(t, "e5m2", list[7].Config.Precision.M1)

	// The baseline is a value of the first dimension that has several.
	_, list, err = readVariants(t, small+"recipes = [\"bf16\"]\n[grid]\n\"optimizer.lr\" = [1e-3, 3e-3]\n\"train.lr\" = [1]\n")
	require.ErrorContains(t, err, "unknown key train.lr")
	require.Len(t, list, 2)
	require.Same(t, list[0], list[1].Baseline)
	require.Equal(t, "optimizer.lr=0.003", list[1].Name, "another key has the same last part")

	// Conditions are crossed with the recipes, and the baseline has the same condition.
	_, list, err = readVariants(t, small+"recipes = [\"bf16\", \"fp8-smooth\"]\n[[conditions]]\nname = \"plain\"\n[[conditions]]\nname = \"all moments\"\nset = [\"precision.state_scope=all\"]\n")
	require.NoError(t, err)
	require.Len(t, list, 4)
	require.Equal(t, "fp8-smooth all moments", list[3].Name)
	require.Equal(t, "all", list[3].Config.Precision.StateScope)
	require.Same(t, list[1], list[3].Baseline)

	// Seeds alone: one variant with the name of its recipe.
	_, list, err = readVariants(t, small+"seeds = [1, 2]\n")
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, list[0].Config.Recipe, list[0].Name)
	require.Nil(t, list[0].Baseline)
}

// Relative paths begin in the folder of the sweep file.
func TestPathsOfTheFile(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"s.toml":           small + "config = \"base.toml\"\nrecipes = [\"bf16\", \"more/mine.toml\"]\n",
		"base.toml":        "[data]\npaths = [\"a.txt\"]\n",
		"more/mine.toml":   "recipe = \"fp8-smooth\"\n[precision]\nhistory = 7\n",
		config.RunFile:     "",
		"more/other/a.txt": "",
	} {
		path := filepath.Join(dir, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	f, err := readFile(filepath.Join(dir, "s.toml"))
	require.NoError(t, err)
	list, err := f.variants()
	require.NoError(t, err)
	require.Equal(t, "mine", list[1].Name)
	require.Equal(t, "mine", list[1].Config.Recipe)
	require.Equal(t, []string{filepath.Join(dir, "a.txt")}, list[1].Config.Data.Paths)
}

func TestVariantsRefuse(t *testing.T) {
	for text, want := range map[string]string{
		"":                                      "the sweep has one run",
		"recipes = [\"bf16\"]\nseeds = [3]":     "the sweep has one run",
		"recipes = [\"bf61\", \"fp8\"]":         "bf61: ",
		"seeds = [1, 2]\nset = [\"seed=3\"]":    "seed is given twice",
		"[grid]\n\"optimizer.lrr\" = [1, 2]":    "lrr=1: optimizer.lrr=1: unknown key optimizer.lrr; did you mean optimizer.lr?",
		"[grid]\n\"optimizer.lr\" = [1, \"a\"]": "lr=a: ",
		"[[variants]]\nname = \"a b\"\n[[variants]]\nname = \"a_B\"\nset = [\"seed=2\"]":           `"a b" and "a_B" have one folder`,
		"[[variants]]\nname = \"" + strings.Repeat("x", 201) + "\"\n[[variants]]\nname = \"a\"":    "more than 200 characters",
		"[grid]\n\"train.seq\" = [" + numbers(101) + "]\n\"train.steps\" = [" + numbers(100) + "]": "more than 10000 runs",
	} {
		_, _, err := readVariants(t, text)
		require.ErrorContains(t, err, want, text)
	}
	// An error of all variants is listed once, beside those of single ones.
	_, _, err := readVariants(t, "recipes = [\"bf16\", \"fp8-smooth\", \"nonsense\"]\nset = [\"train.stps=3\"]")
	require.ErrorContains(t, err, "bf16 and 2 more: train.stps=3: unknown key")
	require.Equal(t, 1, strings.Count(err.Error(), "train.stps=3:"))
}

// numbers returns the numbers 0 to n-1, each with a comma.
func numbers(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%d,", i)
	}
	return b.String()
}

// TestStudies resolves the sweeps behind the tables in docs/.
func TestStudies(t *testing.T) {
	paths, err := filepath.Glob("../../study/sweeps/*.toml")
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	for _, path := range paths {
		f, err := readFile(path)
		require.NoError(t, err)
		_, err = f.variants()
		require.NoError(t, err, path)
	}
}
