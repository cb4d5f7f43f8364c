package train

import "octet/backend"

// This file reads and writes tensors that are sharded over the ranks. Checkpoints and
// changes of recipe use the full tensors.

// listShards lists the sharded tensors: masters, moments, and their scales per block.
func (j *Job) listShards() {
	j.sharded = map[*backend.Tensor]bool{}
	for _, p := range j.Model.Params {
		for _, t := range []*backend.Tensor{p.Master, j.optimizer.m1[p], j.optimizer.m2[p]} {
			j.sharded[t] = p.Sharded()
			if t.Block != backend.PerTensor {
				j.sharded[t.Scale] = p.Sharded()
			}
		}
	}
}

// shardCount returns the number of equal shards of a tensor, 1 if it is replicated.
func (j *Job) shardCount(t *backend.Tensor) int {
	if j.sharded[t] {
		return j.Config.shards()
	}
	return 1
}

// wholeShape returns the shape of the full tensor.
func (j *Job) wholeShape(t *backend.Tensor) []int {
	return append([]int{j.shardCount(t) * t.Shape[0]}, t.Shape[1:]...)
}

// wholeElems returns the number of elements of the full tensor.
func (j *Job) wholeElems(t *backend.Tensor) int { return j.shardCount(t) * t.Elems() }

// wholeBytes returns the size of the full tensor.
func (j *Job) wholeBytes(t *backend.Tensor) int64 { return int64(j.shardCount(t)) * t.Bytes() }

// read returns a full tensor, from the ranks that hold its shards or from rank 0.
func (t *Trainer) read(from *backend.Tensor) ([]byte, error) {
	raw := make([]byte, t.wholeBytes(from))
	return raw, t.readInto(from, raw)
}

func (t *Trainer) readInto(from *backend.Tensor, raw []byte) error {
	n := int(from.Bytes())
	for i := range t.shardCount(from) {
		if err := t.ranks[i].backend.Read(from, raw[i*n:(i+1)*n]); err != nil {
			return err
		}
	}
	return nil
}

// write writes a full tensor to all ranks, to each rank its shard.
func (t *Trainer) write(to *backend.Tensor, raw []byte) error {
	n := len(raw) / t.shardCount(to)
	for i, r := range t.ranks {
		part := i % t.shardCount(to) * n
		if err := r.backend.Write(to, raw[part:part+n]); err != nil {
			return err
		}
	}
	return nil
}
