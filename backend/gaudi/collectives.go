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

// collectives are the names of all prepared collectives, by number. They locate a rank
// that hangs: before each collective, the stream copies its number to host memory, which
// can be read without a call to the device.
type collectives struct {
	mu    sync.Mutex
	names []string // index: number − 1
}

const numberBytes = 4

// numberCommands returns a number for each command of a list, 0 for launches and local
// copies. It returns nil for a list without collectives.
func (m *collectives) numberCommands(list []command) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	numbers, before := make([]byte, 0, numberBytes*len(list)), len(m.names)
	for _, c := range list {
		n := 0
		if t := c.Transfer; t != nil && t.Kind != localCopy {
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

// name returns the name of a numbered collective.
func (m *collectives) name(number uint32) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if number == 0 || int(number) > len(m.names) {
		return "none"
	}
	return m.names[number-1]
}

// uploadNumbers copies the numbers of a list's collectives to device memory and returns
// their address, 0 without collectives.
func (l *local) uploadNumbers(list []command) (table libsynapse.Ptr, err error) {
	numbers := l.collectives.numberCommands(list)
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

// noteArrival makes the stream copy the number of a collective to host memory when it
// gets there.
func (l *local) noteArrival(c commands, i int) error {
	if c.list[i].Transfer.Kind == localCopy {
		return nil
	}
	return l.stream.CopyOut(l.staging, 2*stagingBytes, c.table+libsynapse.Ptr(numberBytes*i), numberBytes)
}

// reached returns the number of the last collective that the stream reached; 0 before the first.
func (l *local) reached() uint32 {
	return atomic.LoadUint32((*uint32)(unsafe.Pointer(&l.staging.Bytes()[2*stagingBytes])))
}
