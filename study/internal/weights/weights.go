// Package weights edits the weights of trained models, for experiments that start from them.
package weights

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"octet/checkpoint"
	"octet/fp8"
	"octet/train"
)

// Model holds a model's tensors by name, in FP32.
type Model struct {
	Config  checkpoint.Config
	Tensors map[string][]float32
	list    []checkpoint.Tensor // names, shapes and order
}

// Open reads a checkpoint or a Hugging Face folder.
func Open(path string) (m *Model, err error) {
	config, tensors, err := checkpoint.OpenModel(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, tensors.Close()) }()
	m = &Model{Config: config, Tensors: map[string][]float32{}, list: tensors.List()}
	for _, t := range m.list {
		if m.Tensors[t.Name], err = (train.CheckpointWeights{Model: tensors}).Param(t.Name); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// Clone returns a copy, whose tensors are copies too.
func (m *Model) Clone() *Model {
	c := &Model{Config: m.Config, Tensors: maps.Clone(m.Tensors), list: m.list}
	for name, x := range c.Tensors {
		c.Tensors[name] = slices.Clone(x)
	}
	return c
}

// Cosines returns, for each channel of a layer's MLP, the cosine of the angle between its rows of
// up_proj and gate_proj; 0 if one is 0.
func (m *Model) Cosines(layer int) (list []float64) {
	at := fmt.Sprintf("model.layers.%d.mlp.", layer)
	up, gate, dim := m.Tensors[at+"up_proj.weight"], m.Tensors[at+"gate_proj.weight"], m.Config.HiddenSize
	for row := 0; row < len(up); row += dim {
		var ug, uu, gg float64
		for i := row; i < row+dim; i++ {
			u, g := float64(up[i]), float64(gate[i])
			ug += u * g
			uu += u * u
			gg += g * g
		}
		cosine := 0.0
		if uu > 0 && gg > 0 {
			cosine = ug / math.Sqrt(uu*gg)
		}
		list = append(list, cosine)
	}
	return list
}

// Save writes a folder that model.init reads into dir, and returns its path.
func (m *Model) Save(dir string) (string, error) {
	c := checkpoint.Contents{Config: m.Config, State: struct{}{}}
	for _, t := range m.list {
		var b bytes.Buffer
		if err := binary.Write(&b, binary.LittleEndian, m.Tensors[t.Name]); err != nil {
			return "", err
		}
		c.Model = append(c.Model, checkpoint.Tensor{Name: t.Name, DType: fp8.F32, Shape: t.Shape, Data: checkpoint.Bytes(b.Bytes())})
	}
	return checkpoint.Save(dir, 0, c)
}
