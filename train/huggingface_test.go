package train

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/checkpoint"
	"octet/fp8"
	"octet/nn"
)

// Whatever of the model differs is told by the key that the user has for it.
func TestSameShape(t *testing.T) {
	have := HFConfig(Default())
	require.NoError(t, sameShape(have, have))
	for i := range reflect.TypeOf(have).NumField() {
		other := have
		switch f := reflect.ValueOf(&other).Elem().Field(i); f.Kind() {
		case reflect.Int:
			f.SetInt(f.Int() + 1)
		case reflect.Float64:
			f.SetFloat(f.Float() + 1)
		case reflect.Bool:
			f.SetBool(!f.Bool())
		default:
			f.SetString("gelu")
		}
		switch name := reflect.TypeOf(have).Field(i).Name; name {
		case "MaxPositionEmbeddings", "TorchDType":
			require.NoError(t, sameShape(have, other), name)
		default:
			require.ErrorContains(t, sameShape(have, other), "its config.json has model.", name)
		}
	}
	other := have
	other.HiddenAct, other.NumHiddenLayers = "gelu", 5
	require.ErrorContains(t, sameShape(other, have), "has model.layers 5, not 3, model.activation gelu, not swiglu")
}

// Weights in FP8 have one scale each, or are refused: codes are no weights.
func TestParamInFP8(t *testing.T) {
	codes := func(name string) checkpoint.Tensor {
		return checkpoint.Tensor{Name: name, DType: fp8.E4M3, Shape: []int{1, 2}, Data: checkpoint.Bytes([]byte{0x38, 0xc0})}
	}
	f32 := func(name string, x ...float32) checkpoint.Tensor {
		return checkpoint.Tensor{Name: name, DType: fp8.F32, Shape: []int{len(x)}, Data: checkpoint.Bytes(fp8.AppendFloats(nil, x...))}
	}
	path, err := checkpoint.Save(t.TempDir(), 1, checkpoint.Contents{
		Config: HFConfig(Default()),
		Model:  []checkpoint.Tensor{codes("a.weight"), f32("a.weight_scale", 0.5), codes("b.weight"), f32("b.weight_scale", 1, 2), codes("c.weight"), f32("d.weight", 3)},
	})
	require.NoError(t, err)
	c, err := checkpoint.Open(path)
	require.NoError(t, err)
	w := CheckpointWeights{Model: c.Model}
	x, err := w.Param("a.weight")
	require.NoError(t, err)
	require.Equal(t, []float32{0.5, -1}, x)
	_, err = w.Param("b.weight")
	require.ErrorContains(t, err, "b.weight has 2 scales")
	_, err = w.Param("c.weight")
	require.ErrorIs(t, err, nn.ErrNoTensor)
	x, err = w.Param("d.weight")
	require.NoError(t, err)
	require.Equal(t, []float32{3}, x)
	require.NoError(t, c.Close())
}
