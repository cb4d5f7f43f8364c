//go:build gaudi && cgo && linux

package gaudi

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"octet/backend"
	"octet/csrc/libsynapse"
)

// local is this process's Gaudi. The process keeps the device and its recipes when no
// backend uses them: devices that are released and quickly acquired again have been seen
// to fail.
type local struct {
	*libsynapse.Device
	module  int // the module number requested, or -1
	users   int // open backends, guarded by mine
	lost    atomic.Bool
	waiting atomic.Bool // for the device
	cache   *cache

	mu     sync.Mutex
	stream *libsynapse.Stream
	fence  *libsynapse.Fence
	clock  [2]*libsynapse.Event // before and after the timed commands
	rank   *member              // nil for a single rank

	// staging is host memory for copies: its first half for copies to the device, of
	// which used bytes may be in flight, the second for copies from the device. After
	// both halves comes the last mark of the stream, see collectives.
	staging *libsynapse.Host
	used    int

	recipes []named
	numbers map[string]int // index into recipes, by graph key
	lists   map[int]commands
	next    int // number of the last list

	collectives collectives
}

// commands are a prepared list, and the device address of the marks of its collectives.
type commands struct {
	list  []command
	table libsynapse.Ptr // 0: the list has no collectives
}

type named struct {
	*libsynapse.Recipe
	name string
}

// stagingBytes is the length of each half of the staging memory.
const stagingBytes = 1 << 20

// mine is this process's device, nil until it is opened.
var mine struct {
	sync.Mutex
	*local
}

// openLocal acquires the device with a module number, or any device with -1.
func openLocal(module int) (synapse, error) {
	mine.Lock()
	defer mine.Unlock()
	switch {
	case mine.local == nil:
	case mine.lost.Load():
		return nil, fmt.Errorf("%w earlier in this process: start octet again", backend.ErrDeviceLost)
	case module >= 0 && module != mine.module:
		return nil, fmt.Errorf("%w with module number %d for this process: it already has another one, and SynapseAI gives a process only one", backend.ErrNoDevice, module)
	default:
		mine.users++
		return mine.local, nil
	}
	if _, err := present(); err != nil {
		return nil, err
	}
	d, err := acquire(func() (*libsynapse.Device, error) { return libsynapse.Open(module) })
	if err != nil {
		return nil, fmt.Errorf("%w available: %w", backend.ErrNoDevice, err)
	}
	l := &local{
		Device: d, module: module, users: 1, cache: openCache(d.Driver, d.Model()),
		numbers: map[string]int{}, lists: map[int]commands{},
	}
	if err := l.start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start the device %s: %w", d.Name, err), l.close())
	}
	mine.local = l
	return l, nil
}

// resetTimeout is how long a released device may be unavailable while the driver resets
// it. The value is a guess.
var resetTimeout = 5 * time.Second

// acquire retries for resetTimeout while a device is busy: the process that held it, this
// one or a failed run that is being resumed, may have released it a moment ago.
func acquire(open func() (*libsynapse.Device, error)) (*libsynapse.Device, error) {
	for begin := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		d, err := open()
		if e, ok := errors.AsType[*libsynapse.Error](err); !ok || !e.DeviceBusy() || time.Since(begin) > resetTimeout {
			return d, err
		}
	}
}

func (l *local) start() (err error) {
	if l.stream, err = l.NewStream(); err != nil {
		return err
	}
	if l.fence, err = l.NewFence(); err != nil {
		return err
	}
	for i := range l.clock {
		if l.clock[i], err = l.NewEvent(); err != nil {
			return err
		}
	}
	l.staging, err = l.Host(2*stagingBytes + markBytes)
	return err
}

// locked runs one call at a time, and records a lost device from its error.
func (l *local) locked(call func() error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := call()
	if e := (*libsynapse.Error)(nil); errors.As(err, &e) && e.DeviceLost() {
		l.lost.Store(true)
	}
	return err
}

func (l *local) hardware() hardware {
	return hardware{Name: l.Name, Bus: l.Bus, Driver: l.Driver, Model: l.Model(), Align: l.Align}
}

func (l *local) memory() (free, total uint64, err error) { return l.Memory() }

func (l *local) alloc(bytes int64) (p libsynapse.Ptr, err error) {
	err = l.locked(func() error { p, err = l.Alloc(int(bytes)); return err })
	return p, err
}

func (l *local) free(p libsynapse.Ptr) error {
	return l.locked(func() error { return l.Free(p) })
}

func (l *local) fill(to libsynapse.Ptr, value byte, bytes int64) error {
	return l.locked(func() error { return l.stream.Fill(to, value, int(bytes)) })
}

func (l *local) write(to libsynapse.Ptr, src []byte) error {
	return l.locked(func() error { return l.put(to, src) })
}

func (l *local) put(to libsynapse.Ptr, src []byte) error {
	for len(src) > 0 {
		if l.used == stagingBytes {
			if err := l.wait(); err != nil {
				return err
			}
		}
		n := copy(l.staging.Bytes()[l.used:stagingBytes], src)
		if err := l.stream.CopyIn(to, l.staging, l.used, n); err != nil {
			return err
		}
		l.used += n
		to, src = to+libsynapse.Ptr(n), src[n:]
	}
	return nil
}

