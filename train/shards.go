package train

import "octet/backend"

// This file is where tensors that ranks hold in parts become whole: checkpoints and
// changes of recipe see them so.

// parts is in how many equal parts the ranks hold a tensor: 1 if each has all of it.
func (j *Job) parts(t *backend.Tensor) int {
	if j.sharded[t] {
		return j.Config.shards()
	}
	return 1
}

// wholeShape is the shape of all parts together.
func (j *Job) wholeShape(t *backend.Tensor) []int {
	return append([]int{j.parts(t) * t.Shape[0]}, t.Shape[1:]...)
}

// wholeElems is the number of elements of all parts together.
func (j *Job) wholeElems(t *backend.Tensor) int { return j.parts(t) * t.Elems() }

// wholeBytes is the size of all parts together.
func (j *Job) wholeBytes(t *backend.Tensor) int64 { return int64(j.parts(t)) * t.Bytes() }

// read is a whole tensor, off the ranks that have it in parts or off the first.
func (t *Trainer) read(from *backend.Tensor) ([]byte, error) {
	raw := make([]byte, t.wholeBytes(from))
	return raw, t.readInto(from, raw)
}

func (t *Trainer) readInto(from *backend.Tensor, raw []byte) error {
	n := int(from.Bytes())
	for i := range t.parts(from) {
		if err := t.ranks[i].backend.Read(from, raw[i*n:(i+1)*n]); err != nil {
			return err
		}
	}
	return nil
}

// write gives a whole tensor to all ranks, to each its part.
func (t *Trainer) write(to *backend.Tensor, raw []byte) error {
	n := len(raw) / t.parts(to)
	for i, r := range t.ranks {
		part := i % t.parts(to) * n
		if err := r.backend.Write(to, raw[part:part+n]); err != nil {
			return err
		}
	}
	return nil
}
