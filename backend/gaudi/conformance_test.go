package gaudi

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/conformance"
)

// The interpreted graphs of all ops pass the conformance cases of all backends.
func TestConformanceOfGraphs(t *testing.T) {
	for _, model := range []string{"gaudi2", "gaudi3,pairs=mixed", "gaudi3,e4m3=240"} {
		t.Run(model, func(t *testing.T) {
			passed, declined := 0, 0
			for c := range conformance.Cases() {
				switch err := c.Run(t.Context(), interpreterDriver(model), ""); {
				case errors.Is(err, backend.ErrUnsupported):
					declined++
				default:
					passed++
					if err != nil {
						t.Error(err)
					}
				}
			}
			t.Logf("%d cases, %d declined", passed, declined)
			require.Greater(t, passed, 200)
		})
	}
}
