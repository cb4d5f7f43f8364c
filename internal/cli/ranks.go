package cli

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"octet/backend"
	"octet/backend/emu"
	"octet/backend/world"
	"octet/internal/config"
	"octet/internal/launch"
	"octet/run"
	"octet/train"
)

// ranksKey is the key of the number of ranks.
const ranksKey = "train.ranks"

// findPlace returns the place of this process among ranks that a launcher started; nil if there
// is none. rendezvous, if not empty, replaces the launcher's address.
func findPlace(rendezvous string) (*world.Place, error) {
	p, found, err := world.FromEnv(os.LookupEnv)
	if err != nil {
		return nil, err
	}
	if !found {
		if rendezvous != "" {
			return nil, errors.New("--rendezvous needs a launcher: torchrun, srun, mpiexec, or OCTET_RANK and OCTET_RANKS in the environment of each rank")
		}
		return nil, nil
	}
	if rendezvous != "" {
		if p.Address, err = world.CheckAddress(rendezvous); err != nil {
			return nil, err
		}
	}
	return &p, nil
}

// placeRanks sets the number of ranks to that of the launcher. given are the keys that the user
// set.
func placeRanks(c *train.Config, p *world.Place, given []string) error {
	if p == nil || c.Train.Ranks == p.Size {
		return nil
	}
	if slices.Contains(given, ranksKey) {
		return fmt.Errorf("%s is %d, but %s started %d ranks: omit %[1]s", ranksKey, c.Train.Ranks, p.Launcher, p.Size)
	}
	c.Train.Ranks = p.Size
	return c.Resolve()
}

// supervised reports whether the ranks of a run are processes that this one starts.
func supervised(p *world.Place, o run.Options) (bool, error) {
	if p != nil || o.Config.Train.Ranks == 1 {
		return false, nil
	}
	spec, err := backend.SpecOf(o.Backend)
	return err == nil && !spec.HostMemory, err
}

// supervise runs this command line in a process for each rank.
func supervise(t *terminal, ranks int) error {
	executable, err := os.Executable()
	if err != nil {
		return err
	}
	signals := make(chan os.Signal, 8)
	list := []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP}
	if saveSignal != nil {
		list = append(list, saveSignal)
	}
	signal.Notify(signals, list...)
	defer signal.Stop(signals)
	status, err := launch.Run(launch.Options{
		Ranks: ranks, Command: append([]string{executable}, os.Args[1:]...), Out: t.out, Err: t.err, Signals: signals,
	})
	if err == nil && status != 0 {
		err = stopped{status}
	}
	return err
}

// join connects this process to the other ranks of its run.
func join(ctx context.Context, p world.Place, o run.Options) (*world.Group, error) {
	secret, err := world.SecretFromEnv(os.LookupEnv)
	if err != nil {
		return nil, err
	}
	var listener *world.Listener
	if p.Address == "" {
		var agreed world.Secret
		if p.Address, agreed, listener, err = emu.Rendezvous(ctx, p); err != nil {
			return nil, err
		}
		if secret == nil {
			secret = agreed
		}
	}
	timeout, err := world.Timeout()
	if err != nil {
		return nil, err
	}
	identity, err := identityOf(o)
	if err != nil {
		return nil, err
	}
	return world.Join(ctx, world.Options{Place: p, Identity: identity, Secret: secret, Timeout: timeout, Listener: listener})
}

// identityOf returns what all processes of a run have in common. Their texts may be in different
// folders; package run compares the texts.
func identityOf(o run.Options) (world.Identity, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	program := sha256.New()
	_, err = io.Copy(program, f)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	c := o.Config
	c.Data.Paths = nil
	text, err := config.Marshal(c)
	if err != nil {
		return nil, err
	}
	settings := sha256.New()
	settings.Write(text)
	files := config.RecipeFiles(c)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(settings, "%s\n%s\n", name, files[name])
	}
	return world.Identity{
		{Name: "version of octet", Value: version()},
		{Name: "executable", Value: fmt.Sprintf("%x", program.Sum(nil))},
		{Name: "configuration", Value: fmt.Sprintf("%x", settings.Sum(nil))},
		{Name: "--resume", Value: fmt.Sprint(o.Resume)},
	}, nil
}

// leave ends the membership after a run that succeeded, or was interrupted, on all ranks.
func leave(g *world.Group) error {
	if g.Err() != nil {
		return nil // the run has returned it
	}
	return g.Leave(context.Background())
}

// ofRank returns the error of a command of one rank among several: every rank ends with the status
// that all agreed on, and one of them tells why, rank 0 unless its process is gone.
func ofRank(p world.Place, g *world.Group, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[stopped](err); ok {
		return err
	}
	lost, failed := errors.AsType[*world.Lost](err)
	if g != nil {
		lost, failed = errors.AsType[*world.Lost](g.Err())
	}
	switch {
	case !failed:
		return err
	case p.Rank == 0, p.Rank == 1 && lost.Rank == 0 && lost.Gone:
		return agreed{err, lost.Code}
	}
	return stopped{lost.Code}
}

// agreed is an error with the status that all ranks agreed on.
type agreed struct {
	error
	status int
}

func (e agreed) Unwrap() error { return e.error }
