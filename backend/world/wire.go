package world

import (
	"bytes"
	"encoding/binary"
	"encoding/gob"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// kind is the kind of a message.
type kind uint8

const (
	hello  kind = 1 + iota // the first message of a member
	part                   // a member's data for Exchange
	alive                  // a sign of life
	failed                 // a member ends the group
	left                   // a member's last message
	joined                 // the hub's answer to all hellos
	parts                  // the hub's answer to all parts
	ended                  // the hub's last message to a group that failed
)

// lane tells concurrent exchanges apart.
type lane uint8

const (
	training   lane = iota // Exchange
	background             // ExchangeInBackground
	lanes
)

// message is what members and the hub tell each other. Kind says which fields are set.
type message struct {
	Kind      kind
	Hello     *greeting
	What      string // names an Exchange, or the last collective
	Lane      lane   // of the Exchange
	Waiting   bool   // in that collective
	Data      []byte
	Parts     [][]byte
	Step, Ops int64 // progress of a member
	Lost      *Lost
}

// link is a connection between a member and the hub. One goroutine may receive at a time.
type link interface {
	send(message) error
	receive() (message, error)
	close()
}

// maxMessage is the maximum size of a message in bytes.
const maxMessage = 64 << 20

// writeTimeout bounds the time to write a message.
const writeTimeout = 10 * time.Second

// conn is a link to another process: a message is its length in four bytes and a gob.
type conn struct {
	net.Conn

	sending sync.Mutex
	out     bytes.Buffer
	encoder *gob.Encoder // to out; sends the types with the first message
	in      bytes.Buffer
	decoder *gob.Decoder // from in
}

func newConn(c net.Conn) *conn {
	x := &conn{Conn: c}
	x.encoder, x.decoder = gob.NewEncoder(&x.out), gob.NewDecoder(&x.in)
	return x
}

func (c *conn) send(m message) error {
	c.sending.Lock()
	defer c.sending.Unlock()
	c.out.Reset()
	c.out.Write(make([]byte, 4))
	if err := c.encoder.Encode(m); err != nil {
		return err
	}
	frame := c.out.Bytes()
	if len(frame)-4 > maxMessage {
		return fmt.Errorf("a message of %d bytes is too large", len(frame)-4)
	}
	binary.BigEndian.PutUint32(frame, uint32(len(frame)-4))
	if err := c.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	_, err := c.Write(frame)
	return err
}

func (c *conn) receive() (m message, err error) {
	var length [4]byte
	if _, err := io.ReadFull(c, length[:]); err != nil {
		return m, err
	}
	n := binary.BigEndian.Uint32(length[:])
	if n > maxMessage {
		return m, fmt.Errorf("a message of %d bytes is too large", n)
	}
	// The buffer grows with what arrives, not with what a broken peer announces.
	if _, err := io.CopyN(&c.in, c, int64(n)); err != nil {
		return m, err
	}
	if err := c.decoder.Decode(&m); err != nil {
		return m, err
	}
	if c.in.Len() > 0 {
		return m, fmt.Errorf("%d bytes follow a message", c.in.Len())
	}
	return m, nil
}

func (c *conn) close() { _ = c.Close() } // the connection is no longer needed

// local is a link within a process, which allocates nothing.
type local struct {
	out    chan<- message
	in     <-chan message
	closed chan struct{} // of both ends
	once   *sync.Once
}

// newLocal returns both ends of a link.
func newLocal() (a, b *local) {
	ab, ba := make(chan message), make(chan message)
	closed, once := make(chan struct{}), new(sync.Once)
	return &local{ab, ba, closed, once}, &local{ba, ab, closed, once}
}

func (l *local) send(m message) error {
	select {
	case l.out <- m:
		return nil
	case <-l.closed:
		return net.ErrClosed
	}
}

func (l *local) receive() (message, error) {
	select {
	case m := <-l.in:
		return m, nil
	case <-l.closed:
		return message{}, net.ErrClosed
	}
}

func (l *local) close() { l.once.Do(func() { close(l.closed) }) }
