package infer_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"octet/data"
	"octet/infer"
	"octet/recipe"
)

// A window whose halves are documents has the losses of windows of half the length, although
// the positions of its second half differ.
func TestEvaluateDocuments(t *testing.T) {
	m := trainSmall(t, "bf16")
	exact, err := recipe.Lookup("fp32")
	require.NoError(t, err)
	text := make(data.Text, 641) // the end of each document is the 16th byte
	copy(text, m.val)
	for i := 15; i < len(text); i += 16 {
		text[i] = 0
	}
	loss := func(w infer.Windows) float64 {
		e, err := infer.NewEvaluator(t.Context(), m.config.ModelConfig(), exact, m.weights, device(t), w, nil)
		require.NoError(t, err)
		loss, err := e.Evaluate(t.Context(), text, nil)
		require.NoError(t, err)
		return loss
	}
	apart := loss(infer.Windows{Batch: 4, Seq: 16})
	require.InEpsilon(t, apart, loss(infer.Windows{Batch: 4, Seq: 32, Documents: true}), 1e-6)
	require.InEpsilon(t, apart, loss(infer.Windows{Batch: 3, Seq: 64, Documents: true}), 1e-6)
	require.Greater(t, apart-loss(infer.Windows{Batch: 4, Seq: 32}), 1e-4)
}
