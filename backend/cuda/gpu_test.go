//go:build cuda && cgo && linux

package cuda

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/csrc/standin"
)

// Sources are compiled together, each once: loaded ones are not compiled again, and one
// that does not compile leaves the others unloaded.
func TestSourcesAreLoadedOnce(t *testing.T) {
	standin.Only(t, "NVRTC needs no C++ compiler to take away")
	standIns(t)
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	g := openOne(t).gpu
	sources := []string{"scale.cu", "loss.cu", "scale.cu"}
	load := func(names ...string) error {
		var sources []source
		for _, name := range names {
			sources = append(sources, source{name: name})
		}
		cubins, err := g.compile(sources...)
		if err != nil {
			return err
		}
		return g.load(cubins)
	}
	require.NoError(t, load(sources...))
	require.ElementsMatch(t, []source{{name: "loss.cu"}, {name: "scale.cu"}}, slices.Collect(maps.Keys(g.modules)))
	first := maps.Clone(g.modules)

	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("CXX", "/nowhere/g++")
	require.NoError(t, load(sources...))
	err := load("loss.cu", "rope.cu")
	require.ErrorContains(t, err, "compile rope.cu for sm_90a")
	require.ErrorContains(t, load("absent.cu"), "package kernels has no source absent.cu")
	require.Equal(t, first, g.modules)
}
