package train

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"octet/backend"
	"octet/checkpoint"
	"octet/data"
	"octet/fp8"
)

// This file is train.objective = "dpo": Direct Preference Optimization (Rafailov et al., arXiv
// 2305.18290, eq. 7), in the words of TRL with loss_type = "sigmoid". For each pair of answers to a
// prompt,
//
//	z = β · [(lw − rw) − (ll − rl)]      L = −log σ(z)
//
// lw and ll are the log-probabilities of the chosen and of the rejected answer: the sums over their
// tokens. rw and rl are those under the reference, the initial weights.
//
// The program eval computes the token losses of a micro-batch with frozen scales, as it does for
// the reference: before the first update, z is exactly 0. The host sums them and writes
// CrossEntropy.Weights, the derivatives of L by the token losses: β·σ(−z) for the chosen answer and
// −β·σ(−z) for the rejected one. The usual program of the micro-batch follows. So a step runs four
// passes where pretraining runs three.

// The values of Loop.Objective.
const (
	ObjectiveCrossEntropy = "cross-entropy"
	ObjectiveDPO          = "dpo"
)

// Preference describes the pairs of a step or of an evaluation; zero under another objective.
type Preference struct {
	Pairs    int64
	Accuracy float64 // share of the pairs with z > 0: the reward of the chosen answer is larger
	Margin   float64 // mean of z, the difference of the rewards β·(l − r)
}

// pairSums are sums over pairs.
type pairSums struct{ loss, preferred, margin float64 }

// add adds a pair with this z.
func (s *pairSums) add(z float64) {
	s.loss += math.Max(-z, 0) + math.Log1p(math.Exp(-math.Abs(z)))
	s.margin += z
	if z > 0 {
		s.preferred++
	}
}

// mean returns the mean loss of n pairs, and what else is known of them.
func (s pairSums) mean(n int64) (float64, Preference) {
	return s.loss / float64(n), Preference{Pairs: n, Accuracy: s.preferred / float64(n), Margin: s.margin / float64(n)}
}

// reference is the log-probabilities of documents under the initial weights, two of each pair:
// chosen, rejected. They are exactly sums of two FP32 values, see roundPair. nil: not measured.
type reference struct{ train, val []float64 }

// pairs is the pairs of a rank and the memory for a micro-batch of them.
type pairs struct {
	train, val *data.Pairs // val is nil without validation data
	logProbs   []float64   // of rows
	raw        []byte      // token losses, or weights
	sums       pairSums    // of a step so far
}

// pairsPerStep returns the number of pairs of a step, over all ranks.
func (c Config) pairsPerStep() int64 {
	return int64(c.Train.MicroBatch/2) * int64(c.Train.Accumulate) * int64(c.dataRanks())
}

// openPairs opens the pairs of a rank; nil under another objective.
func (t *Trainer) openPairs(o data.LoaderOptions) (*pairs, error) {
	if t.TokenWeights == nil {
		return nil, nil
	}
	train, err := t.corpus.Pairs(o, false)
	if err != nil {
		return nil, err
	}
	p := &pairs{train: train, logProbs: make([]float64, t.Config.Train.MicroBatch), raw: make([]byte, t.TokenWeights.Bytes())}
	if val := t.corpus.Val; val != nil && val.Len() > 0 {
		if p.val, err = t.corpus.Pairs(o, true); err != nil {
			return nil, err
		}
		if p.val.Len() == 0 {
			return nil, fmt.Errorf("data.val_bytes = %d is too little for a pair; raise it, or use data.val_bytes = 0 for no validation", t.Config.Data.ValBytes)
		}
	}
	return p, nil
}

// MeasureReference computes the log-probabilities of all pairs under the initial weights, for
// train.objective = "dpo". It does nothing under another objective, and if they are known, as after
// Restore; the first Next does it otherwise. It takes a forward pass of all training and validation
// data, which ranks share. report, unless nil, is called with the number of pairs so far and of all.
// It returns what the training pairs are like, if it has read them.
//
// A run that begins under another recipe has other log-probabilities, since they include its casts.
func (t *Trainer) MeasureReference(ctx context.Context, report func(done, all int64)) (counts data.PairCounts, err error) {
	if t.TokenWeights == nil || t.reference.train != nil {
		return counts, nil
	}
	if err := t.stateError(); err != nil {
		return counts, err
	}
	if err := t.ensureCalibrated(ctx); err != nil {
		return counts, err
	}
	p := t.device.pairs
	all := p.train.Len()
	if p.val != nil {
		all += p.val.Len()
	}
	of := func(p *data.Pairs, before int64) ([]float64, error) {
		list, err := t.scorePairs(ctx, p, func(done int64) {
			if report != nil {
				report(before+done, all)
			}
		})
		for i, x := range list {
			if math.IsNaN(x) || math.IsInf(x, 0) {
				return nil, fmt.Errorf("the log-probability of document %d under the initial weights is %v: train.objective = \"dpo\" needs a trained model in model.init; octet inspect shows its weights", i, x)
			}
		}
		return list, err
	}
	var r reference
	if r.train, err = of(p.train, 0); err == nil && p.val != nil {
		r.val, err = of(p.val, p.train.Len())
	}
	if err != nil {
		return counts, err
	}
	if counts = p.train.Counts(); counts.Empty == counts.Pairs && counts.Pairs > 0 {
		return counts, fmt.Errorf("data.seq = %d is too short: the prompts of all pairs fill it, so no token of an answer counts; raise it", t.Config.Data.Seq)
	}
	t.reference = r
	return counts, nil
}

