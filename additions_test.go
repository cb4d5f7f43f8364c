package main

import (
	"cmp"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// addition is a patch that adds one thing to the tree. It touches no more files than CONTRIBUTING.md says.
type addition struct {
	name  string
	files int
	train []string // arguments of ten steps with it
}

// The tree with additions builds and trains with each. Additions to different files share a tree.
func TestAdditionsTouchFewFiles(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git, which applies the patches, is not installed")
	}
	for _, list := range [][]addition{{
		// An element op and its gradient, used as an activation: the ops with their loops in Go
		// and CUDA C++, their graphs on gaudi, their conformance cases, a row of activations.
		{"op", 4, []string{"model.activation=squared-relu", "--recipe", "fp8-delayed"}},
		{"recipe", 1, []string{"--recipe", "fp8-up-bf16"}},
		// A number format and a rule for scales that have names of their own.
		{"format", 2, []string{"--recipe", "testdata/additions/format.toml"}},
		{"scale", 2, []string{"--recipe", "testdata/additions/scale.toml"}},
		// A number format, a granularity and a scale format: by name only, without a patch.
		{"parametric", 0, []string{"--recipe", "testdata/additions/parametric.toml"}},
	}, {
		// Two more ops, in float64 and with a kernel for each instruction set and for CUDA.
		{"kernel", 14, []string{"model.activation=reglu", "--recipe", "fp8-delayed"}},
	}} {
		p := patch(t, list)
		binary := filepath.Join(t.TempDir(), "octet")
		p.run(t, nil, "build", "-buildvcs=false", "-o", binary, ".")
		for _, a := range list {
			t.Run(a.name, func(t *testing.T) {
				require.LessOrEqual(t, p.files[a.name], a.files)
				args := append([]string{
					"train", "--backend", "emu", "--steps", "10", "--out", filepath.Join(t.TempDir(), "run"),
					"data.paths=README.md", "data.seq=32", "train.micro_batch=4", "model.layers=1", "model.dim=32", "model.heads=2", "model.kv_heads=2", "model.ffn=48",
				}, a.train...)
				out, err := exec.Command(binary, args...).CombinedOutput()
				require.NoError(t, err, "%s", out)
				require.Contains(t, string(out), "step-00000010")
				if a.name == "kernel" && !testing.Short() {
					testReGLU(t, p)
				}
			})
		}
	}
}

// testReGLU tests the kernels of kernel.patch: those of emu, and with a C and a C++ compiler
// those of the accelerators, on stand-ins.
func testReGLU(t *testing.T, p patched) {
	p.run(t, []string{"GOOS=linux", "GOARCH=arm64"}, "build", "./backend/emu/simd")
	tests := []struct{ dir, tags, run, cgo string }{
		{"emu/simd", "", "^TestReGLUTwins$", ""},
		{"emu/simd", "noasm", "^TestReGLUTwins$", ""},
		{"emu", "", "^TestConformance$/^reglu", ""},
		{"cuda", "cuda", "^TestConformance$/^reglu", "CGO_ENABLED=1"},
		{"gaudi", "gaudi", "^TestConformanceOnTheStandIn$/^gaudi2$/^reglu", "CGO_ENABLED=1"},
	}
	_, noC := exec.LookPath(cmp.Or(os.Getenv("CC"), "gcc"))
	_, noCXX := exec.LookPath(cmp.Or(os.Getenv("CXX"), "g++"))
	for _, c := range tests {
		if c.cgo != "" && (runtime.GOOS != "linux" || noC != nil || noCXX != nil) {
			continue
		}
		out := p.run(t, []string{c.cgo}, "test", "-vet=off", "-v", "-tags", c.tags, "-run", c.run, "./backend/"+c.dir)
		// With devices, tests that need a stand-in are skipped.
		path := strings.ReplaceAll(strings.Trim(c.run, "^$"), "$/^", "/")
		require.Regexp(t, `(?m)^ *--- (PASS: `+path+`|SKIP: [^/ ]+ )`, out)
	}
}

// patched is the tree with patches, which go reads through an overlay.
type patched struct {
	overlay string
	files   map[string]int // that a patch changes, by its name
}

var changed = regexp.MustCompile(`(?m)^\+\+\+ b/(.+)$`)

const renew = `%[1]s does not fit this tree. Commit your changes, and apply what still fits:
	git apply --3way %[1]s; git reset
Mend the rest, then renew the patch:
	git add -N . && git diff -U1 >new.patch && git reset && git apply -R new.patch && mv new.patch %[1]s
%[2]s`

// patch returns the tree with the patches of a list, those without a file aside.
func patch(t *testing.T, list []addition) patched {
	t.Helper()
	dir, err := os.Getwd()
	require.NoError(t, err)
	temp, replace, files := t.TempDir(), map[string]string{}, map[string]int{}
	for _, a := range list {
		if a.files == 0 {
			continue
		}
		name := filepath.Join("testdata", "additions", a.name+".patch")
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		for _, m := range changed.FindAllStringSubmatch(string(text), -1) {
			files[a.name]++
			target := filepath.Join(temp, m[1])
			require.NotContains(t, replace, filepath.Join(dir, m[1]), "two patches of a tree change a file")
			replace[filepath.Join(dir, m[1])] = target
			require.NoError(t, os.MkdirAll(filepath.Dir(target), 0o700))
			if old, err := os.ReadFile(m[1]); err == nil { // else the patch adds the file
				require.NoError(t, os.WriteFile(target, old, 0o600))
			}
		}
		apply := exec.Command("git", "apply", filepath.Join(dir, name))
		apply.Dir = temp
		apply.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(temp))
		out, err := apply.CombinedOutput()
		require.NoError(t, err, renew, name, out)
	}
	overlay := filepath.Join(temp, "overlay.json")
	text, err := json.Marshal(map[string]any{"Replace": replace})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(overlay, text, 0o600))
	return patched{overlay, files}
}

// run runs a command of go in the patched tree and returns its output.
func (p patched) run(t *testing.T, env []string, command string, args ...string) string {
	t.Helper()
	args = append([]string{"-overlay", p.overlay}, args...)
	c := exec.Command("go", append([]string{command}, args...)...)
	c.Env = append(os.Environ(), env...)
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}

// The number of files that name one format, granularity or collective is a lower bound of
// those that another one touches. It must not grow.
func TestFewFilesNameAFormat(t *testing.T) {
	for name, limit := range map[string]int{"E5M2": 64, "Block1x128": 5, "(?i:AllGather)": 26} {
		names, count := regexp.MustCompile(name), 0
		for _, suffix := range append([]string{".go", ".s"}, inC...) {
			for _, file := range sourcesOf(t, suffix) {
				if !strings.HasSuffix(file, "_test.go") && !strings.HasPrefix(file, "study/") && names.MatchString(read(t, file)) {
					count++
				}
			}
		}
		t.Logf("%d files name %s", count, name)
		require.LessOrEqual(t, count, limit, "%s", name)
	}
}
