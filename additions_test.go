package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var patched = regexp.MustCompile(`(?m)^\+\+\+ b/(.+)$`)

// Each patch adds one thing to the tree. The tree with the patch builds and trains ten steps
// with it, and the patch touches no more files than CONTRIBUTING.md says.
func TestAdditionsTouchFewFiles(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git, which applies the patches, is not installed")
	}
	for name, addition := range map[string]struct {
		files int
		train []string
	}{
		// An element op and its gradient, used as an activation: the ops with their loops in Go
		// and CUDA C++, their graphs on gaudi, their conformance cases, a row of activations.
		"op":     {4, []string{"model.activation=squared-relu", "--recipe", "fp8-delayed"}},
		"recipe": {1, []string{"--recipe", "fp8-up-bf16"}},
	} {
		t.Run(name, func(t *testing.T) {
			binary, files := patch(t, filepath.Join("testdata", "additions", name+".patch"))
			require.LessOrEqual(t, files, addition.files)
			args := append([]string{
				"train", "--backend", "emu", "--steps", "10", "--out", filepath.Join(t.TempDir(), "run"),
				"data.paths=README.md", "data.seq=32", "train.micro_batch=4", "model.layers=1", "model.dim=32", "model.heads=2", "model.kv_heads=2", "model.ffn=48",
			}, addition.train...)
			out, err := exec.Command(binary, args...).CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.Contains(t, string(out), "step-00000010")
		})
	}
}

// patch builds the command with a patch, through an overlay, and returns its path and the
// number of files that the patch changes.
func patch(t *testing.T, name string) (binary string, files int) {
	t.Helper()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	dir, err := os.Getwd()
	require.NoError(t, err)
	temp, replace := t.TempDir(), map[string]string{}
	for _, m := range patched.FindAllStringSubmatch(string(text), -1) {
		target := filepath.Join(temp, m[1])
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
	require.NoError(t, err, "%s does not apply; make it anew with git diff: %s", name, out)
	overlay := filepath.Join(temp, "overlay.json")
	list, err := json.Marshal(map[string]any{"Replace": replace})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(overlay, list, 0o600))
	binary = filepath.Join(temp, "octet")
	out, err = exec.Command("go", "build", "-buildvcs=false", "-overlay", overlay, "-o", binary, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return binary, len(replace)
}

// The number of files that name one format, granularity or collective is a lower bound of
// those that another one touches. It must not grow.
func TestFewFilesNameAFormat(t *testing.T) {
	for name, limit := range map[string]int{"E5M2": 68, "By1x128": 2, "(?i:AllGather)": 20} {
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
