package run

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime"
	"time"

	"octet/backend"
	"octet/backend/world"
	"octet/checkpoint"
	"octet/data"
)

// This file keeps the ranks of a run in step. Every rank runs the same steps, and decides alike
// from what all ranks told each other: rank 0 alone sees requests and the disk, and a signal may
// reach any rank.

// openCorpus returns the corpus of a run, and the note on it.
type openCorpus func() (corpus *data.Corpus, note string, err error)

// startLocal starts all ranks in this process and returns the first.
func startLocal(ctx context.Context, o Options) (*Run, error) {
	spec, err := backend.SpecOf(o.Backend)
	if err != nil {
		return nil, err
	}
	if !spec.HostMemory {
		return nil, fmt.Errorf("train.ranks = %d: on backend %s each rank is a process: start them with octet train --ranks %[1]d, or set Options.Group", o.Config.Train.Ranks, spec.Backend)
	}
	timeout, err := world.Timeout()
	if err != nil {
		return nil, err
	}
	var corpus *data.Corpus
	var note string
	opened := make(chan struct{})
	groups := world.Local(o.Config.Train.Ranks, timeout)
	ranks := make([]*Run, len(groups))
	err = world.Each(groups, func(g *world.Group) (err error) {
		o := o
		if o.Group = g; g.Rank() > 0 {
			o.Save, o.Reference = nil, nil
		}
		ranks[g.Rank()], err = start(ctx, o, func() (*data.Corpus, string, error) {
			if g.Rank() == 0 {
				var err error
				if corpus, note, err = OpenCorpus(ctx, o.Config, o.Sources); err != nil {
					return nil, "", err
				}
				close(opened)
			}
			select {
			case <-opened:
				return corpus, note, nil
			case <-g.Done():
				return nil, "", g.Err()
			}
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	ranks[0].others = ranks[1:]
	return ranks[0], nil
}

// leaveLocal ends the groups of ranks in this process.
func (r *Run) leaveLocal() error {
	if r.others == nil || r.group.Err() != nil {
		return nil
	}
	groups := []*world.Group{r.group}
	for _, o := range r.others {
		groups = append(groups, o.group)
	}
	return world.Each(groups, func(g *world.Group) error { return g.Leave(context.Background()) })
}

func (r *Run) rank() int { return r.group.Rank() }

// fail tells the other ranks that this one failed.
func (r *Run) fail(ctx context.Context, err error) {
	code := world.CodeInput
	if r.Trainer != nil && r.records != nil || ctx.Err() != nil || errors.Is(err, backend.ErrDeviceLost) {
		code = world.CodeFailed
	}
	r.group.Fail(code, err)
}

// settle is how long a rank whose step fails waits for the news that another rank is lost: when
// a process ends, the collectives of the others may fail first.
const settle = time.Second

// cause returns why a step failed: the loss of another rank, which explains both errors, or the
// errors of the step and of the checkpoint being written.
func (r *Run) cause(stepErr, saveErr error) error {
	if r.group.Err() == nil && !r.group.InProcess() {
		select {
		case <-r.group.Done():
		case <-time.After(settle):
		}
	}
	lost, ok := errors.AsType[*world.Lost](r.group.Err())
	if !ok || lost.Rank == r.rank() {
		return errors.Join(stepErr, saveErr)
	}
	if !errors.Is(stepErr, lost) {
		r.records.log.Warn("step failed", "error", stepErr.Error())
	}
	return lost
}

// hungAfter is how long a device may take to notice that its group has ended.
const hungAfter = 5 * time.Second

// watchGroup calls Options.Hung if the group ends and the call that returned belongs to does
// not return.
func (r *Run) watchGroup(returned <-chan struct{}) {
	if r.group.InProcess() || r.hung == nil {
		return
	}
	select {
	case <-r.group.Done():
	case <-returned:
		return
	}
	lost, failed := errors.AsType[*world.Lost](r.group.Err())
	select {
	case <-returned:
	case <-time.After(hungAfter):
		if !failed {
			return
		}
		if log := r.log.Load(); log != nil {
			log.Error("stopped", "error", lost.Error())
		}
		r.hung(lost)
	}
}

// barrier waits for all ranks.
func (r *Run) barrier(ctx context.Context, what string) error {
	_, err := r.group.Exchange(ctx, what, nil)
	return err
}

// told is what rank 0 tells the others about something that only it does.
type told struct {
	Value string
	Error string // empty: none
}

// tell returns rank 0's value or error on all ranks. Only rank 0 calls do.
func (r *Run) tell(ctx context.Context, what string, do func() (string, error)) (string, error) {
	if r.group == nil {
		return do()
	}
	var t told
	var mine []byte
	var err error
	if r.rank() == 0 {
		if t.Value, err = do(); err != nil {
			t.Error = err.Error()
		}
		var jsonErr error
		if mine, jsonErr = json.Marshal(t); jsonErr != nil {
			return "", jsonErr
		}
	}
	all, exchangeErr := r.group.Exchange(ctx, what, mine)
	if err != nil || exchangeErr != nil {
		return "", errors.Join(err, exchangeErr)
	}
	if err := json.Unmarshal(all[0], &t); err != nil {
		return "", err
	}
	if t.Error != "" {
		return "", errors.New(t.Error)
	}
	return t.Value, nil
}

// openSame opens the checkpoint that rank 0 chooses and verifies. The error is
// checkpoint.ErrNone on all ranks if there is none.
func (r *Run) openSame(ctx context.Context, what string, choose func() (*checkpoint.Checkpoint, error)) (c *checkpoint.Checkpoint, err error) {
	none := false
	path, err := r.tell(ctx, what, func() (string, error) {
		if c, err = choose(); errors.Is(err, checkpoint.ErrNone) {
			none = true
			return "", nil
		}
		if err != nil {
			return "", err
		}
		return c.Path, nil
	})
	switch {
	case err != nil:
		return nil, err
	case none || path == "":
		return nil, checkpoint.ErrNone
	case c != nil:
		return c, nil
	}
	return checkpoint.OpenVerified(path)
}

// agreement is what the ranks agree on at the end of each step, about the next one.
type agreement struct {
	stop    bool // a rank was interrupted
	signal  int  // the number of the signal that did it; 0: none
	save    bool // a checkpoint is requested
	measure bool // an interval of the utilization ends with the next step
	rescue  bool // the records of a step could not be written
}

// Interrupt is the error of Train if another rank was interrupted. A program that turns a signal
// into the end of a context gives it as the cause, so that all ranks know the signal.
type Interrupt struct{ Signal int }

func (i Interrupt) Error() string { return fmt.Sprintf("interrupted by signal %d", i.Signal) }

// Is reports whether target is the error of a cancelled context.
func (i Interrupt) Is(target error) bool { return target == context.Canceled }

// signalOf returns the number of the signal that ended a context; 0 if none did.
func signalOf(ctx context.Context) int {
	i, _ := errors.AsType[Interrupt](context.Cause(ctx))
	return i.Signal
}

// Bits of an agreement, as the ranks send it.
const (
	bitStop = 1 << iota
	bitSave
	bitMeasure
	bitRescue
)

// agree tells the other ranks what this one knows, and returns what follows for all of them.
// The ranks also compare their losses, and rank 0 their paces.
func (r *Run) agree(ctx context.Context, p *Progress, recordErr error) (a agreement, err error) {
	mine := agreement{
		stop: ctx.Err() != nil, save: len(r.requests) > 0, rescue: recordErr != nil,
		signal:  signalOf(ctx),
		measure: r.rank() == 0 && r.utilization.ends(p.Step+1 == r.Config.Train.Steps),
	}
	if r.group == nil {
		return mine, nil
	}
	begin := time.Now()
	all, err := r.group.Exchange(context.WithoutCancel(ctx), "the end of a step", r.ending(mine, p.Loss))
	if err != nil {
		return a, err
	}
	r.pace.exchanged(time.Since(begin), r.Trainer.UnderWay())
	var flags byte
	signal := 0
	readings, paces := make([][]byte, len(all)), make([]pace, len(all))
	for rank, m := range all {
		flags |= m[0]
		signal = max(signal, int(m[1]))
		if loss := binary.LittleEndian.Uint64(m[2:]); loss != math.Float64bits(p.Loss) {
			return a, fmt.Errorf("the loss of step %d is %v on rank %d and %v on rank %d: the ranks compute different results, so check their memory and their versions",
				p.Step, math.Float64frombits(loss), rank, p.Loss, r.rank())
		}
		paces[rank] = paceOf(m[endingBytes-paceBytes:])
		readings[rank] = m[endingBytes:]
	}
	if r.rank() == 0 && p.Elapsed > 0 { // not before the first step
		p.Stragglers = r.addPaces(p.Step, paces)
	}
	return agreement{
		stop: flags&bitStop != 0, signal: signal, save: flags&bitSave != 0, measure: flags&bitMeasure != 0, rescue: flags&bitRescue != 0,
	}, r.telemetry.receive(readings)
}

// endingBytes is the size of what a rank tells at the end of a step, without the reading of its
// sensors that follows.
const endingBytes = 10 + paceBytes

// ending returns what this rank tells the others at the end of a step.
func (r *Run) ending(a agreement, loss float64) []byte {
	var flags byte
	set := func(on bool, bit byte) {
		if on {
			flags |= bit
		}
	}
	set(a.stop, bitStop)
	set(a.save, bitSave)
	set(a.measure, bitMeasure)
	set(a.rescue, bitRescue)
	told := binary.LittleEndian.AppendUint64([]byte{flags, byte(a.signal)}, math.Float64bits(loss))
	return append(r.pace.last.append(told), r.telemetry.message()...)
}

// devices returns the readings of all ranks' devices; nil if none has sensors.
func (r *Run) devices() []backend.Reading {
	if r.group != nil {
		return r.telemetry.ranks
	}
	if reading := r.telemetry.now(); reading != nil {
		return []backend.Reading{*reading}
	}
	return nil
}

// peakFLOPs returns the FLOP/s that the devices of all ranks reach together: the sum of each
// device's best burst, of some milliseconds; 0 if a device has no meter. Ranks of one process
// share its processors: the sum is scaled down where threads outnumber them, since the best
// burst of each device had a processor to itself.
func (r *Run) peakFLOPs(ctx context.Context, bursts int) (sum float64) {
	rate := 0.0
	if m, ok := r.Device.(backend.Metered); ok {
		rate = best(bursts, m.Meter().FLOPs)
	}
	all, err := r.group.Exchange(context.WithoutCancel(ctx), "the devices' peak", binary.LittleEndian.AppendUint64(nil, math.Float64bits(rate)))
	if err != nil {
		return 0 // the next step returns the error
	}
	for _, raw := range all {
		rate := math.Float64frombits(binary.LittleEndian.Uint64(raw))
		if rate == 0 {
			return 0
		}
		sum += rate
	}
	threads := len(all) * r.Device.Spec().Threads // equal on all ranks of a process
	if processors := min(runtime.GOMAXPROCS(0), runtime.NumCPU()); r.group.InProcess() && threads > processors {
		sum *= float64(processors) / float64(threads)
	}
	return sum
}