func (l *local) read(dst []byte, from libsynapse.Ptr) error {
	return l.locked(func() error {
		for len(dst) > 0 {
			n := min(len(dst), stagingBytes)
			if err := l.stream.CopyOut(l.staging, stagingBytes, from, n); err != nil {
				return err
			}
			if err := l.wait(); err != nil {
				return err
			}
			copy(dst, l.staging.Bytes()[stagingBytes:][:n])
			from, dst = from+libsynapse.Ptr(n), dst[n:]
		}
		return nil
	})
}

// wait waits for all submitted work, including copies to the host.
func (l *local) wait() error {
	l.waiting.Store(true)
	err := l.fence.Wait(l.stream)
	l.waiting.Store(false)
	if err == nil {
		l.used = 0
	}
	return err
}

func (l *local) synchronize() error { return l.locked(l.wait) }

// compile takes seconds for a layer, so it compiles several at once. The compiler needs
// some GB of memory for a large one.
func (l *local) compile(list []program) ([]compiled, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	keys := make([]string, len(list))
	made := make([]*libsynapse.Recipe, len(list))
	var g errgroup.Group
	g.SetLimit(max(1, runtime.NumCPU()/2))
	for i, p := range list {
		keys[i] = p.Graph.Key()
		if _, ok := l.numbers[keys[i]]; ok {
			continue
		}
		g.Go(func() (err error) {
			made[i], err = l.cache.recipe(l.Type, keys[i], p)
			return err
		})
	}
	err := g.Wait()
	recipes := make([]compiled, len(list))
	for i, r := range made {
		if r != nil {
			l.numbers[keys[i]] = len(l.recipes)
			l.recipes = append(l.recipes, named{r, list[i].Name})
		}
		if err == nil {
			n := l.numbers[keys[i]]
			recipes[i] = compiled{n, int64(l.recipes[n].Workspace())}
		}
	}
	return recipes, err
}

func (l *local) prepare(list []command) (number int, err error) {
	err = l.locked(func() error {
		table, err := l.uploadMarks(list)
		if err == nil {
			l.next++
			number = l.next
			l.lists[number] = commands{list, table}
		}
		return err
	})
	return number, err
}

func (l *local) forget(list int) error {
	return l.locked(func() error {
		table := l.lists[list].table
		delete(l.lists, list)
		if table == 0 {
			return nil
		}
		return l.Free(table)
	})
}

func (l *local) run(list, from, to int) error {
	return l.locked(func() error { return l.issue(list, from, to) })
}

func (l *local) time(list, from, to int) (took time.Duration, err error) {
	err = l.locked(func() error {
		if err := l.clock[0].Record(l.stream); err != nil {
			return err
		}
		if err := l.issue(list, from, to); err != nil {
			return err
		}
		if err := l.clock[1].Record(l.stream); err != nil {
			return err
		}
		if err := l.wait(); err != nil {
			return err
		}
		took, err = l.clock[1].Elapsed(l.clock[0])
		return err
	})
	return took, err
}

// issue submits commands to the stream.
func (l *local) issue(list, from, to int) error {
	all := l.lists[list]
	for i := from; i < to; i++ {
		c := &all.list[i]
		if c.Transfer != nil {
			if err := l.sendMark(all, i, 0); err != nil {
				return err
			}
			if err := l.transfer(c.Transfer); err != nil {
				return err
			}
			if err := l.sendMark(all, i, 1); err != nil {
				return err
			}
			continue
		}
		r := l.recipes[c.Recipe]
		if err := r.Launch(l.stream, c.Sections, c.Workspace); err != nil {
			return fmt.Errorf("recipe %s: %w", r.name, err)
		}
	}
	return nil
}

func (l *local) transfer(t *transfer) error {
	s := l.stream
	if t.Kind == localCopy {
		return s.Copy(t.To, t.From, t.Count)
	}
	comm := l.rank.comm(t.Group)
	switch t.Kind {
	case allReduce:
		return comm.AllReduce(s, t.To, t.Count, t.Type, t.Reduction)
	case reduceScatter:
		return comm.ReduceScatter(s, t.To, t.From, t.Count, t.Type, t.Reduction)
	case allGather:
		return comm.AllGather(s, t.To, t.From, t.Count, t.Type)
	case allToAll:
		return comm.AllToAll(s, t.To, t.From, t.Count, t.Type)
	default:
		return comm.Broadcast(s, t.To, t.Count, t.Type, 0)
	}
}

// release keeps the device in the process, which releases it when it ends.
func (l *local) release() error {
	mine.Lock()
	defer mine.Unlock()
	l.users--
	return nil
}

// close closes the device and everything made on it.
func (l *local) close() error {
	var errs []error
	if l.rank != nil {
		errs = append(errs, l.rank.close())
	}
	for _, r := range l.recipes {
		errs = append(errs, r.Close())
	}
	if l.staging != nil {
		errs = append(errs, l.staging.Close())
	}
	if l.fence != nil {
		errs = append(errs, l.fence.Close())
	}
	for _, e := range l.clock {
		if e != nil {
			errs = append(errs, e.Close())
		}
	}
	if l.stream != nil {
		errs = append(errs, l.stream.Close())
	}
	return errors.Join(append(errs, l.Close())...)
}

// recipe returns the recipe of the graph with a key, from the cache or newly compiled.
func (c *cache) recipe(t libsynapse.DeviceType, key string, p program) (*libsynapse.Recipe, error) {
	if path, ok := c.find(key); ok {
		if r, err := libsynapse.LoadRecipe(path, p.Graph); err == nil {
			return r, nil
		}
	}
	r, err := libsynapse.Compile(t, p.Graph, p.Name)
	if err == nil {
		c.keep(key, r.Save)
	}
	return r, err
}
