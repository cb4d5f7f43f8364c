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

// marks tell where a device is that does not come back: before ranks meet in a
// collective, its stream copies the number of this meeting to the host, where it can be
// read without asking the device.
type marks struct {
	mu    sync.Mutex
	names []string // of meetings, by number, from 1
}

const markBytes = 4

// number gives every meeting of a list of commands a number: those of all commands, 0 of
// launches. It returns nothing where nobody meets.
func (m *marks) number(list []command) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	numbers, before := make([]byte, 0, markBytes*len(list)), len(m.names)
	for _, c := range list {
		n := 0
		if t := c.Transfer; t != nil && t.Kind != duplicate {
			m.names = append(m.names, t.Name)
			n = len(m.names)
		}
		numbers = binary.LittleEndian.AppendUint32(numbers, uint32(n))
	}
	if len(m.names) == before {
		return nil
	}
	return numbers
}

// name is that of a meeting.
func (m *marks) name(number uint32) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if number == 0 || int(number) > len(m.names) {
		return "none"
	}
	return m.names[number-1]
}

// mark puts the numbers of a list's meetings where the stream copies them from, or
// returns 0 where there are none.
func (l *local) mark(list []command) (table libsynapse.Ptr, err error) {
	numbers := l.marks.number(list)
	if len(numbers) == 0 {
		return 0, nil
	}
	if table, err = l.Alloc(len(numbers)); err != nil {
		return 0, err
	}
	if err := l.put(table, numbers); err != nil {
		return 0, errors.Join(err, l.Free(table))
	}
	return table, nil
}

// arrive makes the stream say that it has come to a command.
func (l *local) arrive(c commands, i int) error {
	if c.list[i].Transfer.Kind == duplicate {
		return nil
	}
	return l.stream.CopyOut(l.staging, 2*stagingBytes, c.table+libsynapse.Ptr(markBytes*i), markBytes)
}

// met is the meeting that the stream came to last.
func (l *local) met() string {
	last := (*uint32)(unsafe.Pointer(&l.staging.Bytes()[2*stagingBytes]))
	return l.marks.name(atomic.LoadUint32(last))
}
