//go:build gaudi && cgo && linux

package gaudi

import (
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"unsafe"

	"octet/csrc/libsynapse"
)

// collectives are the names of all prepared collectives, in order. They locate a rank that
// hangs, and measure how long it is in collectives: before and after each collective, the stream
// copies a mark to host memory, which can be read without a call to the device. Collective i has
// the marks 2i+1, before it, and 2i+2, after it.
type collectives struct {
	mu    sync.Mutex
	names []string
}

const markBytes = 4

// markCommands returns two marks for each command of a list, 0 for launches and local copies. It
// returns nil for a list without collectives.
func (m *collectives) markCommands(list []command) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	marks, before := make([]byte, 0, 2*markBytes*len(list)), len(m.names)
	for _, c := range list {
		first, second := 0, 0
		if t := c.Transfer; t != nil && t.Kind != localCopy {
			m.names = append(m.names, t.Name)
			first, second = 2*len(m.names)-1, 2*len(m.names)
		}
		marks = binary.LittleEndian.AppendUint32(marks, uint32(first))
		marks = binary.LittleEndian.AppendUint32(marks, uint32(second))
	}
	if len(m.names) == before {
		return nil
	}
	return marks
}

// name returns the name of the collective of a mark.
func (m *collectives) name(mark uint32) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if mark == 0 || int(mark) > 2*len(m.names) {
		return "none"
	}
	return m.names[(mark-1)/2]
}

// uploadMarks copies the marks of a list's collectives to device memory and returns their
// address, 0 without collectives.
func (l *local) uploadMarks(list []command) (table libsynapse.Ptr, err error) {
	marks := l.collectives.markCommands(list)
	if len(marks) == 0 {
		return 0, nil
	}
	if table, err = l.Alloc(len(marks)); err != nil {
		return 0, err
	}
	if err := l.put(table, marks); err != nil {
		return 0, errors.Join(err, l.Free(table))
	}
	return table, nil
}

// sendMark makes the stream copy a mark of command i to host memory when it gets there: mark 0 is
// that before the collective, mark 1 that after it.
func (l *local) sendMark(c commands, i, mark int) error {
	if c.list[i].Transfer.Kind == localCopy {
		return nil
	}
	return l.stream.CopyOut(l.staging, 2*stagingBytes, c.table+libsynapse.Ptr(markBytes*(2*i+mark)), markBytes)
}

// mark returns the last mark of the stream; 0 before the first.
func (l *local) mark() uint32 {
	return atomic.LoadUint32((*uint32)(unsafe.Pointer(&l.staging.Bytes()[2*stagingBytes])))
}
