package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A damaged model is refused by every command that would use it, in one sentence
// that names the file.
func TestDamagedModel(t *testing.T) {
	text := corpus(t, 20_000)
	dir := filepath.Join(t.TempDir(), "run")
	succeed(t, trainArgs(text, dir, 2)...)
	checkpoint := filepath.Join(dir, "checkpoints", "step-00000002")
	model := filepath.Join(checkpoint, "model.safetensors")
	config := filepath.Join(checkpoint, "config.json")
	manifest := filepath.Join(checkpoint, "MANIFEST.json")
	for _, damage := range []struct {
		file, want string
		do         func(content string) error
	}{
		{model, "model.safetensors: its bytes have changed", func(content string) error {
			return os.WriteFile(model, []byte(content[:5000]+"\x00"+content[5001:]), 0o600)
		}},
		{model, "model.safetensors: 5000 bytes, the manifest says", func(content string) error {
			return os.WriteFile(model, []byte(content[:5000]), 0o600)
		}},
		{config, "config.json: missing", func(string) error { return os.Remove(config) }},
		{manifest, "MANIFEST.json", func(string) error { return os.Remove(manifest) }},
	} {
		content := read(t, damage.file)
		require.NoError(t, damage.do(content))
		fresh := filepath.Join(t.TempDir(), "fresh")
		for _, args := range [][]string{
			{"eval", checkpoint},
			{"eval", dir},
			{"generate", checkpoint, "--prompt", "the "},
			{"generate", dir, "--prompt", "the "},
			{"export", checkpoint, "--out", fresh},
			{"inspect", checkpoint},
			{"inspect", dir},
			trainArgs(text, fresh, 2, "model.init="+checkpoint),
		} {
			status, stdout, stderr := octet(args...)
			require.Equal(t, exitInput, status, args)
			require.Empty(t, stdout)
			said := strings.SplitAfter(stderr, "\n")
			if len(said) > 2 { // a start that takes long says what it is about first
				require.Contains(t, said[0], "octet: training on ")
				said = said[1:]
			}
			requireOneSentence(t, strings.Join(said, ""))
			require.Contains(t, stderr, damage.want, args)
			require.NoDirExists(t, fresh)
		}
		require.NoError(t, os.WriteFile(damage.file, []byte(content), 0o600))
	}
	succeed(t, "eval", checkpoint)
}
