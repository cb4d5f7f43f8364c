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

// meetings are the collectives in which ranks meet, by number. They tell where a device is
// that does not come back: before a meeting its stream copies the number to the host, where
// it can be read without asking the device.
type meetings struct {
	mu    sync.Mutex
	names []string // by number, from 1
}

const numberBytes = 4

// numbered gives every meeting of a list of commands a number: those of all commands, 0 of
// launches. It returns nothing where nobody meets.
func (m *meetings) numbered(list []command) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	numbers, before := make([]byte, 0, numberBytes*len(list)), len(m.names)
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
func (m *meetings) name(number uint32) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if number == 0 || int(number) > len(m.names) {
		return "none"
	}
	return m.names[number-1]
}

// uploadNumbers puts the numbers of a list's meetings where the stream copies them from, or
// returns 0 where there are none.
func (l *local) uploadNumbers(list []command) (table libsynapse.Ptr, err error) {
	numbers := l.meetings.numbered(list)
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

// noteArrival makes the stream say that it has come to a command.
func (l *local) noteArrival(c commands, i int) error {
	if c.list[i].Transfer.Kind == duplicate {
		return nil
	}
	return l.stream.CopyOut(l.staging, 2*stagingBytes, c.table+libsynapse.Ptr(numberBytes*i), numberBytes)
}

// lastMeeting is the one that the stream came to last.
func (l *local) lastMeeting() string {
	last := (*uint32)(unsafe.Pointer(&l.staging.Bytes()[2*stagingBytes]))
	return l.meetings.name(atomic.LoadUint32(last))
}
