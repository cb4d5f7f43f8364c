package data

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
)

// maxOpenFiles is the maximum number of files that a corpus keeps open at a time. Reading
// from a file that is not open costs two more allocations and some 50 µs on a local disk,
// milliseconds on a network disk. More open files would leave fewer descriptors for
// checkpoints.
const maxOpenFiles = 512

// pool opens the files of a corpus when they are read and closes the least recently used
// ones above its limit. Its methods are safe for concurrent use.
type pool struct {
	mu     sync.Mutex
	limit  int
	open   []*source // least recently used first
	closed bool
}

func newPool() *pool { return &pool{limit: min(maxOpenFiles, max(1, maxDescriptors()/8))} }

// source is a file that is read in windows. It implements io.ReaderAt.
type source struct {
	pool  *pool
	name  string
	stamp stamp    // from the first open; size is -1 until then
	file  *os.File // nil while closed
	users int      // reads in progress
}

// stamp identifies the state of a file, to detect writes. It does not include the inode:
// after another file is renamed onto the path, the open file still has the old content.
type stamp struct{ size, modified int64 } // bytes; nanoseconds since 1970

// changedError is the error of reading a file that has changed since it was hashed.
type changedError struct {
	name     string
	was, now stamp
}

func (e *changedError) Error() string {
	what := "its modification time differs"
	if e.was.size != e.now.size {
		what = fmt.Sprintf("it has %d bytes, not %d", e.now.size, e.was.size)
	}
	return fmt.Sprintf("data: %q has changed since it was opened: %s; restore the original file, and do not write to it while a run reads it", e.name, what)
}

// add opens f as a source. A size other than f.size is an error.
func (p *pool) add(f *file) (*source, error) {
	s := &source{pool: p, name: f.String()}
	s.stamp.size = -1 // unknown
	if _, err := p.acquire(s); err != nil {
		return nil, unreadable(s.name, err)
	}
	defer p.release(s)
	if s.stamp.size != f.size {
		return nil, changedWhileRead(s.name)
	}
	return s, nil
}

// ReadAt implements io.ReaderAt. If the file has been written to since it was first
// opened, the error is a *changedError, even if the requested bytes are unchanged.
func (s *source) ReadAt(b []byte, at int64) (int, error) {
	f, err := s.pool.acquire(s)
	if err != nil {
		return 0, err
	}
	defer s.pool.release(s)
	n, err := f.ReadAt(b, at)
	now, statErr := stampOf(f)
	if statErr != nil {
		return 0, statErr
	}
	if now != s.stamp {
		return 0, &changedError{s.name, s.stamp, now}
	}
	return n, err
}

// acquire returns the open file of a source. The file stays open until release.
func (p *pool) acquire(s *source) (*os.File, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, os.ErrClosed
	}
	if s.file == nil {
		if err := p.openFile(s); err != nil {
			return nil, err
		}
	} else if last := len(p.open) - 1; p.open[last] != s {
		i := slices.Index(p.open, s)
		copy(p.open[i:], p.open[i+1:])
		p.open[last] = s
	}
	s.users++
	return s.file, nil
}

func (p *pool) release(s *source) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.users--
	if p.closed && s.users == 0 {
		_ = s.close() // it was only read
	}
}

// openFile opens a source's file and closes idle files above the limit. If the process
// has no descriptor left, it closes all idle files and tries again.
func (p *pool) openFile(s *source) error {
	p.shrink(p.limit - 1)
	f, err := os.Open(s.name)
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		p.shrink(0)
		f, err = os.Open(s.name)
	}
	if err != nil {
		return err
	}
	now, err := stampOf(f)
	if err == nil && s.stamp.size >= 0 && now != s.stamp {
		err = &changedError{s.name, s.stamp, now}
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	s.file, s.stamp = f, now
	p.open = append(p.open, s)
	return nil
}

// shrink closes idle files, the least recently used first, until at most limit files are
// open.
func (p *pool) shrink(limit int) {
	p.open = slices.DeleteFunc(p.open, func(s *source) bool {
		if limit >= len(p.open) || s.users > 0 {
			return false
		}
		limit++
		_ = s.close() // it was only read
		return true
	})
}

func (s *source) close() error {
	f := s.file
	s.file = nil
	return f.Close()
}

// close closes all files. A read in progress finishes and then closes its file.
func (p *pool) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	var errs []error
	for _, s := range p.open {
		if s.users == 0 {
			errs = append(errs, s.close())
		}
	}
	p.open = nil
	return errors.Join(errs...)
}
