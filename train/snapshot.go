package train

import (
	"io"
	"iter"

	"octet/backend"
	"octet/checkpoint"
	"octet/fp8"
	"octet/nn"
	"octet/tokenizer"
)

// Snapshot is a host copy of a rank's part of a checkpoint, in the formats of the device. It
// is taken between two steps and can be written during later ones. The zero value is
// ready for use; the next [Trainer.Snapshot] reuses its memory.
type Snapshot struct {
	// Config is recorded in state.json: values of the configuration, by key.
	Config map[string]string
	// Tokenizer has the files of the corpus's tokenizer.
	Tokenizer []tokenizer.File

	job   *Job
	rank  int
	bytes []byte
	of    map[*backend.Tensor][]byte // ranges of bytes
	state State

	reference reference // of train.objective = "dpo"; it never changes
}

// saved yields the tensors that a snapshot copies.
func (j *Job) saved() iter.Seq[*backend.Tensor] {
	return func(yield func(*backend.Tensor) bool) {
		for _, p := range j.Model.Params {
			if !yield(p.Master) {
				return
			}
		}
		for s := range j.Vars.All() {
			if s.Class == backend.State && !yield(s) {
				return
			}
		}
	}
}

// snapshotBytes returns the memory of a rank's snapshot in bytes.
func (j *Job) snapshotBytes() (n int64) {
	for x := range j.saved() {
		n += x.Bytes()
	}
	return n
}

// CheckpointBytes returns the size of the tensors of a checkpoint, which all ranks write together:
// see [Snapshot.Shard].
func (j *Job) CheckpointBytes() (n int64) {
	whole := func(x *backend.Tensor) int64 {
		return x.Bytes() / int64(x.Elems()) * int64(j.wholeElems(x))
	}
	for _, p := range j.Model.Params {
		n += 4 * int64(p.Rows) * int64(p.Cols())
		if p.Master.DType != fp8.F32 {
			n += whole(p.Master)
		}
	}
	packed := map[*backend.Tensor]bool{}
	for _, x := range j.Model.Packed() {
		packed[x] = true
		if n += 4 * int64(x.Elems()); x == j.Model.ChannelHistory { // whose columns the ranks divide
			n += 4 * int64(x.Elems()) * int64(j.Config.tensor()-1)
		}
	}
	for x := range j.Vars.All() {
		if x.Class == backend.State && !packed[x] {
			n += whole(x)
		}
	}
	return n
}

// arrange assigns every tensor of a job its range of the memory.
func (s *Snapshot) arrange(j *Job) {
	if s.job == j {
		return
	}
	if n := j.snapshotBytes(); int64(cap(s.bytes)) < n {
		s.bytes = make([]byte, n)
	}
	s.job, s.of = j, map[*backend.Tensor][]byte{}
	at := int64(0)
	for x := range j.saved() {
		n := x.Bytes()
		s.of[x] = s.bytes[at:][:n:n]
		at += n
	}
}

// Snapshot copies this rank's part of the state into s. It overwrites the contents of s,
// so a write of these must have finished.
func (t *Trainer) Snapshot(s *Snapshot, octetVersion, backendName string) error {
	if t.Config.Network != nil {
		return ErrOwnNetwork
	}
	if err := t.stateError(); err != nil {
		return err
	}
	s.arrange(t.Job)
	s.rank = t.group.Rank()
	s.state = State{
		Version: stateVersion, Octet: octetVersion, Backend: backendName, Recipe: t.Recipe.Name,
		Step: t.step, Skipped: t.skipped, Seed: t.Config.Seed, Position: t.device.loader.Position(),
		Rewinds: t.rewinds, Spikes: t.spikes.clone(), Config: s.Config,
	}
	if s.reference = t.reference; s.reference.train != nil {
		s.state.ReferenceSeq = t.Config.Data.Seq
	}
	for x := range t.saved() {
		if err := t.device.Read(x, s.of[x]); err != nil {
			return err
		}
	}
	return nil
}

// Contents returns the snapshot of a run with one rank as checkpoint contents, valid until s is
// overwritten. Values are converted when they are written.
func (s *Snapshot) Contents() checkpoint.Contents {
	shard := s.Shard()
	whole := func(list []checkpoint.Rows) (tensors []checkpoint.Tensor) {
		for _, r := range list {
			tensors = append(tensors, r.Tensor)
		}
		return tensors
	}
	return checkpoint.Contents{
		Config: s.HFConfig(), State: s.state, Model: whole(shard.Model), Optimizer: whole(shard.Optimizer),
		Tokenizer: s.Tokenizer,
	}
}

// HFConfig returns the contents of the checkpoint's config.json.
func (s *Snapshot) HFConfig() checkpoint.Config { return HFConfig(s.job.Config) }