// scorePairs returns the log-probabilities of all documents of p under the current weights, on all
// ranks. Batches go to the ranks round-robin. report is called with the number of pairs so far.
func (t *Trainer) scorePairs(ctx context.Context, p *data.Pairs, report func(done int64)) ([]float64, error) {
	d, batch := t.device, int64(t.Config.Train.MicroBatch/2)
	list := make([]float64, 0, 2*p.Len())
	for first := int64(0); first < p.Len(); first += batch * int64(t.Config.dataRanks()) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		var mine []byte
		at := first + batch*int64(t.place().data)
		switch {
		case at < p.Len():
			n, err := p.Batch(at, d.tokens, d.targets)
			if err == nil {
				err = t.logProbs(ctx)
			}
			if err != nil {
				return nil, err
			}
			for _, x := range d.pairs.logProbs[:2*n] {
				mine = binary.LittleEndian.AppendUint64(mine, math.Float64bits(x))
			}
		case t.evaluatesTogether():
			if err := t.logProbs(ctx); err != nil {
				return nil, err
			}
		}
		all, err := t.group.Exchange(ctx, "the log-probabilities of pairs", mine)
		if err != nil {
			return nil, err
		}
		for rank := range t.Config.dataRanks() {
			for raw := all[t.Config.firstOf(rank)]; len(raw) > 0; raw = raw[8:] {
				list = append(list, math.Float64frombits(binary.LittleEndian.Uint64(raw)))
			}
		}
		report(int64(len(list) / 2))
	}
	return list, nil
}

// logProbs writes the batch in d.tokens and d.targets to the device and sets d.pairs.logProbs.
func (t *Trainer) logProbs(ctx context.Context) error {
	d, seq := t.device, t.Config.Data.Seq
	if err := t.feed(backend.Control{Rank: int32(t.group.Rank())}); err != nil {
		return err
	}
	if err := t.run(ctx, d.eval); err != nil {
		return err
	}
	if err := d.Read(t.TokenLosses, d.pairs.raw); err != nil {
		return err
	}
	for row := range d.pairs.logProbs {
		sum := 0.0
		for i := row * seq; i < (row+1)*seq; i++ {
			sum -= float(d.pairs.raw[4*i:])
		}
		d.pairs.logProbs[row] = roundPair(sum)
	}
	return nil
}

// roundPair rounds to a sum of two FP32 values, 48 bits, as a checkpoint stores log-probabilities.
func roundPair(x float64) float64 {
	high, low := splitPair(x)
	return float64(high) + float64(low)
}

func splitPair(x float64) (high, low float32) {
	high = float32(x)
	return high, float32(x - float64(high))
}

// z returns z of a pair with these log-probabilities, chosen and rejected.
func (t *Trainer) z(logProbs, reference []float64) float64 {
	return t.Config.Train.DPOBeta * ((logProbs[0] - reference[0]) - (logProbs[1] - reference[1]))
}

// feedPairs writes a micro-batch, its weights and its control words to the device, and adds its
// pairs to d.pairs.sums.
func (t *Trainer) feedPairs(ctx context.Context, c backend.Control) error {
	p := t.device.pairs
	if err := t.logProbs(ctx); err != nil {
		return err
	}
	err := t.writeWeights(func(i int) float64 {
		z := t.z(p.logProbs[2*i:], t.reference.train[2*p.train.Last()[i]:])
		p.sums.add(z)
		return z
	})
	if err != nil {
		return err
	}
	return t.writeControl(c)
}

// writeWeights writes the weights of a micro-batch, given z of its i-th pair. They are derivatives of
// the mean loss over the pairs of a step, divided by Control.InvTokens, 1 / its targets.
func (t *Trainer) writeWeights(z func(i int) float64) error {
	d, seq := t.device, t.Config.Data.Seq
	raw := d.pairs.raw[:0]
	for i := range t.Config.Train.MicroBatch / 2 {
		w := t.Config.Train.DPOBeta / (1 + math.Exp(z(i))) * float64(2*seq)
		for k := range 2 * seq {
			if k == seq {
				w = -w
			}
			raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(float32(w)))
		}
	}
	return d.Write(t.TokenWeights, raw)
}

