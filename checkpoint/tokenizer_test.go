package checkpoint

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/tokenizer"
)

// The files of a tokenizer are part of a checkpoint, and verified with it.
func TestTokenizerInACheckpoint(t *testing.T) {
	tok := tokenizer.OfBytes()
	c := Contents{Config: tiny, State: state{1, 2}, Tokenizer: tok.Files}
	path, err := Save(t.TempDir(), 3, c)
	require.NoError(t, err)
	require.NoError(t, Verify(path))
	b, err := tokenizer.OpenBundle(path)
	require.NoError(t, err)
	require.Equal(t, tok.Files, b.Files)
	for _, f := range tok.Files {
		name := filepath.Join(path, f.Name)
		require.NoError(t, os.WriteFile(name, append([]byte(" "), f.Data[1:]...), 0o600))
		require.ErrorContains(t, Verify(path), f.Name)
		require.NoError(t, os.WriteFile(name, f.Data, 0o600))
	}
}

// A manifest lists files of a tokenizer last, each once, in one order.
func TestManifestOfATokenizer(t *testing.T) {
	names := func(version int, list ...string) manifest {
		m := manifest{Format: manifestFormat, Version: version}
		for _, name := range list {
			m.Files = append(m.Files, fileEntry{Name: name})
		}
		return m
	}
	whole := func(more ...string) manifest {
		return names(wholeVersion, append(append([]string{}, wholeFiles...), more...)...)
	}
	require.NoError(t, whole("tokenizer.json", "tokenizer_config.json").checkNames())
	sharded := names(shardedVersion, ConfigFile, StateFile, shardName(0, 2), shardName(1, 2), "tokenizer.model")
	require.NoError(t, sharded.checkNames())
	require.Equal(t, 2, sharded.ranks())
	for _, m := range []manifest{
		whole("tokenizer.json", "tokenizer.json"),
		whole("tokenizer_config.json", "tokenizer.json"),
		whole("tokenizer.json", "../tokenizer.json"),
		whole("vocab.json"),
		names(shardedVersion, ConfigFile, StateFile, "tokenizer.json", shardName(0, 1)),
		names(shardedVersion, ConfigFile, StateFile, "tokenizer.json"),
	} {
		require.Error(t, m.checkNames())
	}
}
