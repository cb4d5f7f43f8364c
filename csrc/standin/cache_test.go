package standin

import (
	"bytes"
	"crypto/sha256"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCache(t *testing.T) {
	c := cache{filepath.Join(t.TempDir(), "octet", "standin")}
	from, other := sha256.Sum256([]byte("source")), sha256.Sum256([]byte("another"))
	code := []byte("code")
	require.Nil(t, c.load("lib", from), "no folder")
	c.store("lib", from, code)
	require.Equal(t, code, c.load("lib", from))
	require.Nil(t, c.load("lib", other))
	require.Nil(t, c.load("bil", from))
	c.store("lib", other, []byte("more"))
	require.Nil(t, c.load("lib", from))
	require.Equal(t, "more", string(c.load("lib", other)))
	list, err := os.ReadDir(c.dir)
	require.NoError(t, err)
	require.Len(t, list, 1, "store leaves no temporary file")

	file := filepath.Join(c.dir, "lib")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	for i := range text {
		require.NoError(t, os.WriteFile(file, text[:i], 0o600))
		require.Nil(t, c.load("lib", other), "cut to %d bytes", i)
		damaged := bytes.Clone(text)
		damaged[i] ^= 1
		require.NoError(t, os.WriteFile(file, damaged, 0o600))
		require.Nil(t, c.load("lib", other), "byte %d", i)
	}

	none := cache{}
	none.store("lib", from, code)
	require.Nil(t, none.load("lib", from))
	nowhere := cache{filepath.Join(file, "below a file")}
	nowhere.store("lib", from, code)
	require.Nil(t, nowhere.load("lib", from))
}

// A concurrent reader gets one of the libraries whole, or nil.
func TestCacheConcurrently(t *testing.T) {
	c := cache{t.TempDir()}
	from := [][sha256.Size]byte{sha256.Sum256([]byte("a")), sha256.Sum256([]byte("b"))}
	code := [][]byte{bytes.Repeat([]byte("a"), 100_000), bytes.Repeat([]byte("b"), 200_000)}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for range 20 {
				c.store("lib", from[i%2], code[i%2])
				if got := c.load("lib", from[i%2]); got != nil && !bytes.Equal(code[i%2], got) {
					t.Error("load returned a partly written library")
				}
			}
		})
	}
	all.Wait()
	require.True(t, c.load("lib", from[0]) != nil || c.load("lib", from[1]) != nil)
}

// Build takes a library from the cache only if its sources and compiler are the same.
func TestBuildUsesTheCache(t *testing.T) {
	path, err := exec.LookPath(compiler())
	if err != nil || runtime.GOOS != "linux" {
		t.Skip("no C compiler for Linux")
	}
	const name = "libhlml"
	was := userCache
	t.Cleanup(func() { userCache = was; built.Delete(name) })
	userCache = cache{t.TempDir()}
	build := func() []byte {
		built.Delete(name)
		code, err := os.ReadFile(Build(t, name))
		require.NoError(t, err)
		return code
	}
	compiled := build()
	from := sourceSum(t, name)
	require.Equal(t, compiled, userCache.load(name, from))
	userCache.store(name, from, []byte("cached"))
	require.Equal(t, "cached", string(build()))
	userCache.store(name, sha256.Sum256(nil), []byte("other sources"))
	require.Equal(t, compiled, build())
	require.Equal(t, compiled, userCache.load(name, from))

	// Another compiler, and other sources.
	require.NotEqual(t, from, sourceSum(t, "libnccl"))
	another := filepath.Join(t.TempDir(), "cc")
	require.NoError(t, os.Symlink(path, another))
	t.Setenv("CC", another)
	require.NotEqual(t, from, sourceSum(t, name))
}
