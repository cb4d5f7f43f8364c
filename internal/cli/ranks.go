package cli

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"octet/backend"
	"octet/backend/emu"
	"octet/backend/world"
	"octet/internal/config"
	"octet/internal/launch"
	"octet/run"
	"octet/train"
)

// ranksKey is the configuration key of the number of ranks.
const ranksKey = "train.ranks"

// findPlace returns the place that a launcher gave this process; its Size is 1 without one.
// rendezvous is the flag, which beats the launcher's address.
func findPlace(rendezvous string) (world.Place, error) {
	lookup := os.LookupEnv
	if rendezvous != "" {
		if _, err := world.CheckAddress(rendezvous); err != nil {
			return world.Place{}, fmt.Errorf("--rendezvous: %w", err)
		}
		lookup = func(name string) (string, bool) {
			if name == world.RendezvousVariable {
				return rendezvous, true
			}
			return os.LookupEnv(name)
		}
	}
	p, found, err := world.FromEnv(lookup)
	switch {
	case err != nil:
		return world.Place{}, err
	case found || p.Size == 1:
		return p, nil
	case rendezvous != "":
		return world.Place{}, errors.New("--rendezvous is given, but the environment has no rank: start the ranks by torchrun, srun or mpiexec, or set OCTET_RANK and OCTET_RANKS")
	}
	return world.Place{Size: 1}, nil
}

// withRanks returns a configuration with the number of ranks of a launcher. An explicit other
// number, on the command line or in the file that the user named, is an error.
func withRanks(l *config.Loaded, file string, p world.Place) (train.Config, error) {
	c := l.Config
	if p.Size == 1 || c.Train.Ranks == p.Size {
		return c, nil
	}
	if source := ranksFrom(l, file); source != "" {
		return c, fmt.Errorf("%s is %d %s, but %s started %d ranks: omit %[1]s, or start as many", ranksKey, c.Train.Ranks, source, p.Launcher, p.Size)
	}
	c.Train.Ranks = p.Size
	return c, nil
}

// ranksFrom returns where the user gave train.ranks: "on the command line", "in FILE", or "".
func ranksFrom(l *config.Loaded, file string) string {
	switch {
	case slices.Contains(l.FromCommand, ranksKey):
		return "on the command line"
	case file != "" && slices.Contains(l.FromFile, ranksKey):
		return "in " + file
	}
	return ""
}

// needsProcesses reports whether a run has several ranks that cannot be in this process.
func needsProcesses(o run.Options) (bool, error) {
	if o.Config.Train.Ranks == 1 {
		return false, nil
	}
	spec, err := backend.SpecOf(o.Backend)
	return err == nil && !spec.HostMemory, err
}

// supervise starts this command line once for each rank.
func (t *terminal) supervise(ranks int) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	ignorePipe()
	forward := stopSignals()
	if saveSignal != nil {
		forward = append(forward, saveSignal)
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, forward...)
	defer signal.Stop(signals)
	status, err := launch.Run(launch.Options{
		Ranks: ranks, Command: append([]string{program}, t.args...), Out: t.out, Err: t.err, Signals: signals,
	})
	if err == nil && status != 0 {
		return stopped{status} // a rank has printed the error
	}
	return err
}

// member is this process as a rank of a run.
type member struct {
	t        *terminal
	place    world.Place
	group    *world.Group                // nil: one rank, or all ranks are in this process
	starting atomic.Pointer[world.Group] // group until the first step; else nil
}

// several reports whether there are other processes.
func (m *member) several() bool { return m.place.Size > 1 }

// quiet returns the terminal of the rank's own messages: rank 0 speaks for all.
func (m *member) quiet() *terminal {
	if m.place.Rank == 0 {
		return m.t
	}
	t := *m.t
	t.out, t.err = io.Discard, io.Discard
	return &t
}

// repeats is how long further signals count as the first.
func (m *member) repeats() time.Duration {
	if m.several() {
		return repeatsOfRanks
	}
	return 0
}

// join connects the process to the other ranks, and takes the run folder from rank 0.
func (m *member) join(ctx context.Context, o *run.Options, unnamed bool) error {
	if !m.several() {
		return nil
	}
	if !m.place.Supervised() {
		fmt.Fprintf(prose(m.quiet().err), "octet: %v\n", m.place)
	}
	w, err := m.options(ctx, o)
	if err != nil {
		return badInput(err)
	}
	if m.group, err = world.Join(ctx, w); err != nil {
		if _, ok := errors.AsType[*world.Lost](err); ok {
			return err
		}
		return badInput(err)
	}
	m.starting.Store(m.group)
	o.Group, o.Hung = m.group, m.hung
	if unnamed {
		o.Dir = vacant(o.Dir)
	}
	folder, err := filepath.Abs(o.Dir)
	if err != nil {
		return err
	}
	all, err := m.group.Exchange(ctx, "the name of the run folder", []byte(folder))
	if err == nil {
		o.Dir = string(all[0]) // absolute on rank 0, too: it names the folders of checkpoints
	}
	return err
}

// options returns what this process brings to the rendezvous.
func (m *member) options(ctx context.Context, o *run.Options) (w world.Options, err error) {
	w.Place = m.place
	if w.Secret, err = world.SecretFromEnv(os.LookupEnv); err != nil {
		return w, err
	}
	if w.Place.Address == "" {
		var secret world.Secret
		if w.Place.Address, secret, w.Listener, err = emu.Rendezvous(ctx, m.place); err != nil {
			return w, err
		}
		if w.Secret == nil {
			w.Secret = secret
		}
	}
	if w.Timeout, err = world.Timeout(); err != nil {
		return w, err
	}
	w.Wait, w.Silence = deadlines.join, deadlines.silence
	w.Identity, err = identity(o)
	return w, err
}