// State returns the contents of the checkpoint's state.json.
func (s *Snapshot) State() State { return s.state }

// Shard returns the snapshot as the rank's shard of a checkpoint: its parts of tensors that ranks
// divide, and of what several ranks hold the part of the first. See Contents.
func (s *Snapshot) Shard() checkpoint.Shard {
	j := s.job
	var c checkpoint.Shard
	for _, p := range j.Model.Params {
		r := j.regionOf(p.Master, s.rank)
		from, to := min(r.rows[0], p.Rows), min(r.rows[1], p.Rows)
		if from < to && j.holds(p.Master, s.rank) {
			shape := append([]int{p.Rows}, p.Shape[1:]...)
			c.Model = append(c.Model, checkpoint.Rows{
				Tensor: checkpoint.Tensor{Name: p.Name, DType: fp8.F32, Shape: shape, Data: s.masterData(p, to-from)},
				From:   from, To: to, Columns: r.columns,
			})
		}
		if p.Master.DType != fp8.F32 {
			c.Optimizer = s.appendStored(c.Optimizer, masterName(p), p.Master)
		}
	}
	packed := map[*backend.Tensor]bool{}
	for _, x := range j.Model.Packed() {
		packed[x] = true
		tensor, at := j.Config.tensor(), j.Config.placeOf(s.rank)
		if x != j.Model.ChannelHistory {
			tensor = 1 // every rank has all of it
		}
		if at.data > 0 || at.tensor > tensor-1 {
			continue
		}
		j.Model.Unpack(x, s.floats(x), func(name string, shape []int, part []float32) {
			r := checkpoint.Rows{Tensor: checkpoint.Tensor{
				Name: name, DType: fp8.F32, Shape: shape, Data: checkpoint.Bytes(fp8.AppendFloats(nil, part...)),
			}, To: shape[0]}
			if tensor > 1 {
				r.Columns = [2]int{at.tensor * shape[1], (at.tensor + 1) * shape[1]}
				r.Shape = []int{shape[0], tensor * shape[1]}
			}
			c.Optimizer = append(c.Optimizer, r)
		})
	}
	for x := range j.Vars.All() {
		if x.Class == backend.State && !packed[x] {
			c.Optimizer = s.appendStored(c.Optimizer, x.Name, x)
		}
	}
	if s.rank == 0 {
		c.Optimizer = append(c.Optimizer, s.reference.tensors()...)
	}
	return c
}

// appendStored appends the rank's part of a tensor in the format of the device, if there is any.
func (s *Snapshot) appendStored(list []checkpoint.Rows, name string, x *backend.Tensor) []checkpoint.Rows {
	r := s.job.regionOf(x, s.rank)
	from, to := r.rows[0], r.rows[1]
	if from == to || !s.job.holds(x, s.rank) {
		return list
	}
	raw := s.of[x][:int64(to-from)*x.Bytes()/int64(x.Shape[0])]
	return append(list, checkpoint.Rows{
		Tensor: checkpoint.Tensor{Name: name, DType: x.DType, Shape: s.job.wholeShape(x), Data: checkpoint.Bytes(raw)},
		From:   from, To: to, Columns: r.columns,
	})
}

// floats returns a tensor's decoded values; scales are not applied.
func (s *Snapshot) floats(x *backend.Tensor) []float32 {
	list := make([]float32, x.Elems())
	x.DType.Decode(list, s.of[x])
	return list
}

// pieceElems is the number of values converted per write: small against a tensor and
// large enough for an efficient write.
const pieceElems = 1 << 16

// masterData returns a function that writes the first rows of the rank's part of a parameter's
// dequantized master in FP32.
func (s *Snapshot) masterData(p *nn.Param, rows int) func(io.Writer) error {
	raw := s.of[p.Master][:int64(rows)*p.Master.Bytes()/int64(p.Master.Shape[0])]
	if p.Master.DType == fp8.F32 && p.Master.Scale == nil {
		return checkpoint.Bytes(raw)
	}
	return func(w io.Writer) error {
		scaleInv := float32(1)
		if p.Master.Scale != nil {
			scaleInv = s.floats(p.Master.Scale)[0]
		}
		size := p.Master.DType.Size()
		x, text := make([]float32, pieceElems), make([]byte, 0, 4*pieceElems)
		for rest := raw; len(rest) > 0; {
			n := min(len(rest)/size, pieceElems)
			p.Master.DType.Decode(x[:n], rest[:n*size])
			for i := range x[:n] {
				x[i] *= scaleInv
			}
			text = fp8.AppendFloats(text[:0], x[:n]...)
			if _, err := w.Write(text); err != nil {
				return err
			}
			rest = rest[n*size:]
		}
		return nil
	}
}