// reduceSums returns the sums of the step over all ranks.
func (t *Trainer) reduceSums(ctx context.Context) (sums pairSums, err error) {
	if t.TokenWeights == nil {
		return sums, nil
	}
	mine := t.device.pairs.sums
	if t.group.Size() == 1 {
		return mine, nil
	}
	var raw []byte
	for _, x := range []float64{mine.loss, mine.preferred, mine.margin} {
		raw = binary.LittleEndian.AppendUint64(raw, math.Float64bits(x))
	}
	all, err := t.group.Exchange(ctx, "the pairs of a step", raw)
	if err != nil {
		return sums, err
	}
	for rank := range t.Config.dataRanks() {
		raw := all[t.Config.firstOf(rank)]
		at := func(i int) float64 { return math.Float64frombits(binary.LittleEndian.Uint64(raw[8*i:])) }
		sums.loss, sums.preferred, sums.margin = sums.loss+at(0), sums.preferred+at(1), sums.margin+at(2)
	}
	return sums, nil
}

// Pairs returns the number of pairs of an epoch, and of EvaluatePairs; 0 under another objective.
func (t *Trainer) Pairs() (train, val int64) {
	if d := t.device; d != nil && d.pairs != nil {
		train = d.pairs.train.Len()
		if d.pairs.val != nil {
			val = d.pairs.val.Len()
		}
	}
	return train, val
}

// EvaluatePairs returns the mean loss of train.objective = "dpo" over the validation pairs, and what
// else is known of them, with frozen scales.
func (t *Trainer) EvaluatePairs(ctx context.Context) (float64, Preference, error) {
	if err := t.stateError(); err != nil {
		return 0, Preference{}, err
	}
	switch {
	case t.TokenWeights == nil:
		return 0, Preference{}, errors.New("pairs are for train.objective = \"dpo\": call Evaluate")
	case t.device.pairs.val == nil:
		return 0, Preference{}, errNoValidation
	case t.reference.val == nil:
		return 0, Preference{}, errors.New("the reference is not measured: call MeasureReference or Next first")
	}
	list, err := t.scorePairs(ctx, t.device.pairs.val, func(int64) {})
	if err != nil {
		return 0, Preference{}, err
	}
	var sums pairSums
	for i := 0; i < len(list); i += 2 {
		sums.add(t.z(list[i:], t.reference.val[i:]))
	}
	loss, p := sums.mean(int64(len(list) / 2))
	return loss, p, nil
}

// referenceTensor returns log-probabilities as a tensor of a checkpoint, F32 [pairs, 4]: of the
// chosen and of the rejected document the two values that add up to it.
func referenceTensor(name string, list []float64) checkpoint.Rows {
	values := make([]float32, 0, 2*len(list))
	for _, x := range list {
		high, low := splitPair(x)
		values = append(values, high, low)
	}
	n := len(list) / 2
	return checkpoint.Rows{Tensor: checkpoint.Tensor{
		Name: name, DType: fp8.F32, Shape: []int{n, 4}, Data: checkpoint.Bytes(fp8.AppendFloats(nil, values...)),
	}, To: n}
}

// The names of the reference in a checkpoint.
const (
	trainReference = "reference.train"
	valReference   = "reference.val"
)

// tensors returns the reference as tensors of a checkpoint.
func (r reference) tensors() (list []checkpoint.Rows) {
	if r.train != nil {
		list = append(list, referenceTensor(trainReference, r.train))
	}
	if r.val != nil {
		list = append(list, referenceTensor(valReference, r.val))
	}
	return list
}

// restoreReference reads the reference of a checkpoint.
func (t *Trainer) restoreReference(state State, from *checkpoint.Tensors) (r reference, err error) {
	isDPO := t.TokenWeights != nil
	switch {
	case !isDPO && state.ReferenceSeq > 0:
		return r, errors.New("it was written under train.objective = \"dpo\": restore that, or start a new run with model.init")
	case !isDPO || state.Step == 0 && state.ReferenceSeq == 0:
		return r, nil
	case state.ReferenceSeq == 0:
		return r, errors.New("it has no log-probabilities of the reference, since it was written under another train.objective: start a new run with model.init")
	case state.ReferenceSeq != t.Config.Data.Seq:
		return r, fmt.Errorf("the log-probabilities of its reference are of rows of data.seq = %d: restore that, or start a new run with model.init", state.ReferenceSeq)
	}
	p := t.device.pairs
	if r.train, err = readReference(from, trainReference, p.train.Len()); err == nil && p.val != nil {
		r.val, err = readReference(from, valReference, p.val.Len())
	}
	return r, err
}

func readReference(from *checkpoint.Tensors, name string, pairs int64) ([]float64, error) {
	x, err := readFloats(from, name)
	if err != nil {
		return nil, err
	}
	if int64(len(x)) != 4*pairs {
		return nil, fmt.Errorf("%s has %d values, but the data has %d pairs of 4: restore the data", name, len(x), pairs)
	}
	list := make([]float64, 0, 2*pairs)
	for i := 0; i < len(x); i += 2 {
		list = append(list, float64(x[i])+float64(x[i+1]))
		if y := list[len(list)-1]; math.IsNaN(y) || math.IsInf(y, 0) {
			return nil, fmt.Errorf("tensor %q is damaged: element %d is %v", name, i, y)
		}
	}
	return list, nil
}
