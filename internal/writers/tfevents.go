package writers

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"octet/internal/disk"
)

// Events writes scalars to a TensorBoard event file.
//
// The file is a sequence of TFRecords: the length of the data (uint64,
// little-endian), its masked CRC-32C, the data, its masked CRC-32C. The data is
// an Event message of tensorflow/core/util/event.proto, of which five fields
// are needed here.
type Events struct {
	file *disk.File
	buf  []byte
}

// Field numbers of Event and its parts, from event.proto and summary.proto.
const (
	eventWallTime    protowire.Number = 1 // double, seconds
	eventStep        protowire.Number = 2 // int64
	eventFileVersion protowire.Number = 3 // string
	eventSummary     protowire.Number = 5 // Summary
	eventSessionLog  protowire.Number = 7 // SessionLog

	summaryValue     protowire.Number = 1 // repeated Value
	valueTag         protowire.Number = 1 // string
	valueSimpleValue protowire.Number = 2 // float

	sessionStatus protowire.Number = 1 // enum
)

// sessionStart is SessionLog.START.
const sessionStart = 1

const eventsPrefix = "events.out.tfevents."

// Scalar is a point of one curve.
type Scalar struct {
	Tag   string // "loss/train"
	Value float64
}

// OpenEvents creates a new event file in a run folder, also for a resumed run: TensorBoard
// reads all files of a folder in the order of their names, which begin with the time.
// firstStep is the next step; TensorBoard then discards that step and later ones from
// earlier files.
func OpenEvents(dir string, now time.Time, firstStep int) (*Events, error) {
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	second := now.Unix()
	for _, e := range entries { // the clock may have been set back since the last file
		rest, ok := strings.CutPrefix(e.Name(), eventsPrefix)
		digits, _, _ := strings.Cut(rest, ".")
		if at, err := strconv.ParseInt(digits, 10, 64); ok && err == nil {
			second = max(second, at)
		}
	}
	var f *disk.File
	for n := 0; ; n++ { // n distinguishes files of the same second
		name := fmt.Sprintf("%s%010d.%s.%d", eventsPrefix, second, host, n)
		f, err = disk.Open(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL)
		if err == nil {
			break
		}
		if !os.IsExist(err) {
			return nil, err
		}
	}
	e := &Events{file: f}
	version := protowire.AppendTag(appendTime(nil, now), eventFileVersion, protowire.BytesType)
	version = protowire.AppendString(version, "brain.Event:2")
	e.buf = appendRecord(e.buf, version)

	start := appendStep(appendTime(nil, now), firstStep)
	status := protowire.AppendTag(nil, sessionStatus, protowire.VarintType)
	status = protowire.AppendVarint(status, sessionStart)
	start = protowire.AppendTag(start, eventSessionLog, protowire.BytesType)
	e.buf = appendRecord(e.buf, protowire.AppendBytes(start, status))
	if _, err := f.Write(e.buf); err != nil {
		return nil, errors.Join(err, f.Close(), disk.RemoveAll(f.Name()))
	}
	return e, nil
}

// Write appends the scalars of a step, in one system call.
func (e *Events) Write(now time.Time, step int, scalars ...Scalar) error {
	var summary, value []byte
	for _, s := range scalars {
		value = protowire.AppendTag(value[:0], valueTag, protowire.BytesType)
		value = protowire.AppendString(value, s.Tag)
		value = protowire.AppendTag(value, valueSimpleValue, protowire.Fixed32Type)
		value = protowire.AppendFixed32(value, math.Float32bits(float32(s.Value)))
		summary = protowire.AppendTag(summary, summaryValue, protowire.BytesType)
		summary = protowire.AppendBytes(summary, value)
	}
	event := appendStep(appendTime(nil, now), step)
	event = protowire.AppendTag(event, eventSummary, protowire.BytesType)
	e.buf = appendRecord(e.buf[:0], protowire.AppendBytes(event, summary))
	_, err := e.file.Write(e.buf)
	return err
}

// Close closes the file.
func (e *Events) Close() error { return e.file.Close() }

func appendTime(b []byte, t time.Time) []byte {
	b = protowire.AppendTag(b, eventWallTime, protowire.Fixed64Type)
	return protowire.AppendFixed64(b, math.Float64bits(float64(t.UnixMicro())/1e6))
}

func appendStep(b []byte, step int) []byte {
	b = protowire.AppendTag(b, eventStep, protowire.VarintType)
	return protowire.AppendVarint(b, uint64(step))
}

func appendRecord(b, data []byte) []byte {
	length := binary.LittleEndian.AppendUint64(nil, uint64(len(data)))
	b = append(b, length...)
	b = binary.LittleEndian.AppendUint32(b, maskedCRC(length))
	b = append(b, data...)
	return binary.LittleEndian.AppendUint32(b, maskedCRC(data))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// maskedCRC returns the checksum of TFRecord. The CRC is rotated and shifted, because the
// CRC of data that holds its own CRC is a constant.
func maskedCRC(data []byte) uint32 {
	crc := crc32.Checksum(data, castagnoli)
	return (crc>>15 | crc<<17) + 0xa282ead8
}