// deadlines are those of the rendezvous and of signs of life: 0 for the defaults of world.Options.
// Tests shorten them.
var deadlines struct{ join, silence time.Duration }

// identity returns what all processes of a run must have in common. The text is compared
// later, by its hash, so its paths may differ.
func identity(o *run.Options) (list world.Identity, err error) {
	program, err := executableHash()
	if err != nil {
		return nil, err
	}
	list = world.Identity{{Name: "version", Value: o.Version}, {Name: "program", Value: program}, {Name: "--resume", Value: fmt.Sprint(o.Resume)}}
	values, err := config.AllValues(o.Config)
	if err != nil {
		return nil, err
	}
	delete(values, "data.paths")
	for _, key := range config.Keys() {
		if value, ok := values[key]; ok {
			list = append(list, world.Field{Name: key, Value: cmp.Or(value, "not set")})
		}
	}
	recipes := config.RecipeFiles(o.Config)
	for _, name := range slices.Sorted(maps.Keys(recipes)) {
		sum := sha256.Sum256([]byte(recipes[name]))
		list = append(list, world.Field{Name: "recipe file " + name, Value: hex.EncodeToString(sum[:])})
	}
	return list, nil
}

// executableHash returns the SHA-256 of this program.
func executableHash() (text string, err error) {
	path, err := os.Executable()
	if err != nil {
		return "", err
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	h := sha256.New()
	_, err = io.Copy(h, f)
	return hex.EncodeToString(h.Sum(nil)), err
}

// vacant returns the name of a folder that does not exist: dir, or dir with a number.
func vacant(dir string) string {
	name := dir
	for n := 2; ; n++ {
		if _, err := os.Lstat(name); err != nil {
			return name
		}
		name = fmt.Sprintf("%s-%d", dir, n)
	}
}

// interrupted ends the group if a signal arrives before the first step, so that all ranks end
// with its status. Later, the ranks agree on the step after which they stop.
func (m *member) interrupted(number int) {
	g := m.starting.Load()
	if g == nil {
		return
	}
	told := make(chan struct{})
	go func() {
		g.Fail(128+number, fmt.Errorf("it was stopped by signal %d (%v) before the first step", number, syscall.Signal(number)))
		close(told)
	}()
	select {
	case <-told:
	case <-time.After(repeatsOfRanks):
	}
}

// lost returns why the group ended; nil if it did not.
func (m *member) lost(err error) *world.Lost {
	if lost, ok := errors.AsType[*world.Lost](m.group.Err()); ok {
		return lost
	}
	if m.several() {
		lost, _ := errors.AsType[*world.Lost](err) // of the rendezvous
		return lost
	}
	return nil
}

// ended gives an error of the run the status that all ranks have, if they are processes. It
// prints the error if this rank speaks for the others.
func (m *member) ended(err error) error {
	lost := m.lost(err)
	if lost == nil || err == nil {
		return err
	}
	if m.speaks(lost) {
		if lost.Code > 128 {
			m.t.printStoppedEarly()
		} else {
			m.print(err)
		}
	}
	return stopped{lost.Code}
}

// print prints an error of this rank.
func (m *member) print(err error) {
	if lost, ok := errors.AsType[*world.Lost](err); m.place.Rank > 0 && (!ok || lost.Rank != m.place.Rank) {
		err = fmt.Errorf("rank %d: %w", m.place.Rank, err)
	}
	m.t.printError(err)
}

// speaks reports whether this rank prints why the group ended. Rank 0 does. If rank 0 is gone,
// the first other rank of each machine does. A rank that the others do not know speaks for
// itself.
func (m *member) speaks(lost *world.Lost) bool {
	switch {
	case m.place.Rank == 0:
		return true
	case lost.Rank == 0 && lost.Gone:
		return m.place.LocalRank == 0 || m.place.Rank == 1
	}
	return m.group == nil && errors.Unwrap(lost) != nil
}

// hung ends the process if the group has ended and a device does not return.
func (m *member) hung(lost *world.Lost) {
	if m.speaks(lost) {
		m.print(fmt.Errorf("%w; this process waits for its device and ends: resume from the last checkpoint with --resume", lost))
	}
	os.Exit(lost.Code)
}

// finish agrees with the other ranks on the signal that stopped the run, and leaves them. own
// is the signal that this process received; 0: none. trainErr is the error of Train.
func (m *member) finish(r *run.Run, own int, trainErr error) (caught int, err error) {
	_, other := errors.AsType[run.Interrupt](trainErr)
	if trainErr != nil && !other && !(own != 0 && errors.Is(trainErr, context.Canceled)) {
		return own, trainErr
	}
	if m.group == nil {
		return own, nil
	}
	all, err := m.group.Exchange(context.Background(), "the end of the training", []byte{byte(own)})
	if err != nil {
		return own, err
	}
	for _, other := range all {
		caught = max(caught, int(other[0]))
	}
	// The device of a rank may wait for those of the others until it is closed.
	return caught, errors.Join(r.ReleaseDevice(), m.group.Leave(context.Background()))
}

// train trains a rank above 0.
func (m *member) train(ctx context.Context, r *run.Run, signals *signals) error {
	trains := r.Trainer.StepsDone() < r.Config.Train.Steps
	trainErr := r.Train(ctx, func(run.Progress) {})
	caught, err := m.finish(r, signals.received(), trainErr)
	if err == nil && caught != 0 && trains {
		return stopped{128 + caught}
	}
	return err
}
