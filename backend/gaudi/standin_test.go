//go:build gaudi && cgo && linux

package gaudi

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/conformance"
	"octet/csrc/libsynapse"
	"octet/csrc/standin"
)

// layerOps are the ops of layers, as cases of conformance are called.
var layerOps = []string{
	"embed/", "embedgrad/", "add/", "rmsnorm/", "rmsnormgrad/", "rope/", "attention/", "attentiongrad/", "cachewrite/",
	"swiglu/", "swigluamax/", "swiglugrad/", "activation0/", "activation1/", "activationgrad0/", "activationgrad1/",
	"crossentropy/", "sum/",
}

// The graphs of the ops of layers, compiled and launched by the production shim on a
// stand-in for SynapseAI, on the cases that every backend is held to.
func TestLayersOnTheStandIn(t *testing.T) { conformOnStandIn(t, layerOps, "", "drop") }

// Scales and the optimizer.
func TestUpdatesOnTheStandIn(t *testing.T) {
	conformOnStandIn(t, []string{
		"amax/", "updatescale/", "pushhistory/", "fill/", "smoothscale/",
		"sumsquares/", "stepgate/", "adamw/", "casthealth/", "rowcosine/",
	}, "", "drop")
}

// The amax of these is a cast kernel's, which must not lose a NaN, see store.
func TestCastsOnTheStandIn(t *testing.T) {
	conformOnStandIn(t, []string{"matmul/", "epilogue/", "quantize/"}, "")
}

// conformOnStandIn runs the cases of some ops; nan is what a maximum does with one.
func conformOnStandIn(t *testing.T, ops []string, nan ...string) {
	for _, model := range []string{"gaudi2", "gaudi3"} {
		for _, odd := range nan {
			t.Run(model+odd, func(t *testing.T) {
				t.Setenv("STANDIN_NAN", odd)
				s := onStandIn(t, model)
				ran := map[string]int{}
				for c := range conformance.Cases() {
					op, _, _ := strings.Cut(c.Name, "/")
					if !slices.Contains(ops, op+"/") {
						continue
					}
					if err := c.Run(t.Context(), s.driver(model), ""); !errors.Is(err, backend.ErrUnsupported) {
						ran[op]++
						if err != nil {
							t.Error(err)
						}
					}
				}
				for _, op := range ops {
					require.Positive(t, ran[strings.TrimSuffix(op, "/")], op)
				}
			})
		}
	}
}

// standIn launches units on a stand-in's device.
type standIn struct {
	t       *testing.T
	d       *libsynapse.Device
	stream  *libsynapse.Stream
	host    *libsynapse.Host
	recipes map[string]*libsynapse.Recipe
}

func onStandIn(t *testing.T, model string) *standIn {
	count := map[bool]string{false: "0", true: "1"}
	t.Setenv("STANDIN_GAUDI2", count[model == "gaudi2"])
	t.Setenv("STANDIN_GAUDI3", count[model == "gaudi3"])
	t.Setenv("OCTET_LIBSYNAPSE", standin.Build(t, "libsynapse"))
	d, err := libsynapse.Open(-1)
	require.NoError(t, err)
	require.Equal(t, model, d.Model())
	s := &standIn{t: t, d: d, recipes: map[string]*libsynapse.Recipe{}}
	s.stream, err = d.NewStream()
	require.NoError(t, err)
	s.host, err = d.Host(1 << 20)
	require.NoError(t, err)
	t.Cleanup(func() {
		for _, r := range s.recipes {
			require.NoError(t, r.Close())
		}
		require.NoError(t, s.host.Close())
		require.NoError(t, s.stream.Close())
		require.NoError(t, d.Close())
	})
	return s
}

// driver is the interpreter's, with launches on the stand-in.
func (s *standIn) driver(model string) backend.Driver {
	d := interpreterDriver(model)
	open := d.Open
	d.Open = func(device string, o backend.Options) ([]backend.Backend, error) {
		list, err := open(device, o)
		for _, b := range list {
			b.(*interpreter).launch = s.launch
		}
		return list, err
	}
	return d
}

// launch gives every section memory of its own.
func (s *standIn) launch(u *unit, sections [][]byte) error {
	r, err := s.recipe(u)
	if err != nil {
		return err
	}
	var places []libsynapse.Ptr
	for _, bytes := range sections {
		p := s.alloc(len(bytes))
		places = append(places, p)
		copy(s.host.Bytes(), bytes)
		require.NoError(s.t, s.stream.CopyIn(p, s.host, 0, len(bytes)))
		require.NoError(s.t, s.stream.Synchronize())
	}
	workspace := s.alloc(max(1, int(r.Workspace())))
	if err := errors.Join(r.Launch(s.stream, places, workspace), s.stream.Synchronize()); err != nil {
		return err
	}
	for i, bytes := range sections {
		require.NoError(s.t, s.stream.CopyOut(s.host, 0, places[i], len(bytes)))
		require.NoError(s.t, s.stream.Synchronize())
		copy(bytes, s.host.Bytes())
	}
	for _, p := range append(places, workspace) {
		require.NoError(s.t, s.d.Free(p))
	}
	return nil
}

func (s *standIn) recipe(u *unit) (*libsynapse.Recipe, error) {
	if r := s.recipes[u.key]; r != nil {
		return r, nil
	}
	r, err := libsynapse.Compile(s.d.Type, u.graph, u.name)
	if err == nil {
		s.recipes[u.key] = r
	}
	return r, err
}

func (s *standIn) alloc(bytes int) libsynapse.Ptr {
	p, err := s.d.Alloc(bytes)
	require.NoError(s.t, err)
	return p
}
